package backendtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
)

// Pair is a primary, its replica, and three sentinels, two of which must agree on a failover. The servers sync every write.
type Pair struct {
	Primary, Replica *Node
	Sentinels        []*Node
	t                testing.TB
}

// pairName is how the sentinels call the primary.
const pairName = "floodgate"

// RedisPair starts a pair, and ends it with the test.
func RedisPair(t testing.TB) *Pair {
	t.Helper()
	p := &Pair{t: t, Primary: newNode(t, nil), Replica: newNode(t, nil)}
	p.Primary.flags = dataFlags()
	p.Replica.flags = append(dataFlags(), "--replicaof", "127.0.0.1", fmt.Sprint(p.Primary.port))
	p.Primary.Start()
	p.Replica.Start()
	p.Replica.Until("it has its primary's data", p.Replica.Follows)
	for range 3 {
		n := newNode(t, nil)
		file := filepath.Join(n.dir, "sentinel.conf")
		conf := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s %d\n",
			pairName, p.Primary.port, pairName, nodeTimeout.Milliseconds(), pairName, 2*nodeTimeout.Milliseconds())
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		n.flags = []string{file, "--sentinel"}
		n.Start()
		p.Sentinels = append(p.Sentinels, n)
	}
	for _, n := range p.Sentinels {
		n.Until("it knows the others and the replica", func() bool {
			state := n.Do("INFO", "sentinel")
			return strings.Contains(state, fmt.Sprintf("slaves=1,sentinels=%d", len(p.Sentinels)))
		})
	}
	return p
}

// Store asks the sentinels where the primary is, and connects to it; scripts are not loaded.
func (p *Pair) Store() *reserve.Store {
	p.t.Helper()
	return open(p.t, redis.Config{Addrs: []string{p.Sentinels[0].Addr}, Prefix: "p:", Sentinel: redis.Sentinel{Primary: pairName}})
}

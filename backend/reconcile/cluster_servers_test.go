//go:build servers

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
)

// clustered is a system on a Redis Cluster of its own, with a sale on each of three primaries.
type clustered struct {
	*system
	nodes *backendtest.Cluster
	sales []int64
	on    map[int64]*backendtest.Node // the primaries of the sales, at first
}

func newClustered(t *testing.T, replicas int, withBroker bool, o backendtest.SaleOptions) *clustered {
	t.Helper()
	c := &clustered{nodes: backendtest.RedisCluster(t, 3, replicas), on: map[int64]*backendtest.Node{}}
	c.system = newSystemOn(t, c.nodes.Store(), withBroker)
	taken := map[*backendtest.Node]bool{}
	for len(taken) < 3 {
		sale := backendtest.Sale(t, c.db, o)
		n := c.nodes.Of(c.redis.OutboxKey(sale))
		if taken[n] { // it is nobody's
			if _, err := c.db.ExecContext(t.Context(), `UPDATE sales SET archived_at = created_at WHERE id = ?`, sale); err != nil {
				t.Fatal(err)
			}
			continue
		}
		taken[n], c.on[sale] = true, n
		c.sales = append(c.sales, sale)
		c.reconcile(sale)
	}
	return c
}

// look is one look of a process that keeps the sales, and what it has begun.
func (c *clustered) look() error {
	k := &keeper{r: c.rec, shut: map[int64]*closed{}, ends: map[int64]context.CancelFunc{}}
	err := k.look(c.t.Context())
	k.running.Wait()
	return err
}

// looks looks until what has begun is done and nothing fails.
func (c *clustered) looks() {
	c.t.Helper()
	eventually(c.t, "a look finds nothing to do", func() bool {
		err := c.look()
		if err != nil {
			c.t.Log(err)
		}
		return err == nil
	})
}

func (c *clustered) life() string {
	c.t.Helper()
	name, err := c.rec.newestIncarnation(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return name
}

// tokens are those of the sales' gates: they change when a reconciler closes one.
func (c *clustered) tokens() map[int64]int64 {
	c.t.Helper()
	tokens := map[int64]int64{}
	for _, sale := range c.sales {
		tokens[sale] = c.state(sale).Token
	}
	return tokens
}

// knows asks a node whether it knows the sale_reserve.lua of the newest life.
func (c *clustered) knows(n *backendtest.Node) bool {
	c.t.Helper()
	return n.Knows(lua.SaleReserveIn(c.life()))
}

// The replica of a primary lags: its link is cut. Then the primary dies, or is paused and comes back as a replica. Units that were
// promised by then are on sale once more at the promoted replica, unless somebody notices.
func TestALaggingReplicaIsPromoted(t *testing.T) {
	for _, mode := range promotions {
		t.Run(mode.String(), func(t *testing.T) { promote(t, mode) })
	}
}

// mode is when an order is promised, and what becomes of the primary.
type mode struct {
	after  string // confirm, replicas:1 or fsync
	paused bool   // not killed
}

func (m mode) String() string {
	if m.paused {
		return m.after + ", paused"
	}
	return m.after + ", killed"
}

var promotions = []mode{{"confirm", false}, {"confirm", true}, {"replicas:1", false}, {"replicas:1", true}, {"fsync", false}}

func promote(t *testing.T, m mode) {
	c := newClustered(t, 3, true, backendtest.SaleOptions{Stock: promotedStock})
	primary := c.on[c.sales[0]]
	p := promotion{c.system, c.sales, primary, c.nodes.Nodes[3+slices.Index(c.nodes.Nodes, primary)]}
	p.run(m)
}

// promotion is a system whose first sale's primary gets lost, while that sale and the others sell.
type promotion struct {
	*system
	sales            []int64
	primary, replica *backendtest.Node
}

const promotedStock = 1000

// run cuts the replica off, kills or pauses the primary, and holds all promises against MySQL after everything is sold.
func (p promotion) run(m mode) {
	const buyers = 20 * promotedStock
	c, t, primary, replica := p.system, p.t.(*testing.T), p.primary, p.replica
	victim := p.sales[0]
	live := func() []int64 { return p.sales }
	for _, name := range []string{"r1", "r2"} {
		background(t, outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: c.redis, Live: live,
			Name: name, ClaimIdle: time.Second, Log: backendtest.Log(t), Register: prometheus.NewRegistry()}, Broker: c.broker}).Run)
	}
	c.consume(t, nil)
	for range 2 {
		background(t, c.reconciler(c.broker).Keep)
	}
	confirm, replicated := func(context.Context, queued.Entry) error { return nil }, m.after == "replicas:1"
	switch {
	case m.after == "confirm":
		confirm = outbox.NewConfirmer(outbox.ConfirmerConfig{Redis: c.redis, Broker: c.broker, Within: 5 * time.Second, Register: prometheus.NewRegistry()}).Confirm
	case replicated:
		replicas := outbox.NewReplicas(outbox.ReplicasConfig{Redis: c.redis, Count: 1, Within: time.Second, Register: prometheus.NewRegistry()})
		background(t, replicas.Run)
		confirm = replicas.Confirm
	}

	var mu sync.Mutex // guards promised
	promised := map[int64][]string{}
	var next, elsewhere, unpromised atomic.Int64
	count := func(sale int64) int { mu.Lock(); defer mu.Unlock(); return len(promised[sale]) }
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	for w := range 9 {
		sale := p.sales[w%len(p.sales)]
		wg.Go(func() {
			epoch := int64(0)
			for ctx.Err() == nil {
				r := request(sale, epoch, fmt.Sprint("u", next.Add(1)%buyers), 1, "")
				v, err := c.redis.Reserve(ctx, r)
				switch {
				case err == nil && v.Answer == lua.StaleEpoch:
					epoch = v.Epoch
				case err == nil && v.Answer == lua.Reserved:
					if confirm(ctx, r.Entry(v)) != nil {
						if sale == victim {
							unpromised.Add(1)
						}
						continue
					}
					mu.Lock()
					promised[sale] = append(promised[sale], v.OrderID)
					mu.Unlock()
				default:
					if err != nil && sale != victim && ctx.Err() == nil {
						elsewhere.Add(1)
						t.Logf("sale %d, whose primary did nothing: %v", sale, err)
					}
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Millisecond):
					}
				}
			}
		})
	}
	eventually(t, "a hundred are promised", func() bool { return count(victim) >= 100 })
	replica.Detach()
	lost := count(victim)
	if replicated { // what went to the replica just before may still be promised
		eventually(t, "orders are made and not promised", func() bool { return unpromised.Load() >= 9 })
	} else {
		eventually(t, "two hundred more are promised", func() bool { return count(victim) >= lost+200 })
	}
	if m.paused {
		primary.Pause()
	} else {
		primary.Kill()
	}
	began := time.Now()
	replica.Until("it is the primary", func() bool { return replica.Role() == "master" })
	at := time.Now()
	switch {
	case m.paused:
		primary.Resume()
	case replicated: // nothing is promised before another replica is there
		primary.Start()
	}
	before := count(victim)
	eventually(t, "the promoted replica sells", func() bool { return count(victim) > before })
	first := time.Since(at)
	for _, sale := range p.sales {
		eventually(t, "everything is sold", func() bool {
			var left int64
			err := c.db.QueryRowContext(t.Context(), `SELECT available FROM sale_stock WHERE sale_id = ?`, sale).Scan(&left)
			return err == nil && left == 0
		})
	}
	stop()
	wg.Wait()
	eventually(t, "somebody notices, and reconciles the sale", func() bool {
		h, err := c.redis.Snapshot(t.Context(), victim)
		return err == nil && h.State.Epoch >= 2
	})
	broken := map[int64]int{}
	for _, sale := range p.sales {
		eventually(t, "everything is settled", func() bool {
			snap, err := c.redis.Snapshot(t.Context(), sale)
			return err == nil && snap.State.Gate == lua.GateOpen && len(snap.Outbox) == 0
		})
		kept := map[string]bool{}
		rows, err := c.db.QueryContext(t.Context(), `SELECT id FROM orders WHERE sale_id = ? AND status = 'pending_payment'`, sale)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			kept[id] = true
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		for _, id := range promised[sale] {
			if !kept[id] {
				broken[sale]++
			}
		}
		c.balanced(sale)
		result, err := audit.New(audit.Config{DB: c.db, Redis: c.redis, QueuedBound: time.Minute}).Sale(t.Context(), sale)
		if err != nil || !result.Balanced {
			t.Errorf("sale %d: %+v, %v", sale, result, err)
		}
	}
	t.Logf("%d promised by the sale of the promoted replica, %d of them broken, %d not promised; promoted after %v, the first order %v later; %d calls failed elsewhere",
		len(promised[victim]), broken[victim], unpromised.Load(), at.Sub(began).Round(time.Millisecond), first.Round(time.Millisecond), elsewhere.Load())
	for _, sale := range p.sales[1:] {
		if broken[sale] > 0 || c.state(sale).Epoch != 1 {
			t.Errorf("sale %d, whose primary did nothing: %d broken, epoch %d", sale, broken[sale], c.state(sale).Epoch)
		}
	}
	if m.after != "fsync" && broken[victim] > 0 {
		t.Errorf("%d of %d promises were broken", broken[victim], len(promised[victim]))
	}
}

// A primary is started anew: its sales are closed and reconciled, and those of the others sell all the time.
func TestAPrimarysRestartClosesItsSalesAlone(t *testing.T) {
	c := newClustered(t, 0, false, backendtest.SaleOptions{Stock: 100_000})
	victim := c.sales[0]
	e := c.press(victim, "ann", 1, "k")
	before := c.tokens()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var sold atomic.Int64
	for _, sale := range c.sales[1:] {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				v, err := c.redis.Reserve(t.Context(), request(sale, 1, fmt.Sprint("u", n), 1, ""))
				if err != nil || v.Answer != lua.Reserved {
					t.Errorf("sale %d, whose primary did nothing: %+v, %v", sale, v, err)
					return
				}
				sold.Add(1)
			}
		})
	}
	c.on[victim].Kill()
	if err := c.look(); err == nil {
		t.Error("a look did not say that a node is away")
	}
	c.on[victim].Start()
	for _, n := range c.nodes.Nodes {
		n.Until("every node is there", n.Whole)
	}
	if _, err := c.redis.Reserve(t.Context(), request(victim, 1, "bob", 1, "")); !errors.Is(err, redis.ErrRestarted) {
		t.Errorf("before it is reconciled: got %v, want %v", err, redis.ErrRestarted)
	}
	at := sold.Load()
	c.looks()
	eventually(t, "the others sell", func() bool { return sold.Load() > at })
	stop()
	wg.Wait()
	for sale, token := range c.tokens() {
		if (sale == victim) != (token > before[sale]) {
			t.Errorf("sale %d, of %d: token %d, before %d", sale, victim, token, before[sale])
		}
	}
	v, err := c.redis.Reserve(t.Context(), request(victim, c.state(victim).Epoch, "ann", 1, "k"))
	if err != nil || v.Answer != lua.Repeated || v.OrderID != e.ID {
		t.Errorf("got %+v, %v; want %s again", v, err, e.ID)
	}
}

// A replica that goes away, and comes back, closes no sale.
func TestAReplicaThatIsAwayClosesNothing(t *testing.T) {
	c := newClustered(t, 3, false, backendtest.SaleOptions{Stock: 10})
	c.looks()
	life, tokens := c.life(), c.tokens()
	unchanged := func(when string) {
		t.Helper()
		if got := c.life(); got != life {
			t.Errorf("%s: another life began", when)
		}
		if got := c.tokens(); !maps.Equal(got, tokens) {
			t.Errorf("%s: the gates' tokens are %v, before %v", when, got, tokens)
		}
	}
	for _, away := range []struct {
		name      string
		go_, come func(*backendtest.Node)
	}{
		{"killed", (*backendtest.Node).Kill, (*backendtest.Node).Start},
		{"paused", (*backendtest.Node).Pause, (*backendtest.Node).Resume},
	} {
		replica := c.nodes.Nodes[3]
		away.go_(replica)
		_ = c.look() // it says so, or does not know of it any more
		unchanged(away.name)
		for i, sale := range c.sales {
			c.press(sale, away.name+fmt.Sprint(i), 1, "")
		}
		away.come(replica)
		replica.Until("it follows its primary", replica.Follows)
		c.looks()
		unchanged(away.name + " and back")
	}
	if c.knows(c.nodes.Nodes[3]) {
		t.Error("a replica was taught")
	}
}

// A node that is no primary forgets the scripts, whoever loaded them; nothing is closed, and no life begins.
func TestAReplicaIsMadeToForget(t *testing.T) {
	c := newClustered(t, 3, false, backendtest.SaleOptions{})
	c.looks()
	life, tokens, replica := c.life(), c.tokens(), c.nodes.Nodes[3]
	replica.Do("SCRIPT", "LOAD", lua.SaleReserveIn(life).Source)
	if !c.knows(replica) {
		t.Fatal("it does not know the script")
	}
	c.looks()
	if c.knows(replica) {
		t.Error("it knows the script still")
	}
	if c.life() != life || !maps.Equal(c.tokens(), tokens) {
		t.Error("something was closed, or another life began")
	}
}

// A primary was demoted and promoted again, and nobody looked in between: it knows the scripts still, and what it has is what the
// other one had.
func TestAPromotionThatNobodySawIsNoticed(t *testing.T) {
	c := newClustered(t, 3, false, backendtest.SaleOptions{})
	c.looks()
	victim := c.sales[0]
	primary := c.on[victim]
	replica := c.nodes.Nodes[3+slices.Index(c.nodes.Nodes, primary)]
	life, before := c.life(), c.tokens()
	replica.Detach()
	lost := c.press(victim, "ann", 1, "k")
	for _, n := range []*backendtest.Node{replica, primary} {
		n.Do("CLUSTER", "FAILOVER", "TAKEOVER")
		for _, m := range c.nodes.Nodes {
			m.Until("it knows of the takeover", func() bool { return m.Sees(n, "master") })
		}
		if n == replica {
			primary.Until("it follows the other one", primary.Follows)
		}
	}
	if !c.knows(primary) {
		t.Fatal("it does not know the script: the test shows nothing")
	}
	if h, ok, err := c.redis.Lookup(t.Context(), victim, lost.ID); ok || err != nil {
		t.Fatalf("it has what the other one did not have: %+v, %v", h, err)
	}
	c.looks()
	if c.life() == life {
		t.Error("no life began")
	}
	for sale, token := range c.tokens() {
		if (sale == victim) != (token > before[sale]) {
			t.Errorf("sale %d, of %d: token %d, before %d", sale, victim, token, before[sale])
		}
	}
}

package backendtest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/ports"
)

// Cluster is a Redis Cluster of a test's own: the primaries first, an equal part of the slots each; then the replicas, the i-th of the
// i-th primary. The nodes sync every write. A slot without a primary stops its own sales alone.
type Cluster struct {
	Nodes  []*Node
	t      testing.TB
	secure *Secure
}

// Node is a redis-server of a test's own.
type Node struct {
	Addr      string
	t         testing.TB
	port, bus int
	dir       string
	flags     []string
	secure    *Secure
	server    *exec.Cmd // nil: it does not run
	ended     <-chan error
	client    rueidis.Client
}

// nodeTimeout is how long a node is away before the others say that it failed.
const nodeTimeout = 3 * time.Second

// RedisCluster starts a cluster, and ends it with the test.
func RedisCluster(t testing.TB, primaries, replicas int) *Cluster {
	t.Helper()
	return SecureCluster(t, primaries, replicas, nil)
}

// SecureCluster is RedisCluster behind TLS and an ACL; nil is neither.
func SecureCluster(t testing.TB, primaries, replicas int, secure *Secure) *Cluster {
	t.Helper()
	c := &Cluster{t: t, secure: secure}
	for range primaries + replicas {
		n := newNode(t, secure)
		n.flags = append(dataFlags(), "--cluster-port", fmt.Sprint(n.bus), "--cluster-enabled", "yes",
			"--cluster-node-timeout", fmt.Sprint(nodeTimeout.Milliseconds()), "--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no")
		n.Start()
		c.Nodes = append(c.Nodes, n)
	}
	for i, n := range c.Nodes {
		n.Do("CLUSTER", "SET-CONFIG-EPOCH", fmt.Sprint(i+1))
		if i < primaries {
			n.Do("CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(i*16384/primaries), fmt.Sprint((i+1)*16384/primaries-1))
		}
	}
	for _, n := range c.Nodes[1:] {
		n.Do("CLUSTER", "MEET", "127.0.0.1", fmt.Sprint(c.Nodes[0].port), fmt.Sprint(c.Nodes[0].bus))
	}
	for _, n := range c.Nodes {
		n.Until("it knows every node", func() bool {
			info := n.Do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes)))
		})
	}
	for i, n := range c.Nodes[primaries:] {
		n.Do("CLUSTER", "REPLICATE", c.Nodes[i].Do("CLUSTER", "MYID"))
	}
	for _, n := range c.Nodes {
		n.Until("it has its primary's data, if it has one", func() bool { return n.Role() == "master" || n.Follows() })
		n.Until("it tells clients of every replica", func() bool { return n.replicas() == replicas })
	}
	return c
}

// Store connects to the cluster, which is told where its nodes are by the first; scripts are not loaded.
func (c *Cluster) Store() *reserve.Store {
	c.t.Helper()
	return open(c.t, c.secure.config(redis.Config{Addrs: []string{c.Nodes[0].Addr}, Prefix: "c:"}))
}

func open(t testing.TB, c redis.Config) *reserve.Store {
	t.Helper()
	s, err := reserve.Open(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// newNode is a node that is not started yet, and is killed with the test. It has two ports.
func newNode(t testing.TB, secure *Secure) *Node {
	t.Helper()
	free, err := ports.Free(2)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{t: t, dir: t.TempDir(), port: free[0], bus: free[1], secure: secure}
	n.Addr = fmt.Sprintf("127.0.0.1:%d", n.port)
	t.Cleanup(n.Kill)
	return n
}

// dataFlags are those of every server that holds data.
func dataFlags() []string {
	return []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
		"--enable-debug-command", "local"}
}

// Of returns the node that says it has a key.
func (c *Cluster) Of(key string) *Node {
	c.t.Helper()
	for _, n := range c.Nodes {
		if n.server == nil || n.Role() != "master" {
			continue
		}
		if _, err := n.try("EXISTS", key); err == nil {
			return n
		}
	}
	c.t.Fatalf("no node has %s", key)
	return nil
}

func (n *Node) start() error {
	server := exec.Command("redis-server", slices.Concat(n.flags, n.secure.flags(n.port), []string{"--bind", "127.0.0.1", "--dir", n.dir, "--loglevel", "warning"})...)
	server.Stdout, server.Stderr = n.t.Output(), n.t.Output()
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	for {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{n.Addr}, ForceSingleClient: true, DisableCache: true, TLSConfig: n.secure.client()})
		if err == nil {
			pid, err := client.Do(context.Background(), client.B().Info().Section("server").Build()).ToString()
			if err == nil && strings.Contains(pid, fmt.Sprintf("process_id:%d\r", server.Process.Pid)) { // and no other's
				n.server, n.client = server, client
				n.ended = ended
				return nil
			}
			client.Close()
		}
		select {
		case err := <-ended:
			return errors.Join(errors.New("redis-server ended"), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Start starts a node that was killed, with the data that it has on its disk.
func (n *Node) Start() {
	n.t.Helper()
	if err := n.start(); err != nil {
		n.t.Fatal(err)
	}
}

// Kill kills a node, if it runs, and waits until it is gone.
func (n *Node) Kill() {
	n.t.Helper()
	if n.server == nil {
		return
	}
	n.client.Close()
	if err := n.server.Process.Kill(); err != nil {
		n.t.Error(err)
	}
	<-n.ended
	n.server = nil
}

// Pause stops a node without ending it, until Resume.
func (n *Node) Pause() { n.signal(syscall.SIGSTOP) }

// Resume lets a paused node go on.
func (n *Node) Resume() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.server.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// Detach cuts a replica off from its primary: the connection is closed, and it cannot log in any more. It still hears the cluster.
func (n *Node) Detach() {
	n.t.Helper()
	n.Do("CONFIG", "SET", "masterauth", "wrong")
	n.Do("CLIENT", "KILL", "TYPE", "master")
	n.Until("its link is down", func() bool { return strings.Contains(n.Do("INFO", "replication"), "master_link_status:down") })
}

// Role is master or slave; "" where it does not say: a promotion by Sentinel ends its clients' connections.
func (n *Node) Role() string {
	info, _ := n.try("INFO", "replication")
	_, rest, _ := strings.Cut(info, "role:")
	role, _, _ := strings.Cut(rest, "\r")
	return role
}

// Follows reports whether a replica has its primary's data, and gets what comes.
func (n *Node) Follows() bool {
	n.t.Helper()
	return strings.Contains(n.Do("INFO", "replication"), "master_link_status:up")
}

// replicas is how many replicas the node tells clients of: those that it knows to have data.
func (n *Node) replicas() (count int) {
	n.t.Helper()
	ranges, err := n.client.Do(context.Background(), n.client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		n.t.Fatalf("%s: CLUSTER SLOTS: %v", n.Addr, err)
	}
	for _, r := range ranges {
		parts, err := r.ToArray() // the first slot, the last one, the primary, its replicas
		if err != nil {
			n.t.Fatalf("%s: CLUSTER SLOTS: %v", n.Addr, err)
		}
		count += len(parts) - 3
	}
	return count
}

// Whole reports whether the node sees a primary at every slot.
func (n *Node) Whole() bool {
	n.t.Helper()
	info := n.Do("CLUSTER", "INFO")
	for _, part := range []string{"cluster_state:ok", "cluster_slots_pfail:0\r", "cluster_slots_fail:0\r"} {
		if !strings.Contains(info, part) {
			return false
		}
	}
	return true
}

// Sees reports whether the node takes another one for a master or a slave.
func (n *Node) Sees(other *Node, role string) bool {
	n.t.Helper()
	id := other.Do("CLUSTER", "MYID")
	for line := range strings.Lines(n.Do("CLUSTER", "NODES")) {
		if f := strings.Fields(line); f[0] == id {
			return slices.Contains(strings.Split(f[2], ","), role)
		}
	}
	return false
}

// Knows reports whether the node knows a script.
func (n *Node) Knows(script lua.Script) bool {
	n.t.Helper()
	known, err := n.client.Do(context.Background(), n.client.B().ScriptExists().Sha1(script.SHA).Build()).AsBoolSlice()
	if err != nil {
		n.t.Fatalf("%s: SCRIPT EXISTS: %v", n.Addr, err)
	}
	return known[0]
}

// Do sends a command and returns its answer, where that is a text.
func (n *Node) Do(words ...string) string {
	n.t.Helper()
	answer, err := n.try(words...)
	if err != nil {
		n.t.Fatalf("%s: %v: %v", n.Addr, words, err)
	}
	return answer
}

func (n *Node) try(words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m, err := n.client.Do(ctx, n.client.B().Arbitrary(words...).Build()).ToMessage()
	if err != nil {
		return "", err
	}
	if text, err := m.ToString(); err == nil {
		return strings.TrimPrefix(text, "txt:"), nil // as the client gives a verbatim string
	}
	return m.String(), nil
}

// Until waits until f is true.
func (n *Node) Until(what string, f func() bool) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			state, _ := n.try("CLUSTER", "NODES") // none without a cluster
			n.t.Fatalf("redis %s, never: %s\n%s", n.Addr, what, state)
		}
	}
}

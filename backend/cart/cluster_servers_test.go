//go:build servers

package cart

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/wire"
)

// cluster starts a Redis Cluster of three nodes, a third of the slots each.
func cluster(t *testing.T) (addrs []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var nodes []rueidis.Client
	ports, err := ports.Free(6) // three for clients, three for the nodes among themselves
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		server := exec.Command("redis-server", "--port", fmt.Sprint(ports[i]), "--cluster-port", fmt.Sprint(ports[3+i]), "--bind", "127.0.0.1",
			"--cluster-enabled", "yes", "--dir", t.TempDir(), "--save", "", "--loglevel", "warning")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := server.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = server.Wait() // it was killed
		})
		addr := fmt.Sprintf("127.0.0.1:%d", ports[i])
		addrs = append(addrs, addr)
		for {
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
			if err == nil {
				nodes = append(nodes, c)
				defer c.Close()
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range nodes {
		err := c.Do(ctx, c.B().ClusterAddslotsrange().StartSlotEndSlot().StartSlotEndSlot(int64(i)*16384/3, int64(i+1)*16384/3-1).Build()).Error()
		for j := range nodes {
			meet := c.B().Arbitrary("CLUSTER", "MEET").Args("127.0.0.1", fmt.Sprint(ports[j]), fmt.Sprint(ports[3+j])).Build()
			err = errors.Join(err, c.Do(ctx, meet).Error())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range nodes {
		for {
			info, err := c.Do(ctx, c.B().ClusterInfo().Build()).ToString()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3") {
				break
			}
		}
	}
	return addrs
}

// Row E8: the SKUs of one cart live in different slots, on different nodes.
func TestCartsOnARedisCluster(t *testing.T) {
	t.Attr("row", "E8")
	addrs := cluster(t)
	redis, err := reserve.Open(reserve.Config{Addrs: addrs, Prefix: "c:"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	if err := redis.Arm(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := shopOn(t, backendtest.MySQL(t), redis, config())
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- s.shelf.Keep(ctx) }()
	t.Cleanup(func() { cancel(); <-kept })
	s.armed()
	var skus []int64
	var items []wire.CartItem
	for range 20 {
		skus = append(skus, s.sku(3))
		items = append(items, wire.CartItem{SKU: skus[len(skus)-1], Quantity: 2})
	}
	if n := len(redis.Client().Nodes()); n != 3 {
		t.Fatalf("the cluster has %d nodes", n)
	}
	first := s.place("ann", "k", items)
	if first.OrderID == nil || len(first.Results) != 20 {
		t.Fatalf("got %+v", first)
	}
	for _, r := range first.Results {
		if !r.OK {
			t.Errorf("got %+v", r)
		}
	}
	if again := s.place("bob", "k", items); again.OrderID != nil {
		t.Errorf("got %+v", again)
	}
	for _, sku := range skus {
		s.balanced(sku, 1, 2, 0)
	}
	if _, err := s.book.Pay(t.Context(), "ann", *first.OrderID); err != nil {
		t.Fatal(err)
	}
	s.begun("dan", "k", []wire.CartItem{{SKU: skus[0], Quantity: 1}, {SKU: skus[1], Quantity: 1}, {SKU: skus[2], Quantity: 1}})
	s.rest()
	for _, sku := range skus {
		s.balanced(sku, 1, 0, 2)
	}

	for addr, node := range redis.Client().Nodes() {
		if n, err := node.Do(t.Context(), node.B().Dbsize().Build()).AsInt64(); err != nil || n == 0 {
			t.Errorf("node %s has %d keys, %v", addr, n, err)
		}
	}

	// One node is started anew: all are forgotten, and loaded when they are asked for.
	for _, node := range redis.Client().Nodes() {
		if err := node.Do(t.Context(), node.B().ScriptFlush().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, _, err := s.Place(t.Context(), "eve", "k", items); err != nil && !errors.Is(err, reserve.ErrRestarted) { // nil: Keep was quicker
		t.Errorf("got %v, want ErrRestarted", err)
	}
	s.armed()
	if a := s.place("eve", "k", items); a.OrderID != nil {
		t.Errorf("got %+v", a)
	}
	for _, sku := range skus {
		s.balanced(sku, 1, 0, 2)
	}
}

// armed waits until Redis locks units.
func (s *shop) armed() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for armed := false; !armed; {
		var err error
		if armed, err = s.shelf.Armed(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
}

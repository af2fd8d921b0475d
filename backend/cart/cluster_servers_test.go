//go:build servers

package cart

import (
	"context"
	"errors"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/shared/wire"
)

// Row E8: the SKUs of one cart live in different slots, on different nodes.
func TestCartsOnARedisCluster(t *testing.T) {
	t.Attr("row", "E8")
	cluster := backendtest.RedisCluster(t, 3, 0).Store()
	if err := cluster.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := shopOn(t, backendtest.MySQL(t), cluster, config())
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- s.skus.Keep(ctx) }()
	t.Cleanup(func() { cancel(); <-kept })
	s.armed()
	var skus []int64
	var items []wire.CartItem
	for range 20 {
		skus = append(skus, s.sku(3))
		items = append(items, wire.CartItem{SKU: skus[len(skus)-1], Quantity: 2})
	}
	if n := len(cluster.Client().Nodes()); n != 3 {
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
	if _, err := s.orders.Pay(t.Context(), "ann", *first.OrderID); err != nil {
		t.Fatal(err)
	}
	s.begun("dan", "k", []wire.CartItem{{SKU: skus[0], Quantity: 1}, {SKU: skus[1], Quantity: 1}, {SKU: skus[2], Quantity: 1}})
	s.rest()
	for _, sku := range skus {
		s.balanced(sku, 1, 0, 2)
	}

	for addr, node := range cluster.Client().Nodes() {
		if n, err := node.Do(t.Context(), node.B().Dbsize().Build()).AsInt64(); err != nil || n == 0 {
			t.Errorf("node %s has %d keys, %v", addr, n, err)
		}
	}

	// One node is started anew: its SKUs are forgotten, and loaded when they are asked for.
	for _, node := range cluster.Client().Nodes() {
		if err := node.Do(t.Context(), node.B().ScriptFlush().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, _, err := s.Place(t.Context(), "eve", "k", items); err != nil && !errors.Is(err, redis.ErrRestarted) { // nil: Keep was quicker
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
		if armed, err = s.skus.Ready(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
}

//go:build servers

package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// pressed makes one order and returns its entry.
func pressed(t *testing.T, s *reserve.Store, sale int64, uid string) queued.Entry {
	t.Helper()
	r := reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Key: "k", Epoch: 1}
	v, err := s.Reserve(t.Context(), r)
	if err != nil || v.Answer != lua.Reserved {
		t.Fatalf("reserve: %+v, %v", v, err)
	}
	return r.Entry(v)
}

func confirmer(s *reserve.Store, p outbox.Publisher) *outbox.Confirmer {
	return outbox.NewConfirmer(outbox.ConfirmerConfig{Redis: s, Broker: p, Within: 10 * time.Second, Register: prometheus.NewRegistry()})
}

// spare runs a relay that is the safety net of a Confirmer.
func spare(t *testing.T, s *reserve.Store, p outbox.Publisher, after time.Duration) {
	t.Helper()
	r := outbox.NewRelay(outbox.RelayConfig{ReaderConfig: outbox.ReaderConfig{Redis: s, Live: sales(1),
		Name: "net", ClaimIdle: time.Minute, Log: backendtest.Log(t), Register: prometheus.NewRegistry()}, Broker: p, Spare: after})
	run(t, r.Run)
}

// holds waits until a consumer of the outbox of sale 1 holds n entries; before a relay has come there is no group.
func holds(t *testing.T, s *reserve.Store, name string, n int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	c := s.Client()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		list, err := c.Do(t.Context(), c.B().Xpending().Key(s.OutboxKey(1)).Group(reserve.Group).Start("-").End("+").Count(100).Consumer(name).Build()).ToArray()
		if err == nil && len(list) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s never held %d entries: %d, %v", name, n, len(list), err)
		}
	}
}

// What a Confirmer has published is not published again by the relay, and not by a repeat; what it has not, is.
func TestAConfirmedOrderIsPublishedOnce(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	load(t, s, 1)
	spare(t, s, b, 3*time.Second)
	c := confirmer(s, b)
	e := pressed(t, s, 1, "ann")
	holds(t, s, "net", 1)
	if err := c.Confirm(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	holds(t, s, outbox.Published, 1)
	if err := c.Again(t.Context(), 1, e.ID); err != nil || b.count() != 1 {
		t.Errorf("again: %v, %d published; want 1", err, b.count())
	}
	left := pressed(t, s, 1, "bob") // whoever pressed died before it published
	holds(t, s, outbox.Published, 2)
	if b.count() != 2 {
		t.Errorf("%d published, want 2: one by each", b.count())
	}
	if err := c.Again(t.Context(), 1, left.ID); err != nil || b.count() != 2 {
		t.Errorf("again: %v, %d published; want 2", err, b.count())
	}
	got := newCrowd(s)
	settle(t, b.Broker, got)
	got.until(t, "both orders", func() bool { return got.has([]string{e.ID, left.ID}) })
	if n := len(got.all()); n != 2 {
		t.Errorf("%d deliveries, want 2", n)
	}
	if err := c.Again(t.Context(), 1, e.ID); !errors.Is(err, outbox.ErrNotQueued) {
		t.Errorf("a retired order: got %v, want ErrNotQueued", err)
	}
}

// An order that Redis has lost, or that was reconciled, while it was published is not promised: MySQL decides.
func TestAnOrderThatMovedIsNotConfirmed(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	load(t, s, 1)
	c := confirmer(s, b)
	reload := func(token, epoch int64, orders ...reserve.Held) {
		t.Helper()
		if _, err := s.Shut(t.Context(), 1, token); err != nil {
			t.Fatal(err)
		}
		l := reserve.Loaded{Epoch: epoch, Stock: 10, Total: 10 + int64(len(orders)), Orders: orders, Definition: reserve.Definition{Version: 1, Ends: 1 << 50, Limit: 3}}
		if err := s.Load(t.Context(), 1, token, l); err != nil {
			t.Fatal(err)
		}
	}
	e := pressed(t, s, 1, "ann")
	reload(2, 2, reserve.Held{ID: e.ID, UID: e.UID, Quantity: 1, Slots: "1", Entry: e.Entry, At: e.At, Key: "k"})
	if err := c.Confirm(t.Context(), e); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("held in another epoch: got %v, want ErrMoved", err)
	}
	reload(3, 1)
	if err := c.Confirm(t.Context(), e); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("not held: got %v, want ErrMoved", err)
	}
	if err := c.Again(t.Context(), 1, e.ID); !errors.Is(err, reserve.ErrGateClosed) {
		t.Errorf("again, while the sale is written anew: got %v, want ErrGateClosed", err)
	}
	if err := s.Unlock(t.Context(), 1, 3); err != nil {
		t.Fatal(err)
	}
	if err := c.Again(t.Context(), 1, e.ID); !errors.Is(err, outbox.ErrNotQueued) {
		t.Errorf("again: got %v, want ErrNotQueued", err)
	}
	backendtest.Wipe(t, s, 1)
	if err := c.Confirm(t.Context(), e); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("redis is empty: got %v, want ErrMoved", err)
	}
	reload(4, 5, reserve.Held{ID: e.ID, UID: e.UID, Quantity: 1, Slots: "1", Entry: "-", At: e.At})
	if err := c.Again(t.Context(), 1, e.ID); !errors.Is(err, outbox.ErrNotQueued) {
		t.Errorf("loaded from MySQL: got %v, want ErrNotQueued", err)
	}
}

// Without a confirm nothing is known; the relay has the order all the same.
func TestWithoutAConfirmTheRelayPublishes(t *testing.T) {
	s, b := backendtest.Redis(t), watch(openBroker(t, backendtest.AMQP(t)))
	load(t, s, 1)
	e := pressed(t, s, 1, "ann")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := confirmer(s, b).Confirm(ctx, e); err == nil || errors.Is(err, outbox.ErrMoved) {
		t.Errorf("got %v, want an error of the broker's", err)
	}
	spare(t, s, b, 50*time.Millisecond)
	got := newCrowd(s)
	settle(t, b.Broker, got)
	got.until(t, "the order", func() bool { return got.has([]string{e.ID}) })
}

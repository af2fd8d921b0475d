//go:build servers

package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
)

// replicated is a Replicas that wants n replicas, and runs with the test.
func replicated(t testing.TB, s *reserve.Store, n int, within time.Duration) *outbox.Replicas {
	r := outbox.NewReplicas(outbox.ReplicasConfig{Redis: s, Count: n, Within: within, Register: prometheus.NewRegistry()})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// onPair is sale 1 on a primary with one replica.
func onPair(t testing.TB) (*backendtest.Pair, *reserve.Store) {
	t.Helper()
	pair := backendtest.RedisPair(t)
	s := pair.Store()
	if err := s.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	load(t, s, 1)
	return pair, s
}

// What the replica has acknowledged it has; what it has not is told apart, and promised once it is back.
func TestAnOrderWaitsForItsReplica(t *testing.T) {
	pair, s := onPair(t)
	r := replicated(t, s, 1, 20*time.Second)
	var all []queued.Entry
	for _, uid := range []string{"ann", "bob", "carol", "dave", "erin"} {
		all = append(all, pressed(t, s, 1, uid))
	}
	var wg sync.WaitGroup
	for _, e := range all { // at once: rounds are shared
		wg.Go(func() {
			if err := r.Confirm(t.Context(), e); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, e := range all {
		if got := pair.Replica.Do("HGET", "p:{sale:1}:orders", e.ID); !strings.HasPrefix(got, e.UID+" ") {
			t.Errorf("the replica has %q of %s's order", got, e.UID)
		}
		if err := r.Again(t.Context(), 1, e.ID); err != nil {
			t.Error(err)
		}
	}

	short := replicated(t, s, 1, time.Second)
	pair.Replica.Detach()
	late := pressed(t, s, 1, "frank")
	if err := short.Confirm(t.Context(), late); !errors.Is(err, outbox.ErrUnacknowledged) {
		t.Errorf("without the replica: got %v, want ErrUnacknowledged", err)
	}
	if err := short.Again(t.Context(), 1, late.ID); !errors.Is(err, outbox.ErrUnacknowledged) {
		t.Errorf("again, without the replica: got %v, want ErrUnacknowledged", err)
	}
	if two := replicated(t, s, 2, time.Second); !errors.Is(two.Confirm(t.Context(), late), outbox.ErrUnacknowledged) {
		t.Error("two replicas of one acknowledged it")
	}
	pair.Replica.Do("CONFIG", "SET", "masterauth", "")
	pair.Replica.Until("it follows again", pair.Replica.Follows)
	if err := r.Again(t.Context(), 1, late.ID); err != nil {
		t.Errorf("again, with the replica: %v", err)
	}
}

// An order that Redis has lost, or that was reconciled, is not promised, whatever its replica acknowledges.
func TestAnOrderThatMovedIsNotReplicated(t *testing.T) {
	_, s := onPair(t)
	r := replicated(t, s, 1, 20*time.Second)
	e, kept := pressed(t, s, 1, "ann"), pressed(t, s, 1, "bob")
	older := e
	older.Epoch--
	if err := r.Confirm(t.Context(), older); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("held in another epoch: got %v, want ErrMoved", err)
	}
	c := s.Client()
	if err := c.Do(t.Context(), c.B().Hdel().Key("p:{sale:1}:orders").Field(e.ID).Build()).Error(); err != nil { // as an older copy has it
		t.Fatal(err)
	}
	got := make(chan error, 2)
	for _, e := range []queued.Entry{e, kept} {
		go func() { got <- r.Confirm(t.Context(), e) }()
	}
	errs := []error{<-got, <-got}
	if !slices.Contains(errs, nil) || !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, outbox.ErrMoved) }) {
		t.Errorf("one is lost, the other held: got %v, want ErrMoved and nil", errs)
	}
	backendtest.Wipe(t, s, 1)
	if err := r.Confirm(t.Context(), kept); !errors.Is(err, outbox.ErrMoved) {
		t.Errorf("redis is empty: got %v, want ErrMoved", err)
	}
}

//go:build servers

package gateways

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// Two backends keep the reports of gateways: each knows all of them, and forgets the silent ones.
func TestEachBackendKnowsEachGateway(t *testing.T) {
	r, clk := backendtest.Redis(t).Client(), &clock.Clock{}
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	pass := func(d time.Duration) {
		now = now.Add(d)
		clk.Set(now, time.Now())
	}
	pass(0)
	one, other := New(r, clk), New(r, clk)
	report := func(name, life string, presses int64) wire.GatewayReport {
		return wire.GatewayReport{Name: name, Life: life, Presses: map[string]int64{"ok": presses}}
	}
	names := func(s *Store) (list string) {
		t.Helper()
		all, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range all {
			list += fmt.Sprintf("%s:%d ", g.Name, g.Presses["ok"])
		}
		return list
	}
	take := func(s *Store, r wire.GatewayReport) {
		t.Helper()
		if err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	take(one, report("b", "1", 1))
	take(other, report("a", "1", 2))
	if got := names(one) + names(other); got != "a:2 b:1 a:2 b:1 " {
		t.Errorf("got %s", got)
	}
	take(one, report("b", "1", 5)) // too soon
	if got := names(other); got != "a:2 b:1 " {
		t.Errorf("a report that comes too soon: got %s", got)
	}
	take(one, report("b", "2", 6)) // it was started anew
	pass(time.Second)
	take(other, report("a", "1", 7))
	if got := names(one); got != "a:7 b:6 " {
		t.Errorf("got %s", got)
	}
	pass(Forget - time.Second/2)
	if got := names(one); got != "a:7 " {
		t.Errorf("a silent gateway: got %s", got)
	}
	if n, err := r.Do(t.Context(), r.B().Hlen().Key(one.key()).Build()).AsInt64(); err != nil || n != 1 {
		t.Errorf("Redis has %d fields, %v; want 1", n, err)
	}
	if ttl, err := r.Do(t.Context(), r.B().Pttl().Key(one.key()).Build()).AsInt64(); err != nil || ttl < 1 || ttl > Forget.Milliseconds() {
		t.Errorf("the key lives for %d ms, %v", ttl, err)
	}
}

// A gateway more than there is room for is refused, by the process that took the others and by one that did not. Those that are known
// are taken still.
func TestTooManyGateways(t *testing.T) {
	r, clk := backendtest.Redis(t).Client(), &clock.Clock{}
	clk.Set(time.Now(), time.Now())
	one, other := New(r, clk), New(r, clk)
	for i := range Max {
		if err := one.Take(t.Context(), wire.GatewayReport{Name: fmt.Sprint("g", i), Life: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*Store{one, other} {
		if err := s.Take(t.Context(), wire.GatewayReport{Name: "more", Life: "1"}); !errors.Is(err, ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		if err := s.Take(t.Context(), wire.GatewayReport{Name: "g7", Life: "2"}); err != nil {
			t.Errorf("a known gateway: %v", err)
		}
	}
	if all, err := other.List(t.Context()); len(all) != Max || err != nil {
		t.Errorf("got %d gateways, %v; want %d", len(all), err, Max)
	}
}

// While Redis is away, a backend still tells what it heard itself.
func TestReportsWithoutRedis(t *testing.T) {
	r, clk := backendtest.Redis(t).Client(), &clock.Clock{}
	clk.Set(time.Now(), time.Now())
	s := New(r, clk)
	if err := s.Take(t.Context(), wire.GatewayReport{Name: "a", Life: "1"}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := s.Take(t.Context(), wire.GatewayReport{Name: "a", Life: "2", Generation: 7}); err == nil {
		t.Error("Redis is away: got no error")
	}
	if all, err := s.List(t.Context()); err == nil || len(all) != 1 || all[0].Generation != 7 {
		t.Errorf("got %+v, %v; want what it heard, and an error", all, err)
	}
}

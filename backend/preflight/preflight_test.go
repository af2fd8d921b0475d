package preflight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"floodgate.internal/shared/wire"
)

// A check that gets no answer is a no-go after Patience, whether it heeds its context or not, and holds up no other.
func TestChecksHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		began := time.Now()
		checks := Run(t.Context(), []Row{
			{"deaf", "a", "b", func(context.Context) (Result, error) { <-hang; return Result{}, nil }},
			{"patient", "a", "b", func(ctx context.Context) (Result, error) { <-ctx.Done(); return Result{}, ctx.Err() }},
			{"good", "a", "b", func(context.Context) (Result, error) { return Result{Value: "v", OK: true}, nil }},
			{"broken", "a", "b", func(context.Context) (Result, error) { return Result{OK: true}, errors.New("away") }},
			{"low", "a", "b", func(context.Context) (Result, error) { return Result{Value: "1", Want: "2", Do: "more"}, nil }},
		})
		close(hang)
		if took := time.Since(began); took != Patience {
			t.Errorf("it took %v", took)
		}
		if checks[0] != (Check{Name: "deaf", Value: "not known: no answer within 10s", Want: "a", Do: "b"}) || checks[1].OK || checks[2] != (Check{Name: "good", OK: true, Value: "v", Want: "a"}) ||
			checks[3] != (Check{Name: "broken", Value: "not known: away", Want: "a", Do: "b"}) || checks[4] != (Check{Name: "low", Value: "1", Want: "2", Do: "more"}) {
			t.Errorf("got %+v", checks)
		}
	})
}

func TestInOrder(t *testing.T) {
	row := func(name string, ok bool) Row {
		return Row{name, "a", "b", func(context.Context) (Result, error) { return Result{Value: "v", OK: ok}, nil }}
	}
	got := InOrder(t.Context(), []Row{row("one", true), row("two", false), row("three", true)})
	if !got[0].OK || got[1].OK || got[2] != (Check{Name: "three", Value: "not looked at", Want: "a", Do: "see to two first"}) {
		t.Errorf("got %+v", got)
	}
}

func TestDecide(t *testing.T) {
	r := Report{Checks: []Check{{Name: "a", OK: true}, {Name: "b"}, {Name: "c"}}}
	for _, c := range []struct {
		accept []string
		goes   bool
		bad    bool
	}{{nil, false, false}, {[]string{"b"}, false, false}, {[]string{"b", "c"}, true, false}, {[]string{"b", "c", "d"}, true, true}, {[]string{""}, true, true}, {[]string{"a"}, false, false}} {
		err := r.Decide(c.accept)
		if (err != nil) != c.bad || err == nil && r.Go != c.goes || r.Checks[0].Accepted {
			t.Errorf("%q: got %+v, %v", c.accept, r, err)
		}
	}
}

func TestARehearsalIsHeldAgainstTheSale(t *testing.T) {
	now := time.Now()
	r := Rehearsal{At: wire.At(now.Add(-48 * time.Hour)), Shoppers: 1000, Stock: 100, Good: true}
	for _, c := range []struct {
		stock, shoppers int64
		good, ok        bool
	}{{100, 0, true, true}, {100, 1000, true, true}, {101, 0, true, false}, {100, 1001, true, false}, {100, 0, false, false}} {
		r.Good = c.good
		if got := r.Check(c.stock, c.shoppers, now); got.OK != c.ok || (got.Do == "") != c.ok {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
}

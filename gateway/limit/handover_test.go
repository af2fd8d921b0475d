package limit

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What a table hands over decides elsewhere as it would have here: no token is gained or lost, also by keys that drew on the overflow
// buckets, and under a new rule. What is taken back decides here again.
func TestHandOver(t *testing.T) {
	law := NewRule("order", 3, start, Law{Rate: 0.1, Burst: 2}, Law{Rate: 0.01, Burst: 3})
	fill := func() *Buckets[string] {
		b := table()
		for i := range 6 { // three have no room
			b.Take(fmt.Sprint(i), law, at(0))
		}
		b.Take("0", law, at(time.Second))
		return b
	}
	for _, newer := range []*Rule{law, NewRule("order", 100, at(20*time.Second), Law{Rate: 10, Burst: 1000}, Law{Rate: 0.01, Burst: 3})} {
		stays, old, next := fill(), fill(), table()
		asked := 0
		for part := range old.Parts() {
			l := old.HandOver(part, law, at(2*time.Second), func(key string) (Decision, bool) {
				asked++
				d, err := next.TakeText(key, newer, at(20*time.Second))
				return d, err == nil
			})
			if err := next.TakeOver(l, newer, at(2*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		for i, key := range []string{"0", "0", "0", "1", "2", "2", "9"} {
			want := stays.Take(key, law, at(20*time.Second))
			if newer != law {
				want = stays.Take(key, newer, at(20*time.Second))
				continue
			}
			if got := old.Take(key, law, at(20*time.Second)); got.OK != want.OK || got.Rule != law || !want.OK && (got.Wait-want.Wait).Abs() > time.Microsecond {
				t.Errorf("%d, key %s: got %+v, want %+v", i, key, got, want)
			}
		}
		if _, refused := old.Refuses("1", law, at(20*time.Second)); refused {
			t.Error("the old table decides about what it has handed over")
		}
		if newer == law && asked != 7 {
			t.Errorf("%d decisions elsewhere, want 7", asked)
		}
		old.TakeBack()
		same := fill()
		for range 3 {
			if got, want := old.Take("1", law, at(20*time.Second)), same.Take("1", law, at(20*time.Second)); got.OK != want.OK {
				t.Errorf("taken back: got %+v, want %+v", got, want)
			}
		}
	}
}

func TestHandOverOfGlobal(t *testing.T) {
	law, bounds := NewRule("global", 0, start, Law{Rate: 1, Burst: 3}), WaitBounds{}
	old, next := NewGlobal("global", prometheus.NewRegistry()), NewGlobal("global", prometheus.NewRegistry())
	old.Take(law, bounds, at(0))
	old.Take(law, bounds, at(0))
	l := old.HandOver(law, at(0), func(string) (Decision, bool) { return next.Take(law, bounds, at(0)), true })
	l.Tokens[0] -= 3 // as if three more waited for theirs
	if err := next.TakeOver(l, law, at(0)); err != nil {
		t.Fatal(err)
	}
	if d := old.Take(law, bounds, at(0)); d.OK || d.Wait != 3*time.Second {
		t.Errorf("got %+v, want a wait of 3 s", d)
	}
	old.TakeBack()
	if d := old.Take(law, bounds, at(0)); !d.OK {
		t.Errorf("taken back: got %+v", d)
	}
}

func TestLevelsThatCannotBe(t *testing.T) {
	law := one("x", 1, 2, 10, start)
	good := func() Levels {
		return Levels{Laws: [][]Law{{{Rate: 1, Burst: 2}}}, Keys: []string{"a"}, Rules: []int{0}, Ages: []int64{1}, Tokens: []float64{1, 0, 0}}
	}
	if err := table().TakeOver(good(), law, start); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Levels){
		"too many tokens": func(l *Levels) { l.Tokens[0] = 2.5 },
		"no number":       func(l *Levels) { l.Tokens[0] = math.NaN() },
		"infinite debt":   func(l *Levels) { l.Tokens[0] = math.Inf(-1) },
		"the future":      func(l *Levels) { l.Ages[0] = -1 },
		"no such rule":    func(l *Levels) { l.Rules[0] = 1 },
		"no rate":         func(l *Levels) { l.Laws[0][0].Rate = 0 },
		"no laws":         func(l *Levels) { l.Laws[0] = nil },
		"too few tokens":  func(l *Levels) { l.Tokens = l.Tokens[:2] },
		"a long key":      func(l *Levels) { l.Keys[0] = string(make([]byte, maxKey+1)) },
	} {
		l := good()
		spoil(&l)
		if err := table().TakeOver(l, law, start); !errors.Is(err, errLevels) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := New[[16]byte]("ip", prometheus.NewRegistry()).TakeText("short", law, start); !errors.Is(err, errLevels) {
		t.Errorf("a short address: got %v", err)
	}
}

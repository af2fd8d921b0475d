package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Two rules hold at once in one table: whatever is evicted or has no room meanwhile, no key of the strict one is admitted more often
// than its law says, and a key of the other one is admitted as often as its own law says while it has buckets.
func TestTogether(t *testing.T) {
	start := time.Now()
	before := NewRule("r", 600, start, Law{Rate: 1, Burst: 2})
	held, tried := NewRule("r", 600, start.Add(time.Minute), Law{Rate: 1, Burst: 2}), NewRule("r", 600, start.Add(time.Minute), Law{Rate: 5, Burst: 20}, Law{Rate: 5, Burst: 30})
	Together(held, tried)
	b := New[string]("r", prometheus.NewRegistry())
	rnd := rand.New(rand.NewPCG(1, 2))
	admitted := map[string][]time.Duration{}
	overflow, switched := 0, 0
	for at := time.Duration(0); at < 3*time.Minute; at += time.Duration(rnd.IntN(2000)) * time.Microsecond {
		i := rnd.IntN(900)
		if rnd.IntN(2) == 0 {
			i = rnd.IntN(30) // some ask often
		}
		key, rule := fmt.Sprint(i), before
		if at >= time.Minute {
			if rule = held; i%3 == 0 {
				rule = tried
			}
		}
		d := b.Take(key, rule, start.Add(at))
		if d.Overflow {
			overflow++
			if d.Rule == tried {
				t.Fatal("the overflow buckets are under the rule that is tried")
			}
		} else if at >= time.Minute && d.Rule != rule {
			t.Fatalf("%s was decided under another rule", key)
		}
		if d.OK && i%3 != 0 {
			admitted[key] = append(admitted[key], at)
		}
		if d.OK && d.Remaining > 2 {
			switched++
		}
	}
	if overflow == 0 || switched == 0 || b.Len() > 600 {
		t.Errorf("%d by the overflow buckets, %d with the larger burst, %d keys", overflow, switched, b.Len())
	}
	for key, times := range admitted {
		for i := range times {
			for j := i; j < len(times); j++ {
				if n, most := float64(j-i+1), 2+(times[j]-times[i]).Seconds()+1e-6; n > most {
					t.Fatalf("%s was admitted %v times in %v", key, n, times[j]-times[i])
				}
			}
		}
	}
}

// A key keeps its tokens although others, under the stricter rule, look for room.
func TestTogetherTakesNoTokens(t *testing.T) {
	start := time.Now()
	held, tried := NewRule("r", 10_000, start, Law{Rate: 1, Burst: 20}), NewRule("r", 10_000, start, Law{Rate: 1, Burst: 1})
	Together(held, tried)
	b := New[string]("r", prometheus.NewRegistry())
	for i := range 1000 {
		b.Take(fmt.Sprint("held", i), held, start)
	}
	for i := range 1000 {
		b.Take(fmt.Sprint("tried", i), tried, start)
	}
	for i := range 1000 {
		if d := b.Take(fmt.Sprint("held", i), held, start); d.Remaining != 18 {
			t.Fatalf("held%d has %d tokens left, want 18", i, d.Remaining)
		}
	}
}

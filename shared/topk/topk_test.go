package topk

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// A crowd of many more clients than counters: each count holds what is true, and whoever asked more than their share is there.
func TestSpaceSavingKeepsItsWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		s := NewSketch[int](Size)
		asked, refused := map[int]uint64{}, map[int]uint64{}
		clients := rapid.IntRange(1, 5*Size).Draw(t, "clients")
		total := uint64(rapid.IntRange(1, 20*Size).Draw(t, "requests"))
		for range total {
			c := int(float64(clients) * r.Float64() * r.Float64() * r.Float64()) // some ask more than others
			no := r.IntN(2) == 0
			e := s.Add(c, 1)
			asked[c]++
			if no {
				e.Marked++
				refused[c]++
			}
		}
		if len(s.heap) > Size || len(s.byKey) != len(s.heap) {
			t.Fatalf("%d counters, %d clients; want at most %d", len(s.heap), len(s.byKey), Size)
		}
		for _, c := range s.heap {
			if n := asked[c.Key]; c.Count < n || c.Count-c.Over > n || c.Marked > refused[c.Key] {
				t.Fatalf("client %d asked %d times and was refused %d times; got %+v", c.Key, n, refused[c.Key], c.Entry)
			}
		}
		for c, n := range asked {
			if n > total/Size && s.byKey[c] == nil {
				t.Fatalf("client %d asked %d times of %d and is not there", c, n, total)
			}
		}
	})
}

func TestTheMinuteBeforeCounts(t *testing.T) {
	tab := NewTable[string]()
	add := func(client string, n int, at time.Time) {
		for range n {
			tab.Add(client, client == "bob", at)
		}
	}
	want := func(at time.Time, want string) {
		t.Helper()
		since, top := tab.Top(2, at)
		if got := fmt.Sprint(since.Format("15:04"), top); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	add("ann", 2, noon)
	add("bob", 3, noon)
	add("cyd", 1, noon)
	want(noon, "11:59[{bob 3 0 3} {ann 2 0 0}]")
	add("ann", 2, noon.Add(time.Minute))
	want(noon.Add(time.Minute), "12:00[{ann 4 0 0} {bob 3 0 3}]")
	add("ann", 1, noon) // a reading of the clock that was late
	want(noon.Add(2*time.Minute), "12:01[{ann 3 0 0}]")
	add("cyd", 1, noon.Add(3*time.Minute))
	want(noon.Add(3*time.Minute), "12:02[{cyd 1 0 0}]")
	want(noon.Add(5*time.Minute), "12:04[]")
}

// In a second with more requests than are counted one by one, a count is an estimate: of 160,000 requests within 10 %, which
// is more than eight times the deviation to be expected.
func TestABusySecondIsEstimated(t *testing.T) {
	tab := NewTable[string]()
	const n = 160_000
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range n / 8 {
				tab.Add("ann", false, noon)
			}
		})
	}
	all.Wait()
	if _, top := tab.Top(1, noon); len(top) != 1 || top[0].Count < n*9/10 || top[0].Count > n*11/10 {
		t.Errorf("got %+v, want about %d requests", top, n)
	}
	tab.Add("bob", false, noon.Add(time.Second)) // and the second after it is quiet again
	if _, top := tab.Top(2, noon.Add(time.Second)); len(top) != 2 || top[1].Count != 1 {
		t.Errorf("got %+v, want bob's one request", top)
	}
}

func BenchmarkAdd(b *testing.B) {
	tab := NewTable[[16]byte]()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for pb.Next() {
			n := r.Uint32()
			tab.Add([16]byte{byte(n), byte(n >> 8), byte(n >> 16)}, true, noon)
		}
	})
}

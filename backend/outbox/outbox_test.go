package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

func TestAFailingSaleIsTriedAgainLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p progress
		last := time.Duration(0)
		for range 10 {
			p.failed()
			pause := time.Until(p.next)
			if !p.behind || pause < last || pause > 3*time.Second || pause < 100*time.Millisecond {
				t.Errorf("the pause is %v, after %v", pause, last)
			}
			last = pause
		}
		if last != 3*time.Second {
			t.Errorf("the pause ends at %v, want 3s", last)
		}
	})
}

// A sale of which nobody holds anything is looked at less often, and never forgotten.
func TestCalmSalesTakeTurns(t *testing.T) {
	w := &worker{known: map[int64]*progress{}}
	looks := map[int64]int{}
	for sale := range int64(100) {
		w.known[sale] = &progress{calm: calmRounds - int(sale%2)} // every second one is not calm yet
	}
	for range calmEvery {
		w.rounds++
		for sale := range w.known {
			if w.due(sale) {
				looks[sale]++
			}
		}
	}
	for sale := range w.known {
		if want := []int{1, calmEvery}[sale%2]; looks[sale] != want {
			t.Errorf("sale %d: got %d looks in %d rounds, want %d", sale, looks[sale], calmEvery, want)
		}
	}
}

func TestRowsTellOrdersFromWhatIsNone(t *testing.T) {
	const id = "0190163d-8694-739b-aea5-966c26f8ad91-42"
	got := rows(42, []rueidis.XRangeEntry{
		{ID: "1-1", FieldValues: map[string]string{"id": id, "uid": "ann", "quantity": "1", "slots": "1", "epoch": "1", "at": "1"}},
		{ID: "1-2", FieldValues: map[string]string{"id": id}},
		{ID: "1-3"},
	})
	if len(got) != 3 || got[0].err != nil || got[0].gone || got[0].entry.ID != id || got[1].err == nil || got[1].gone || !got[2].gone {
		t.Errorf("got %+v", got)
	}
}

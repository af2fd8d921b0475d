package standin

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/timeline"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// The stand-in keeps the records of timelines as the real server does: each batch once, added up, and prunes them.
func TestTimelinesAreKept(t *testing.T) {
	_, db := openMySQL(t, 1)
	clk := &clock.Clock{}
	s := timeline.New(timeline.Config{DB: db, Clock: clk, Keep: time.Hour, MaxRows: 250, Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry()})
	now, long := wire.At(time.Now()), wire.At(time.Now().Add(-2*time.Hour))
	for seq := range int64(3) {
		b := &verdict.Batch{Gateway: "g", Seq: seq + 1}
		for i := range 100 {
			b.Records = append(b.Records, verdict.Record{Sale: 1, UID: fmt.Sprint("u", int64(i)+seq%2*100), Rule: verdict.OrderLimit, First: long, Last: long, Count: 1})
		}
		b.Records = append(b.Records, verdict.Record{Sale: 2, UID: "ann", Rule: verdict.SoldOut, First: long, Last: now, Count: 2})
		for range 2 {
			if err := s.Take(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := count(t, db, `SELECT COUNT(*) FROM timeline WHERE sale_id = 1`); n != 200 || count(t, db, `SELECT SUM(times) FROM timeline WHERE sale_id = 1`) != 300 ||
		count(t, db, `SELECT times FROM timeline WHERE sale_id = 2`) != 6 || count(t, db, `SELECT held FROM timeline_sales WHERE sale_id = 1`) != 200 {
		t.Errorf("%d rows are kept, want 200 with 300 presses, and one of another sale with 6", n)
	}
	for _, want := range []int{200, 0} {
		if n, err := s.Prune(t.Context()); n != want || err != nil {
			t.Errorf("got %d, %v; want %d", n, err, want)
		}
	}
	if n := count(t, db, `SELECT COUNT(*) FROM timeline`); n != 1 {
		t.Errorf("%d rows are left, want the young one", n)
	}
}

//go:build servers

package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// narrow lets one order at a time be decided.
func narrow(perUnit int) Limits {
	return Limits{InFlight: 200, Waiting: 1, Connections: 300, Queued: 1000, Lag: time.Hour,
		Line: admission.Limits{Slots: 1, Waiting: 150, PerUnit: perUnit, Wait: time.Minute}}
}

// until asks again and again whether something has come about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it never came about: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// decided is how often sale_reserve.lua was asked.
func (w *working) decided() uint64 {
	w.t.Helper()
	families, err := w.Register.(*prometheus.Registry).Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "backend_reserve_duration_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	w.t.Fatal("there is no such metric")
	return 0
}

// queue presses for n users while the line's only slot is taken, and returns when all of them wait; open frees the slot
// and returns their answers.
func (w *working) queue(sale int64, n int) (open func() []*fasthttp.Response) {
	w.t.Helper()
	if err := w.line.Enter(sale, func() (int64, bool) { return 0, false }); err != nil {
		w.t.Fatal(err)
	}
	answers := make([]*fasthttp.Response, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i] = w.press(fmt.Sprint("u", i), sale, "", "") })
	}
	until(w.t, "they wait", func() bool { return w.line.Waiting() == n })
	return func() []*fasthttp.Response {
		w.line.Leave()
		wg.Wait()
		return answers
	}
}

// Row D4: of a hundred in line for twenty units twenty are decided; with the last unit the others are told, unasked.
func TestOnlyAsManyAreDecidedAsThereIsStock(t *testing.T) {
	t.Attr("row", "D4")
	w := work(t, narrow(1000), os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 20})
	if err := w.Reconciler.Load(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil { // its epoch is known
		t.Fatal(err)
	}
	before := w.decided()
	open := w.queue(sale, 100)
	sold := 0
	for _, res := range open() {
		if res.StatusCode() == 202 {
			sold++
		} else {
			wantProblem(t, res, problem.SoldOut, "")
		}
	}
	if got := w.decided() - before; sold != 20 || got != 20 {
		t.Errorf("%d got an order, Redis was asked %d times; want 20 each", sold, got)
	}
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Outbox) != 20 {
		t.Errorf("%d orders are on their way to MySQL, %v; want 20", len(snap.Outbox), err)
	}
}

// Row D12: the line is told, too, when another process has sold the last unit.
func TestTheLineIsToldWhatAnotherProcessSold(t *testing.T) {
	t.Attr("row", "D12")
	w := work(t, narrow(1000), os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 3})
	other := workOn(t, narrow(1000), os.Getenv("REDIS_ADDR"), w.redis, w.db)
	accepted(t, other.press("first", sale, "", ""))
	until(t, "what is left is known", func() bool { left, known := w.Catalog.Left(sale); return known && left == 2 })
	open := w.queue(sale, 50)
	accepted(t, other.press("second", sale, "", ""))
	accepted(t, other.press("third", sale, "", ""))
	until(t, "nobody waits", func() bool { return w.line.Waiting() == 0 }) // though no turn has come
	wantProblem(t, w.press("late", sale, "", ""), problem.SoldOut, "")
	for _, res := range open() {
		wantProblem(t, res, problem.SoldOut, "")
	}
	if got := w.decided(); got != 0 {
		t.Errorf("Redis was asked %d times for nothing", got)
	}
}

// Row D12: a line that is longer than what is left is worth is refused, and not as sold out.
func TestALineLongerThanWhatIsLeftIsRefused(t *testing.T) {
	t.Attr("row", "D12")
	w := work(t, narrow(4), os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 3})
	if err := w.Reconciler.Load(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	open := w.queue(sale, 12)
	wantProblem(t, w.press("late", sale, "", ""), problem.Overloaded, "too many orders are waiting for what is left")
	sold := 0
	for _, res := range open() {
		if res.StatusCode() == 202 {
			sold++
		}
	}
	if sold != 3 {
		t.Errorf("%d got an order, want 3", sold)
	}
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil || snap.State.Stock != 0 {
		t.Errorf("stock %d, %v; want 0", snap.State.Stock, err)
	}
}

// Whoever waits is answered when the server ends.
func TestAShutdownAnswersTheLine(t *testing.T) {
	w := work(t, narrow(1000), os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{})
	open := w.queue(sale, 5)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		ended <- w.Shutdown(ctx)
	}()
	until(t, "nobody waits", func() bool { return w.line.Waiting() == 0 })
	for _, res := range open() {
		wantProblem(t, res, problem.Overloaded, "no orders are taken any more")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An order for which nobody waits any more is not begun, however far it has come; and one that is begun in time is as good as
// any other.
func TestNothingIsBegunForWhoHasGone(t *testing.T) {
	w := work(t, narrow(1000), os.Getenv("REDIS_ADDR"))
	sale := backendtest.Sale(t, w.db, backendtest.SaleOptions{Stock: 3})
	if err := w.Reconciler.Load(t.Context(), sale); err != nil {
		t.Fatal(err)
	}
	if err := w.Catalog.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	press := func(uid string, until time.Time) *fasthttp.Response {
		req := w.request("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), "")
		req.Header.Set(signing.HeaderDeadline, strconv.FormatInt(until.UnixMilli(), 10))
		return w.signed(req, uid)
	}
	wantProblem(t, press("gone", w.clock.Now().Add(-time.Millisecond)), problem.Overloaded, "came too late for its answer; nothing was done")
	req := reserve.Request{Sale: sale, UID: "in line", Quantity: 1, OrderID: wire.NewOrderID(uuid.NewString(), sale)}
	if _, err := w.Server.reserve(t.Context(), &req, w.clock.Now().Add(-time.Millisecond)); !errors.Is(err, admission.ErrLate) {
		t.Errorf("its turn came too late: got %v, want %v", err, admission.ErrLate)
	}
	if got := w.decided(); got != 0 {
		t.Errorf("Redis was asked %d times", got)
	}
	if w.line.Waiting() != 0 || w.line.Enter(sale, nil) != nil {
		t.Error("who has gone keeps a place")
	}
	w.line.Leave()
	accepted(t, press("there", w.clock.Now().Add(time.Hour)))
	snap, err := w.redis.Snapshot(t.Context(), sale)
	if err != nil || len(snap.Outbox) != 1 {
		t.Errorf("%d orders, %v; want 1", len(snap.Outbox), err)
	}
	if got := testutil.ToFloat64(w.metrics.shed[shedLate]); got != 2 {
		t.Errorf("%v counted, want 2", got)
	}
}

// BenchmarkPress is an order from the request in hand to its 202, pressed by 512 at once, by how many of them are decided
// at once. With 1024 nobody waits.
func BenchmarkPress(b *testing.B) {
	for _, slots := range []int{1, 128, 512, 1024} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			limits := Limits{InFlight: 2000, Waiting: 1, Connections: 1, Queued: 1 << 40, Lag: time.Hour,
				Line: admission.Limits{Slots: slots, Waiting: 1000, PerUnit: 1000, Wait: time.Minute}}
			w := work(b, limits, os.Getenv("REDIS_ADDR"))
			sale := backendtest.Sale(b, w.db, backendtest.SaleOptions{Stock: 1 << 40})
			accepted(b, w.press("first", sale, "", ""))
			var n atomic.Int64
			b.SetParallelism(512 / runtime.GOMAXPROCS(0))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				var ctx fasthttp.RequestCtx
				for pb.Next() {
					ctx.Response.Reset()
					ctx.Request.Reset()
					ctx.Request.Header.SetMethod("POST")
					ctx.Request.SetRequestURI(fmt.Sprintf("/v1/sales/%d/orders", sale))
					w.signer.Sign(&ctx.Request, fmt.Sprint("u", n.Add(1)), w.clock.Now())
					w.serve(&ctx)
					if ctx.Response.StatusCode() != 202 {
						b.Errorf("got %d %s", ctx.Response.StatusCode(), ctx.Response.Body())
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
		})
	}
}

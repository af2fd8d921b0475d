package upstream

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
)

// held is a pool whose backend holds every request until release.
type held struct {
	t       *testing.T
	pool    *Pool
	reg     *prometheus.Registry
	entered chan struct{}
	release chan struct{}
	wg      sync.WaitGroup
}

func hold(t *testing.T, inFlight, perSale int) *held {
	h := &held{t: t, reg: prometheus.NewRegistry(), entered: make(chan struct{}), release: make(chan struct{})}
	s := serve(t, func(_ int, c *side) bool {
		h.entered <- struct{}{}
		<-h.release
		c.say("ok")
		return true
	})
	h.pool = New(Config{Backends: []string{s.Addr().String()}, Key: signing.Key{ID: "k", Secret: "0123456789abcdef0123456789abcdef"},
		Timeout: time.Minute, MaxInFlight: inFlight, MaxPerSale: perSale, MaxWaiting: 2}, &clock.Clock{}, h.reg)
	t.Cleanup(h.pool.Close)
	return h
}

// sends reports whether r is sent; it is held then. Full must have said so, and counted it, as Do does.
func (h *held) sends(r Request) (sent bool) {
	h.t.Helper()
	r.Method, r.Target = "POST", "/x"
	full := h.pool.Full(r.Class, r.Sale)
	defer func() {
		if full == sent {
			h.t.Errorf("%+v: Full says %v, sent %v", r, full, sent)
		}
	}()
	done := make(chan error, 1)
	h.wg.Go(func() {
		var resp fasthttp.Response
		done <- h.pool.Do(&r, &resp)
	})
	select {
	case <-h.entered:
		h.wg.Go(func() {
			if err := <-done; err != nil {
				h.t.Error(err)
			}
		})
		return true
	case err := <-done:
		if !errors.Is(err, ErrBusy) {
			h.t.Errorf("got %v, want %v", err, ErrBusy)
		}
		return false
	}
}

func (h *held) refused(by string) float64 {
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "gateway_upstream_refused_total" && m.GetLabel()[0].GetValue() == by {
				return m.GetCounter().GetValue()
			}
		}
	}
	h.t.Fatalf("no refusals by %s", by)
	return 0
}

// When places are short pages are refused first, then new orders; order status, payments and the like have every place.
func TestLowerClassesAreRefusedFirst(t *testing.T) {
	h := hold(t, 10, 10)
	all := func(c Class, want bool) {
		t.Helper()
		if got := h.sends(Request{Class: c, Sale: int64(c)}); got != want { // Order is 1, and a sale's
			t.Errorf("class %d with %d in flight: sent %v, want %v", c, h.pool.InFlight(), got, want)
		}
	}
	for range 6 {
		all(Page, true)
	}
	all(Page, false)
	all(Order, true)
	all(Page, false)
	all(Order, true)
	all(Order, false)
	all(Settle, true)
	all(Order, false)
	all(Settle, true)
	all(Settle, false)
	for by, want := range map[string]float64{"page": 4, "order": 4, "settle": 2, "sale": 0} {
		if got := h.refused(by); got != want {
			t.Errorf("%v refused by %s, want %v", got, by, want)
		}
	}
	if n := len(h.pool.sales.orders); n != 2 { // of pages, as this test numbers them, and orders
		t.Errorf("%d sales are counted", n)
	}
	close(h.release)
	h.wg.Wait()
	if h.pool.InFlight() != 0 || len(h.pool.sales.orders) != 0 {
		t.Errorf("%d in flight, %v afterwards", h.pool.InFlight(), h.pool.sales.orders)
	}
}

// A crowd that is refused never hides a place from who may have it.
func TestARefusedCrowdTakesNoPlace(t *testing.T) {
	h := hold(t, 10, 10)
	for _, c := range []Class{Page, Page, Page, Page, Page, Page, Order, Order, Settle} { // one place is left, and not to pages
		if !h.sends(Request{Class: c}) {
			t.Fatal("there is room")
		}
	}
	var crowd sync.WaitGroup
	var refused atomic.Int64
	end := make(chan struct{})
	for range 4 {
		crowd.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				if h.pool.acquire(h.pool.current.Load(), &Request{Class: Page}) == nil {
					t.Error("a page got a reserved place")
					return
				}
				refused.Add(1)
			}
		})
	}
	for refused.Load() < 200_000 && !t.Failed() {
		r := &Request{Class: Settle}
		if err := h.pool.acquire(h.pool.current.Load(), r); err != nil {
			t.Errorf("got %v with 9 of 10 in flight", err)
			break
		}
		h.pool.release(r)
	}
	close(end)
	crowd.Wait()
	close(h.release)
	h.wg.Wait()
}

// One sale's crowd leaves places to the others.
func TestOneSaleDoesNotTakeAllPlaces(t *testing.T) {
	h := hold(t, 100, 3)
	order := func(sale int64) bool { return h.sends(Request{Class: Order, Sale: sale}) }
	for range 3 {
		if !order(1) {
			t.Error("refused below the bound")
		}
	}
	if order(1) || h.refused("sale") != 2 {
		t.Errorf("a fourth was sent; %v refused", h.refused("sale"))
	}
	if !order(2) || !h.sends(Request{}) {
		t.Error("another sale, or an order's status, was refused")
	}
	close(h.release)
	h.wg.Wait()
	if len(h.pool.sales.orders) != 0 {
		t.Errorf("afterwards %v", h.pool.sales.orders)
	}
}

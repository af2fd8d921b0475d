//go:build servers

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// keen is a number of buyers who press again and again, whatever they are told, until they have an order or are told to
// stop. told gets every answer.
func (w *system) keen(sale int64, tokens []string, first int, told func(uid string, a world.Answer)) (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	for i, token := range tokens {
		uid := strconv.Itoa(first + i)
		wg.Go(func() {
			again := time.NewTicker(60 * time.Millisecond) // within the limit of freely
			defer again.Stop()
			for ctx.Err() == nil {
				a := w.press(ctx, sale, token, "of-"+uid)
				if ctx.Err() != nil && a.Status == 0 {
					return // it was told to stop: the journal has no answer of it
				}
				told(uid, a)
				if a.Status == 202 || a.Code == "ALREADY_ORDERED" {
					return
				}
				select {
				case <-ctx.Done():
				case <-again.C:
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// Row D6: a sale that releases its stock at several times. Between two of them it is sold out and says when more comes; the
// gate opens by itself; never more is sold than was released; and all of it is sold. Where the machine was so slow that nobody
// pressed or looked between two releases, another sale has them twice as far apart.
func TestTranchesOpenTheGateByThemselves(t *testing.T) {
	t.Attr("row", "D6")
	t.Parallel()
	w := newSystem(t, world.Options{Limits: freely})
	tokens := w.tokens(1, 30)
	for apart := 1500 * time.Millisecond; !w.sellInTranches(tokens, apart); apart *= 2 {
		if apart > 20*time.Second {
			t.Fatalf("nobody was told SOLD_OUT, or no page said so, with a release to come, though the releases were %v apart", apart)
		}
	}
}

// sellInTranches sells ten units to more buyers, three at once and the others so far apart. It reports whether a buyer, and a page,
// saw the sale sold out with a release to come.
func (w *system) sellInTranches(tokens []string, apart time.Duration) (seen bool) {
	t := w.t
	starts := time.Now().Add(apart).UTC().Truncate(time.Millisecond)
	tranches := []struct {
		at    time.Time
		units int64
	}{{starts, 3}, {starts.Add(apart), 3}, {starts.Add(2 * apart), 4}}
	const stock = 10
	at := func(i int) string { return tranches[i].at.Format(wire.TimeFormat) }
	var sale struct{ ID int64 }
	w.want(w.admin("POST", "/admin/v1/sales", fmt.Sprintf(`{"title":"Three times","price":100,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,
		"tranches":[{"at":%q,"quantity":3},{"at":%q,"quantity":3},{"at":%q,"quantity":4}]}`, stock, at(0), starts.Add(time.Hour).Format(wire.TimeFormat), at(0), at(1), at(2))),
		201, "").Decode(w.t, &sale)
	stopWatching := w.watch(sale.ID, stock)

	j := oracle.NewLog()
	var mu sync.Mutex // guards soldOut
	soldOut := map[string]int{}
	stopBuyers := w.keen(sale.ID, tokens, 1, func(uid string, a world.Answer) {
		j.Add(a.To(uid, "of-"+uid))
		if a.Code == "SOLD_OUT" {
			var p struct {
				Next string `json:"next_release_at"`
			}
			a.Decode(w.t, &p)
			mu.Lock()
			soldOut[p.Next]++
			mu.Unlock()
		}
	})
	pages := map[string]int{} // what the sale's page said, by state and next release
	w.until("all is sold", 3*apart+patience, func() (bool, string) {
		var s wire.Sale
		a := w.do(w.ctx, world.Call{Method: "GET", URL: fmt.Sprintf("%s/v1/sales/%d", w.Ports.PublicURL(), sale.ID), Quiet: true})
		if a.Status == 404 && len(pages) == 0 { // the gateway has not heard of it yet
			return false, a.String()
		}
		w.want(a, 200, "").Decode(w.t, &s)
		next := ""
		if s.NextReleaseAt != nil {
			next = s.NextReleaseAt.Format(wire.TimeFormat)
		}
		pages[string(s.State)+" "+next]++
		return j.Promised() == stock && s.State == wire.SoldOut && next == "", a.String()
	})
	stopBuyers()
	stopWatching()
	t.Logf("SOLD_OUT by the release that it named: %v; pages: %v", soldOut, pages)
	for next := range soldOut {
		if next != "" && next != at(1) && next != at(2) {
			t.Errorf("SOLD_OUT named a release at %s, which there is not", next)
		}
	}
	o := w.settle(sale.ID, stock, j)
	if len(o.Orders) != stock {
		t.Errorf("got %d orders, want %d: enough buyers tried", len(o.Orders), stock)
	}
	released := int64(0)
	for i, tr := range tranches {
		var before int64
		w.must(w.Books.DB.QueryRow(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND created_at < ?`, sale.ID, tr.at).Scan(&before))
		if before > released {
			t.Errorf("%d units were sold before tranche %d, when %d were released", before, i+1, released)
		}
		released += tr.units
		var first time.Time
		w.must(w.Books.DB.QueryRow(`SELECT MIN(created_at) FROM orders WHERE sale_id = ? AND created_at >= ?`, sale.ID, tr.at).Scan(&first))
		t.Logf("tranche %d: the first order came %v after its release", i+1, first.Sub(tr.at))
	}
	if r, a := w.audit(sale.ID); !r.Balanced || r.Available != 0 || r.Locked != stock {
		t.Errorf("the audit says %s", a)
	}
	return soldOut[at(1)]+soldOut[at(2)] > 0 && pages["sold_out "+at(1)]+pages["sold_out "+at(2)] > 0
}

// Row E10: replenishing a sale while it sells, before and after it is sold out: every unit is sold once, the gate opens
// again by itself, and the books of the sale and of its SKU add up.
func TestReplenishingWhileItSells(t *testing.T) {
	t.Attr("row", "E10")
	t.Parallel()
	const first, more, rounds, buyers = 40, 20, 6, 180
	const stock = first + more*rounds
	w := newSystem(t, world.Options{Limits: freely})
	var k, s struct{ ID int64 }
	w.want(w.admin("POST", "/admin/v1/skus", fmt.Sprintf(`{"title":"Lamp","price":100,"currency":"EUR","stock":%d}`, stock+7)), 201, "").Decode(w.t, &k)
	now := time.Now()
	w.want(w.admin("POST", "/admin/v1/sales", fmt.Sprintf(`{"sku_id":%d,"stock":%d,"starts_at":%q,"ends_at":%q}`, k.ID, first,
		now.Add(-time.Minute).UTC().Format(wire.TimeFormat), now.Add(time.Hour).UTC().Format(wire.TimeFormat))), 201, "").Decode(w.t, &s)
	w.state(s.ID, wire.Open)
	tokens := w.tokens(1, buyers)
	j := oracle.NewLog()
	stopBuyers := w.keen(s.ID, tokens, 1, func(uid string, a world.Answer) { j.Add(a.To(uid, "of-"+uid)) })
	restock := func() {
		w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/restock", s.ID), fmt.Sprintf(`{"quantity":%d}`, more)), 200, "")
	}
	total := first
	for round := range rounds {
		if round < 2 { // while it sells
			w.must(j.Await(w.ctx, total/2))
		} else { // when the gate is closed
			w.must(j.Await(w.ctx, total))
			w.state(s.ID, wire.SoldOut)
		}
		restock()
		total += more
	}
	w.must(j.Await(w.ctx, stock))
	w.state(s.ID, wire.SoldOut)
	stopBuyers()
	if got := j.Promised(); got != stock {
		t.Errorf("%d orders were promised, want %d", got, stock)
	}
	o := w.settle(s.ID, stock, j)
	if len(o.Orders) != stock || o.Stock != 0 || o.Total != stock {
		t.Errorf("got %d orders, stock %d of %d; want %d, 0, %d", len(o.Orders), o.Stock, o.Total, stock, stock)
	}
	uids := map[string]bool{}
	for _, x := range slices.Collect(maps.Values(o.Orders)) {
		uids[x.UID] = true
	}
	if len(uids) != stock {
		t.Errorf("%d buyers have an order, want %d", len(uids), stock)
	}
	var sku struct{ Total, Available, Allotted int64 }
	w.want(w.admin("GET", fmt.Sprintf("/admin/v1/skus/%d", k.ID), ""), 200, "").Decode(w.t, &sku)
	if sku.Total != stock+7 || sku.Available != 7 || sku.Allotted != stock {
		t.Errorf("the SKU has %+v, want 7 of its %d left", sku, stock+7)
	}
	w.want(w.admin("POST", fmt.Sprintf("/admin/v1/sales/%d/restock", s.ID), `{"quantity":8}`), 409, "INSUFFICIENT_STOCK")
}

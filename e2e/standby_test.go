//go:build servers

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// inLine asks about the standby line through the gateway.
func (w *system) inLine(method string, sale int64, token string) wire.Standby {
	w.t.Helper()
	var at wire.Standby
	w.want(w.public(method, wire.StandbyPath(sale), token, ""), 200, "").Decode(w.t, &at)
	return at
}

// becomes waits until somebody's place is in one of the states.
func (w *system) becomes(sale int64, token string, states ...wire.StandbyState) wire.Standby {
	w.t.Helper()
	var at wire.Standby
	w.until(fmt.Sprintf("the place is %v", states), patience, func() (bool, string) {
		a := w.public("GET", wire.StandbyPath(sale), token, "")
		if a.Status != 200 {
			return false, a.String()
		}
		a.Decode(w.t, &at)
		for _, s := range states {
			if at.State == s {
				return true, ""
			}
		}
		return false, a.String()
	})
	return at
}

// Row D9, beyond it: a whole story of a standby line, through the gateway, while others press all the time.
func TestStandbyStory(t *testing.T) {
	t.Attr("row", "D9")
	t.Parallel()
	w := newSystem(t, world.Options{Limits: freely, Second: true})
	sale := w.newSale("One, and a line for it", 1, time.Now().Add(-time.Minute), 600)
	brief := w.newSale("One, for a second", 1, time.Now().Add(-time.Minute), 1)
	w.state(sale, wire.Open)
	w.state(brief, wire.Open)
	tokens := w.tokens(1, 8)
	j := oracle.NewLog()
	order := func(sale int64, i int) world.Answer {
		a := w.public("POST", fmt.Sprintf("/v1/sales/%d/orders", sale), tokens[i], "")
		j.Add(a.To(fmt.Sprint(i+1), ""))
		return a
	}
	w.want(w.public("POST", wire.StandbyPath(sale), tokens[1], ""), 409, "UNITS_AVAILABLE")
	first := w.want(order(sale, 0), 202, "").OrderID
	w.order(first, tokens[0], wire.PendingPayment)
	w.want(w.public("POST", wire.StandbyPath(sale), tokens[0], ""), 409, "ALREADY_ORDERED")
	for i, want := range []int{1, 2, 3} {
		if at := w.inLine("POST", sale, tokens[i+1]); at.State != wire.StandbyWaiting || *at.Place != want {
			t.Fatalf("shopper %d joins: got %+v, want place %d", i+2, at, want)
		}
	}

	// The crowd: it presses from now on, and gets nothing.
	over := make(chan struct{})
	var crowd sync.WaitGroup
	for _, i := range []int{5, 6, 7} {
		crowd.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
				}
				if a := w.press(w.ctx, sale, tokens[i], ""); a.Status == 202 {
					t.Errorf("shopper %d of the crowd got what the line waits for: %s", i+1, a)
				}
			}
		})
	}
	end := sync.OnceFunc(func() { close(over); crowd.Wait() })
	defer end()

	w.want(w.public("POST", "/v1/orders/"+first+"/cancellation", tokens[0], ""), 200, "")
	at := w.becomes(sale, tokens[1], wire.StandbyOffered)
	if o := w.order(at.Offer.OrderID, tokens[1], wire.PendingPayment); !o.PayBefore.Equal(at.Offer.AcceptBefore.Time) || time.Until(o.PayBefore.Time) > 3*time.Minute {
		t.Errorf("the offer %+v is the order %+v, to be paid within two minutes", at.Offer, o)
	}
	if next := w.inLine("GET", sale, tokens[2]); *next.Place != 1 {
		t.Errorf("the next one: got %+v, want place 1", next)
	}
	w.inLine("DELETE", sale, tokens[1])
	w.becomes(sale, tokens[1], wire.StandbyLeft)
	at = w.becomes(sale, tokens[2], wire.StandbyOffered)
	w.inLine("DELETE", sale, tokens[3])
	w.want(w.public("POST", "/v1/orders/"+at.Offer.OrderID+"/payment", tokens[2], ""), 200, "")
	w.becomes(sale, tokens[2], wire.StandbyAccepted)
	end()
	var seen struct {
		Standby struct{ Waiting, Offers int }
	}
	w.want(w.admin("GET", fmt.Sprintf("/admin/v1/sales/%d", sale), ""), 200, "").Decode(w.t, &seen)
	if seen.Standby.Waiting != 0 || seen.Standby.Offers != 0 {
		t.Errorf("operators see %+v, want nobody in line", seen.Standby)
	}

	// Nobody pays: the unit passes from one to the next as each offer lapses.
	w.want(order(brief, 0), 202, "")
	w.inLine("POST", brief, tokens[1])
	w.inLine("POST", brief, tokens[2])
	w.becomes(brief, tokens[2], wire.StandbyOffered, wire.StandbyLapsed)
	if at := w.inLine("GET", brief, tokens[1]); at.State != wire.StandbyLapsed {
		t.Errorf("the one before: got %+v, want it lapsed", at)
	}
	w.becomes(brief, tokens[2], wire.StandbyLapsed)
	w.state(brief, wire.Open) // nobody waits any more
	w.audited(sale, brief)
}

// audited holds sales against all of the auditor's equations.
func (w *system) audited(sales ...int64) {
	w.t.Helper()
	for _, sale := range sales {
		w.until(fmt.Sprintf("sale %d balances", sale), patience, func() (bool, string) {
			r, a := w.audit(sale)
			return r.Balanced, a.String()
		})
	}
}

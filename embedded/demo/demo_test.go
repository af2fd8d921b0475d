package demo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"floodgate.internal/backend/audit"
	"floodgate.internal/shared/wire"
)

// What fasthttp starts for its housekeeping ends by itself, at its next tick.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// The whole system, the crowd and the books, small: everything that the demo checks must hold.
func TestSmallSale(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	log := filepath.Join(dir, "log")
	// On a busy machine a press may take ten seconds, and a payment, too.
	r, err := Run(t.Context(), Options{Stock: 20, Shoppers: 200, Log: log, Timeout: 5 * time.Minute, PayIn: 30 * time.Second}, &out)
	if err != nil {
		b, _ := os.ReadFile(log)
		t.Fatalf("%v\n%s\n%s", err, &out, b)
	}
	want := Result{Total: 20, Accepted: r.Accepted, SoldOut: r.SoldOut, Duplicate: r.Duplicate, RateLimited: r.RateLimited, Orders: r.Orders, Balanced: true}
	// An order whose answer was lost on the way (OUTCOME_UNKNOWN) is there, and was not accepted before this crowd's eyes.
	if r != want || r.Orders < r.Accepted || r.Accepted < 24 || r.SoldOut == 0 || r.RateLimited == 0 {
		t.Errorf("got %+v; want 20 units sold, at least 4 of them twice, some told that it is sold out, some that they are too fast", r)
	}
	if !strings.Contains(out.String(), "20 of 20 units sold") {
		t.Errorf("got %s\nwant it to say that all is sold", &out)
	}

	path := filepath.Join(dir, "sub", "demo.json")
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names map[string]any
	if err := json.Unmarshal(b, &names); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"total", "accepted", "sold_out", "duplicate", "rate_limited", "orders", "oversold", "lost", "balanced"} {
		if _, ok := names[name]; !ok || len(names) != 9 {
			t.Errorf("%s is missing, or there is more: %s", name, b)
		}
	}
}

// A verdict that cannot fail would prove nothing.
func TestVerdictFindsWhatIsWrong(t *testing.T) {
	good := func() (*crowd, audit.Result, books) {
		c := &crowd{stock: 1, tally: newTally()}
		c.tally.accepted["o1"] = true
		c.tally.statuses["paid"] = 1
		return c, audit.Result{Balanced: true, Total: 1, Sold: 1}, books{total: 1, sold: 1, live: 1,
			orders: map[string]wire.OrderStatus{"o1": "paid"}, statuses: map[wire.OrderStatus]int{"paid": 1}}
	}
	for name, c := range map[string]struct {
		spoil func(*crowd, *audit.Result, *books)
		want  string
	}{
		"nothing": {func(*crowd, *audit.Result, *books) {}, ""},
		"not balanced": {func(_ *crowd, a *audit.Result, _ *books) {
			a.Balanced, a.Findings = false, []audit.Finding{{Detail: "x"}}
		}, "does not balance"},
		"a sum":          {func(_ *crowd, a *audit.Result, _ *books) { a.Available = 1 }, "is not the total"},
		"a lost order":   {func(_ *crowd, _ *audit.Result, b *books) { delete(b.orders, "o1") }, "not in MySQL"},
		"an oversold":    {func(_ *crowd, _ *audit.Result, b *books) { b.live = 2 }, "oversold"},
		"unsold":         {func(_ *crowd, _ *audit.Result, b *books) { b.sold, b.statuses["paid"] = 0, 0 }, "not all units are sold"},
		"a rejected":     {func(_ *crowd, _ *audit.Result, b *books) { b.statuses["rejected"] = 1 }, "rejected"},
		"a payment":      {func(c *crowd, _ *audit.Result, _ *books) { c.tally.statuses["paid"] = 2 }, "were told that they paid"},
		"a wrong answer": {func(c *crowd, _ *audit.Result, _ *books) { c.tally.say("a teapot") }, "a teapot"},
		"no answer":      {func(c *crowd, _ *audit.Result, _ *books) { c.tally.fail() }, "no answer"},
	} {
		crowd, a, b := good()
		c.spoil(crowd, &a, &b)
		r := Result{Total: b.total, Lost: b.lost(crowd.tally.accepted), Oversold: b.oversold(), Balanced: a.Balanced}
		err := crowd.verdict(a, b, r)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v; want it to say %q", name, err, c.want)
		}
	}
}

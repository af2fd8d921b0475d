//go:build servers

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/tracing/tracetest"
	"floodgate.internal/shared/wire"
)

// One trace leads from the press at the gateway to the COMMIT: over HTTP to the api, with the entry in Redis to the relay, and with the
// message to the consumer, which is another process. Each step is below the one that caused it. A press that nobody traces has none.
//
// With FLOODGATE_TRACE=FILE the trace is also drawn, as SVG.
func TestOneTraceFromThePressToTheCommit(t *testing.T) {
	t.Parallel()
	c := tracetest.New(t)
	w := newSystem(t, world.Options{Consumer: true, Backend: fmt.Sprintf("tracing: {endpoint: %q}\n", c.URL),
		Gateway: fmt.Sprintf("tracing: {endpoint: %q, sample: 0}\n", c.URL)})
	sale := w.newSale("One keyboard", 10, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 3)
	const client, trace, quiet = "b7ad6b7169203331", "0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319d"
	press := func(token, traceparent string) string {
		call := world.Call{Method: "POST", URL: fmt.Sprintf("%s/v1/sales/%d/orders", w.Ports.PublicURL(), sale), Token: token, Body: `{"quantity":1}`}
		if traceparent != "" {
			call.Header = map[string]string{"traceparent": traceparent}
		}
		a := w.want(w.do(w.ctx, call), 202, "")
		w.order(a.OrderID, token, wire.PendingPayment)
		return a.OrderID
	}
	press(tokens[0], "")
	press(tokens[1], "00-"+quiet+"-"+client+"-00")
	order := press(tokens[2], "00-"+trace+"-"+client+"-01")

	path := "POST /v1/sales/{sale_id}/orders"
	want := []struct{ service, name, below string }{
		{"floodgate-gateway", path, client},
		{"floodgate-gateway", "ask a backend", path},
		{"floodgate-backend", path, "ask a backend"},
		{"floodgate-backend", "reserve", path},
		{"floodgate-backend", "publish", "reserve"},
		{"floodgate-backend", "settle", "publish"},
		{"floodgate-backend", "commit", "settle"},
	}
	all := c.Await(t, "the whole trace", func(s []tracetest.Span) bool { return len(tracetest.Of(s, trace)) >= len(want) })
	spans := tracetest.Of(all, trace)
	if len(spans) != len(want) || len(all) != len(spans) {
		t.Fatalf("got\n%s", tracetest.Text(all))
	}
	parent := client
	for i, span := range spans {
		if span.Service != want[i].service || span.Name != want[i].name || span.Parent != parent || span.Failed {
			t.Errorf("step %d: got %+v, want %+v", i, span, want[i])
		}
		parent = span.ID
	}
	commit, settle := spans[6], spans[5]
	if commit.Begin.Before(settle.Begin) || commit.End.After(settle.End) || settle.Attributes["order_id"] != order || settle.Attributes["status"] != string(wire.PendingPayment) {
		t.Errorf("got\n%s", tracetest.Text(spans))
	}
	if file := os.Getenv("FLOODGATE_TRACE"); file != "" {
		w.must(os.WriteFile(file, []byte(waterfall(spans)), 0o644))
	}
}

// waterfall draws a trace: a bar for each span, by the time since its first one began.
func waterfall(spans []tracetest.Span) string {
	const left, right, row, width = 330, 90, 26, 1000
	first, last := spans[0].Begin, spans[0].End
	for _, s := range spans {
		if s.End.After(last) {
			last = s.End
		}
	}
	x := func(at time.Time) float64 {
		return left + float64(at.Sub(first))/float64(last.Sub(first))*(width-left-right)
	}
	colours := map[string]string{"floodgate-gateway": "#3b6ea5", "floodgate-backend": "#c0692c"}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n", width, row*(len(spans)+1))
	for i, s := range spans {
		y := row * i
		fmt.Fprintf(&b, `<text x="8" y="%d">%s: %s</text><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%v</text>`+"\n",
			y+17, strings.TrimPrefix(s.Service, "floodgate-"), s.Name, x(s.Begin), y+5, max(1, x(s.End)-x(s.Begin)), row-8, colours[s.Service], x(s.End)+5, y+17, s.End.Sub(s.Begin).Round(10*time.Microsecond))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#666">%s, %v in all</text>`+"\n</svg>\n", left, row*len(spans)+17, spans[0].Trace, last.Sub(first).Round(10*time.Microsecond))
	return b.String()
}

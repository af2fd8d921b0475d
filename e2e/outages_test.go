//go:build servers

package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"floodgate.internal/e2e/made"
	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// outage is what happens to a backend in the seconds from begins to ends.
type outage struct {
	name   string
	second bool // there are two backends
	link   bool // the gateway reaches the backend through a link, which answers for a backend that does not listen
	strike func(*system, *netfault.Link)
	heal   func(*system, *netfault.Link)
}

const begins, ends, seconds = 3, 7, 12

var outages = []outage{
	{name: "The only backend is stopped (SIGTERM), and started again", strike: func(w *system, _ *netfault.Link) { w.must(w.Backend.Stop(w.ctx)) },
		heal: func(w *system, _ *netfault.Link) { w.must(w.Backend.Start(w.ctx)) }},
	{name: "It is paused (SIGSTOP)", strike: func(w *system, _ *netfault.Link) { w.must(w.Backend.Signal(syscall.SIGSTOP)) },
		heal: func(w *system, _ *netfault.Link) { w.must(w.Backend.Signal(syscall.SIGCONT)) }},
	{name: "It is slow: each byte to and from it is 400 ms late", link: true, strike: func(_ *system, l *netfault.Link) { l.Delay(400 * time.Millisecond) },
		heal: func(_ *system, l *netfault.Link) { l.Heal() }},
	{name: "It is killed (SIGKILL) and started at once", strike: func(w *system, _ *netfault.Link) { w.must(w.Backend.Kill(w.ctx)); w.must(w.Backend.Start(w.ctx)) },
		heal: func(*system, *netfault.Link) {}},
	{name: "One of two is killed, and started again", second: true, strike: func(w *system, _ *netfault.Link) { w.must(w.Second.Kill(w.ctx)) },
		heal: func(w *system, _ *netfault.Link) { w.must(w.Second.Start(w.ctx)) }},
}

// BenchmarkOutages writes build/outages.md: what shoppers are answered, second by second, while a backend is away. After each
// outage every promise is held against the stores.
//
//	build/stack exec -- go test -tags servers -run '^$' -bench Outages -benchtime 1x ./e2e
func BenchmarkOutages(b *testing.B) {
	for range b.N {
		var doc strings.Builder
		fmt.Fprintf(&doc, `# What shoppers see when a backend is away

%s

The real system on one machine. Each second 100 new shoppers press, 30 owners
ask for their order and 30 strangers for the sale's page, whatever the answers before; each line has those who came in that second. From second %d to %d the
backend is away. Busy is 503 OVERLOADED (nothing was done), unknown is 503 OUTCOME_UNKNOWN (ask again with the same key). Who is told either asks again with
the same key when it is over; then every promise is held against Redis, MySQL and the broker.
`, made.By("go test -tags servers -run '^$' -bench Outages -benchtime 1x ./e2e"), begins, ends)
		for _, o := range outages {
			o.try(b, &doc)
		}
		root, err := stack.Root()
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "build", "outages.md"), []byte(doc.String()), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

// seen is what those who came in one second were told.
type seen struct {
	presses, polls, pages map[string]int
	slowest               time.Duration
}

func (o outage) try(b *testing.B, doc io.Writer) {
	const stock, perSecond, owners = 20_000, 160, 30
	w := newSystem(b, world.Options{Limits: freely, Second: o.second, Linked: o.link})
	link := w.Links.Internal // nil without
	sale := w.newSale(o.name, stock, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 100*seconds+owners)
	j := oracle.NewLog()
	press := func(uid int) world.Answer {
		key := fmt.Sprint("key-of-", uid)
		a := w.press(w.ctx, sale, tokens[uid-1], key)
		j.Add(a.To(fmt.Sprint(uid), key))
		return a
	}
	var mine []string // orders of those who ask for them, each once a second
	for i := range owners {
		mine = append(mine, press(100*seconds+1+i).OrderID)
		w.order(mine[i], tokens[100*seconds+i], wire.PendingPayment)
	}

	var mu sync.Mutex // guards the rest
	all := make([]seen, seconds)
	var again []int
	for i := range all {
		all[i] = seen{map[string]int{}, map[string]int{}, map[string]int{}, 0}
	}
	note := func(second int, counts map[string]int, a world.Answer, began time.Time) {
		mu.Lock()
		defer mu.Unlock()
		counts[label(a)]++
		all[second].slowest = max(all[second].slowest, time.Since(began))
	}
	var come sync.WaitGroup
	came := func(n int) {
		second, began := n/perSecond, time.Now()
		switch k := n % perSecond; {
		case k%16 < 10:
			uid := second*100 + k/16*10 + k%16 + 1
			a := press(uid)
			note(second, all[second].presses, a, began)
			if a.Status != 202 {
				mu.Lock()
				again = append(again, uid)
				mu.Unlock()
			}
		case k%16 < 13:
			i := k/16*3 + k%16 - 10
			note(second, all[second].polls, w.do(w.ctx, world.Call{Method: "GET", URL: w.Ports.PublicURL() + "/v1/orders/" + mine[i], Token: tokens[100*seconds+i], Quiet: true}), began)
		default:
			note(second, all[second].pages, w.do(w.ctx, world.Call{Method: "GET", URL: fmt.Sprintf("%s/v1/sales/%d", w.Ports.PublicURL(), sale), Quiet: true}), began)
		}
	}
	began := time.Now()
	var acts sync.WaitGroup
	acts.Go(func() {
		world.Pause(w.ctx, time.Until(began.Add(begins*time.Second)))
		o.strike(w, link)
		world.Pause(w.ctx, time.Until(began.Add(ends*time.Second)))
		o.heal(w, link)
	})
	for n := range perSecond * seconds { // who comes does not wait for who came before
		world.Pause(w.ctx, time.Until(began.Add(time.Duration(n)*time.Second/perSecond)))
		come.Go(func() { came(n) })
	}
	come.Wait()
	acts.Wait()
	for _, uid := range again { // as they were told to
		w.until(fmt.Sprintf("uid %d has an order", uid), patience, func() (bool, string) {
			a := press(uid)
			return a.Status == 202, a.String()
		})
	}
	w.settle(sale, stock, j)

	fmt.Fprintf(doc, "\n## %s\n\n| second | presses: accepted | busy | unknown | other | orders asked for: answered | busy | other | pages: answered | other | slowest answer |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n", o.name)
	for i, s := range all {
		away := ""
		if i >= begins && i < ends {
			away = " away"
		}
		fmt.Fprintf(doc, "| %d%s | %s | %s | %s | %.1f s |\n", i, away, columns(s.presses, "202", "OVERLOADED", "OUTCOME_UNKNOWN"), columns(s.polls, "200", "OVERLOADED"), columns(s.pages, "200"), s.slowest.Seconds())
	}
	fmt.Fprintf(doc, "\n%d orders promised to %d shoppers, and all of them are in MySQL, once.\n", j.Promised(), 100*seconds+owners)
}

// label is how an answer is counted.
func label(a world.Answer) string {
	switch {
	case a.Code != "":
		return a.Code
	case a.Status == 0:
		return "none"
	}
	return fmt.Sprint(a.Status)
}

// columns are the counts of these labels, and of all others by name.
func columns(counts map[string]int, labels ...string) string {
	var cells, others []string
	for _, l := range labels {
		cells = append(cells, count(counts[l]))
	}
	for l, n := range counts {
		if !slices.Contains(labels, l) {
			others = append(others, fmt.Sprintf("%d %s", n, l))
		}
	}
	slices.Sort(others)
	return strings.Join(append(cells, strings.Join(others, ", ")), " | ")
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

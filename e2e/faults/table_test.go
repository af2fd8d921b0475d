//go:build servers

package faults

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/made"
	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
)

// line is a row of the table of results.
type line struct {
	fault, injected string
	times           int
	tally           *oracle.Tally // nil: counted on another line
	opened          []time.Duration
	settled         time.Duration
}

// part is where in the table a line stands: tests that run side by side report in any order.
type part int

const (
	partFailpoints part = iota
	partKills
	partTogether
	partSeveral
	partRedis
	partRabbitMQ
	partMySQL
	partClocks
	partClients
	partNetwork // and one more for each further way
)

// again is a row of the table of how long it took, after each kill of one component, until orders were decided again.
type again struct {
	killed, sale string
	orders       []time.Duration
	gates        []time.Duration // until Redis had the sale's gate open anew; none where nothing closes it
}

var results struct {
	mu    sync.Mutex // guards the rest
	lines map[part][]line
	again []again
	notes []string
	cuts  []cutLine
}

func report(p part, lines ...line) {
	results.mu.Lock()
	defer results.mu.Unlock()
	if results.lines == nil {
		results.lines = map[part][]line{}
	}
	results.lines[p] = append(results.lines[p], lines...)
}

func reportAgain(a again) {
	results.mu.Lock()
	defer results.mu.Unlock()
	results.again = append(results.again, a)
}

func note(format string, args ...any) {
	results.mu.Lock()
	defer results.mu.Unlock()
	results.notes = append(results.notes, fmt.Sprintf(format, args...))
}

func seconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// spread is the median and the greatest of many, or the only one.
func spread(all []time.Duration) string {
	switch len(all) {
	case 0:
		return ""
	case 1:
		return seconds(all[0])
	}
	slices.Sort(all)
	return fmt.Sprintf("%s, at most %s", seconds(all[len(all)/2]), seconds(all[len(all)-1]))
}

// table is the page; by says where it comes from.
func table(by string) string {
	if len(results.lines) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# What was killed or went wrong, and what became of the promises

%s The real binaries and the real servers under load, on loopback; MySQL is MariaDB here.

| column | what it says |
|---|---|
| promised | different orders that were answered 202 |
| lost | of them, those that MySQL does not have, or rejected |
| duplicated | orders beyond the first of one buyer and Idempotency-Key |
| oversold | live units beyond the stock |
| stranded | orders on which Redis and MySQL do not agree in the end, and changes that are not done |
| orders again | from the kill, or the end of a fault that lasted, to the first order that was asked for after it and decided |
| until settled | from the last kill, or that end, until every equation held and the auditor agreed, with the load still running in between |
`, by)
	b.WriteString(againTable(results.again))
	b.WriteString(`
## Every fault

| fault | injected | times | promised | lost | duplicated | oversold | stranded | orders again | until settled |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
`)
	var lines []line
	for _, p := range slices.Sorted(maps.Keys(results.lines)) {
		lines = append(lines, results.lines[p]...)
	}
	for _, l := range lines {
		counts := "| | | | |"
		if c := l.tally; c != nil {
			counts = fmt.Sprintf("%d | %d | %d | %d | %d", c.Promised, c.Lost, c.Duplicated, c.Oversold, c.Stranded)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s |\n", l.fault, l.injected, l.times, counts, spread(l.opened), seconds(l.settled))
	}
	for _, n := range results.notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.String()
}

// againTable is the section on the kill loop, "" where it did not run.
func againTable(rows []again) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(`
## Orders again after a kill

The kill loop: one component is killed at random and started again at once. The gate is looked at in Redis each 20 ms. In a soak the second sale gets as
many orders as the machine takes. Its orders are refused for as long as the oldest that is queued has waited for more than ` + "`orders.max_lag`" + `.

| killed | sale | kills | orders again: median | highest | its gate open: median | highest |
|---|---|---:|---:|---:|---:|---:|
`)
	for _, a := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s |\n", a.killed, a.sale, len(a.orders), middleAndMost(a.orders), middleAndMost(a.gates))
	}
	return b.String()
}

// middleAndMost is two cells: the median and the greatest.
func middleAndMost(all []time.Duration) string {
	if len(all) == 0 {
		return " | "
	}
	sorted := slices.Sorted(slices.Values(all))
	return fmt.Sprintf("%.1f s | %.1f s", sorted[len(sorted)/2].Seconds(), sorted[len(sorted)-1].Seconds())
}

// page is the file of the table, and the command that makes it.
func page() (file, command string) {
	if soak := os.Getenv("FLOODGATE_SOAK"); soak != "" {
		return "soak.md", "make soak MINUTES=" + strings.TrimSuffix(soak, "m")
	}
	return "faults.md", "go test -tags servers ./e2e/faults"
}

// What is shown of a kill is when orders were decided again, the gate beside it where one closes, and never the gate in its place.
func TestOrdersAgainAreShownBesideTheGate(t *testing.T) {
	got := againTable([]again{
		{"redis", "the second", []time.Duration{2 * time.Second, 29 * time.Second, time.Second}, []time.Duration{time.Second, 9 * time.Second, 2 * time.Second}},
		{"mysql", "the first", []time.Duration{100 * time.Millisecond}, nil},
	})
	for _, want := range []string{"\n| redis | the second | 3 | 2.0 s | 29.0 s | 2.0 s | 9.0 s |\n", "\n| mysql | the first | 1 | 0.1 s | 0.1 s |  |  |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
}

// TestMain writes build/faults.md, or build/soak.md after a soak, and build/powercut.md, whatever came of the tests.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // the tests wait more than they work
		panic("BUG: " + err.Error())
	}
	file, command := page()
	by := made.By(command)
	code := m.Run()
	for name, text := range map[string]string{file: table(by), "powercut.md": cutTable(by)} {
		if text == "" {
			continue
		}
		root, err := stack.Root()
		if err == nil {
			err = os.MkdirAll(filepath.Join(root, "build"), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "build", name), []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "write the table:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

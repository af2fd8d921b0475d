//go:build servers

package faults

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	partRedis
	partRabbitMQ
	partMySQL
	partClocks
	partClients
	partNetwork // and one more for each further way
)

var results struct {
	mu    sync.Mutex // guards the rest
	lines map[part][]line
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

func table() string {
	if len(results.lines) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# What was killed or went wrong, and what became of the promises

Written by `+"`go test -tags servers ./e2e/faults`"+` (`+"`make soak MINUTES=30`"+` runs the kill loop for longer, and lets other faults last for longer): the
real binaries and the real servers under load, on loopback, %d processors. Promised are different orders that were answered 202. Lost: of them, those that MySQL does not have, or rejected.
Duplicated: orders beyond the first of one buyer and Idempotency-Key. Oversold: live units beyond the stock. Stranded: orders on which Redis
and MySQL do not agree in the end, and changes that are not done. Orders again: from the kill, or the end of a fault that lasted, to the first order that was
asked for after it and decided; of a soak's second sale, into which comes as much as the machine takes, so that much is queued when something is killed, and orders are
refused for as long as the oldest of them has waited for more than orders.max_lag. The gate alone: until Redis itself had the gate open anew. Settled: from the (last) kill, or that end, until every equation held and the auditor agreed, with the load still running in between.

| fault | injected | times | promised | lost | duplicated | oversold | stranded | orders again | until settled |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
`, runtime.NumCPU())
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

// TestMain writes build/faults.md and build/powercut.md after the tests, whatever came of them.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // the tests wait more than they work
		panic("BUG: " + err.Error())
	}
	code := m.Run()
	for name, text := range map[string]string{"faults.md": table(), "powercut.md": cutTable()} {
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

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var writeReadme = flag.Bool("write-readme", false, "take README's rows from docs/speed.md anew")

// mainRows are the rows that README shows, as they begin.
var mainRows = []string{
	"| what | against |",
	"|---|---|",
	"| an order refused as sold out | a bare fasthttp server with the same bytes |",
	"| an order refused as sold out | nginx with Lua and a shared dict |",
	"| an order refused before the start | nginx with Lua and a shared dict |",
	"| an order refused by the user's limit | nginx's limit_req, the token verified by Lua |",
	"| a page of 4 KB out of the cache | nginx's proxy_cache |",
	"| an order's status, passed on to the backend | a bare fasthttp proxy (HostClient) |",
	"| an order reserved by the backend's api | a bare fasthttp server and one EVALSHA of the same script |",
	"| a full queue drained by one consumer | the same rows by raw multi-row INSERTs on one connection |",
	"| goodput at ten times the backend's capacity | its own peak |",
}

// README shows some rows of the speed table: each as it stands in docs/speed.md, so that none is from another run.
func TestReadmeQuotesTheSpeedTable(t *testing.T) {
	const readme, page = "../../README.md", "../../docs/speed.md"
	table, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, begins := range mainRows {
		for line := range strings.Lines(string(table)) {
			if strings.HasPrefix(line, begins) {
				want = append(want, strings.TrimSuffix(line, "\n"))
			}
		}
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, section, _ := strings.Cut(string(text), "\n## How fast\n")
	var kept, got []string
	for _, line := range strings.Split(section, "\n") {
		if !strings.HasPrefix(line, "|") {
			kept = append(kept, line)
			continue
		}
		if got = append(got, line); len(got) == 1 {
			kept = append(kept, want...)
		}
	}
	if *writeReadme {
		if err := os.WriteFile(readme, []byte(before+"\n## How fast\n"+strings.Join(kept, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !slices.Equal(got, want) || len(got) < 3 {
		t.Errorf("README shows\n%s\n%s says\n%s\ntake it over: go test ./e2e/bench -run TestReadme -write-readme", strings.Join(got, "\n"), page, strings.Join(want, "\n"))
	}
}

func TestFigures(t *testing.T) {
	got, err := figures([]byte("goos: linux\nBenchmarkOverload/10x-2 \t       1\t         0 ns/op\t       391.5 goodput/s\t         1.003 goodput/peak\nPASS\n"))
	if err != nil || got["goodput/s"] != 391.5 || got["goodput/peak"] != 1.003 || len(got) != 3 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, out := range []string{"PASS\n", "BenchmarkX-2 1 much ns/op\n"} {
		if got, err := figures([]byte(out)); err == nil {
			t.Errorf("%q: got %v, want an error", out, got)
		}
	}
}

func TestRowsAreMediansOfRounds(t *testing.T) {
	b := &bench{Options: Options{Progress: func(string, ...any) {}}, report: &Report{}}
	b.add(Row{Goal: 1.2, Limit: AtMost}, []float64{1, 2, 30, 4, 5}, []float64{1, 1, 10, 1, 1})
	b.add(Row{Goal: 0.8, Limit: AtLeast}, []float64{8, 7, 9}, []float64{10, 10, 10})
	b.add(Row{}, []float64{9}, []float64{1})
	b.plain(Row{Goal: 8, Limit: AtMost, Unit: "KiB"}, 7, 6, 9)
	got := b.report.Rows
	if r := got[0]; r.Ratio != 3 || r.Low != 2 || r.High != 4 || r.Ours != 4 || r.Theirs != 1 || r.Rounds != 5 || r.Met() || !r.Missed() {
		t.Errorf("got %+v", r)
	}
	if !got[1].Met() || got[2].Met() || got[2].Missed() || !got[3].Met() || got[3].Ratio != 7 || b.report.Missed() != 1 {
		t.Errorf("got %+v, %d missed", got[1:], b.report.Missed())
	}
}

// The table has the median of whole runs, the lowest and the highest, whatever their order; where each run is to reach the goal, one
// that does not misses it; what is not measured stays, without a verdict.
func TestMerge(t *testing.T) {
	run := func(gone, page float64) *Report {
		return &Report{Commit: "abc", Processors: 2, Took: 60, Runs: 1, Rows: []Row{
			{What: "sold out", Against: "nginx", Ratio: gone, Low: 0.1, High: 9, Goal: 0.9, Limit: AtMost, EachRun: true, Ours: gone, Theirs: 1, Rounds: 15},
			{What: "page", Against: "nginx", Ratio: page, Goal: 1, Limit: Below, Rounds: 15},
			{What: "a visit", Against: "HAProxy", Goal: 1.3, Limit: AtMost},
		}}
	}
	got, err := Merge([]*Report{run(0.88, 1), run(0.67, 1), run(0.91, 0.9)})
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Rows[0]; r.Ratio != 0.88 || r.Low != 0.67 || r.High != 0.91 || r.Ours != 0.88 || !r.Missed() || r.Times() != "0.88x (0.67 to 0.91)" || r.Wanted() != "at most 0.90x in each run" {
		t.Errorf("got %+v, missed: %t", r, r.Missed())
	}
	if r := got.Rows[1]; !r.Missed() || r.Wanted() != "below 1.00x" {
		t.Errorf("1.00 is not below 1: got %+v, %s", r, r.Verdict())
	}
	if r := got.Rows[2]; r.Missed() || r.Met() || r.Times() != "not measured" || got.Missed() != 2 || got.Runs != 3 || got.Took != 180 || got.Commit != "abc" {
		t.Errorf("got %+v of %+v", r, got)
	}
	other := run(1, 1)
	other.Commit = "abd"
	for _, runs := range [][]*Report{nil, {run(1, 1), other}, {run(1, 1), {Commit: "abc", Processors: 2}}} {
		if got, err := Merge(runs); err == nil {
			t.Errorf("got %+v, want an error", got)
		}
	}
}

// cpuOf counts what this process uses, and not what it sleeps.
func TestCPUOf(t *testing.T) {
	of := func() time.Duration {
		d, err := cpuOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := of()
	for n, began := 0, time.Now(); of()-before < 20*time.Millisecond; n++ {
		if n%1000 == 0 && time.Since(began) > time.Minute {
			t.Fatalf("a minute of work counts as %v", of()-before)
		}
	}
	if _, err := cpuOf(1 << 22); err == nil {
		t.Error("a process that is not there: got no error")
	}
}

func TestReport(t *testing.T) {
	r := &Report{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "0123456789ab with changes", Took: 90, Processors: 2, Go: "go1.26", Runs: 3, Rows: []Row{
		{What: "an order <refused>", Against: "nginx", Ratio: 0.7, Low: 0.6, High: 0.75, Runs: []float64{0.6, 0.7, 0.75}, Goal: 0.8, Limit: AtMost, Ours: 7, Theirs: 10, Unit: "µs of CPU a request", Rounds: 9, Unequal: "nginx verifies no token", Load: 8, Swing: 1.5},
		{What: "goodput", Against: "its own peak", Ratio: 0.5, Goal: 0.9, Limit: AtLeast, Ours: 200, Theirs: 400, Unit: "requests/s", Rounds: 1},
		{What: "allocations", Plain: true, Ratio: 0, Goal: 0, Limit: AtMost, Unit: "allocations", Rounds: 1},
		{What: "a visit", Against: "HAProxy", Goal: 1.3, Limit: AtMost},
	}}
	var html, markdown, text bytes.Buffer
	if err := errors.Join(r.WriteHTML(&html), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"an order &lt;refused&gt;", "0.70x (0.60 to 0.75)", "at most 0.80x", "reached", "0.50x", "at least 0.90x", "missed", "1 of the goals is missed", "200 against 400 requests/s",
		"nginx verifies no token", "0 allocations", "not measured", "commit 0123456789ab with changes"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, want := range []string{"Made by `make bench RUNS=3` on 2026-01-02 03:04 UTC, at commit 0123456789ab with changes, on 2 processors, with go1.26, in 1.5 min.",
		"The costliest round of an order <refused> was 1.5 times the cheapest of the same run, at 7 µs of CPU a request by the median, and the load spends 8 on one. A refused",
		"the median of 3 runs and, in brackets, the lowest and the highest run",
		"\n| an order <refused> | nginx | 0.70x (0.60 to 0.75) | at most 0.80x | reached | nginx verifies no token |\n", "\n| goodput | its own peak | 0.50x | at least 0.90x | **missed** |  |\n",
		"\n| allocations |  | 0 allocations | at most 0 allocations | reached |  |\n", "\n| a visit | HAProxy | not measured | at most 1.30x | not measured |  |\n"} {
		if !strings.Contains(markdown.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, markdown.String())
		}
	}
	var back Report
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || !reflect.DeepEqual(back.Rows, r.Rows) {
		t.Errorf("got %+v, %v", back, err)
	}
}

package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

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
	b.add(Row{Goal: 1.2, AtMost: true}, []float64{1, 2, 30, 4, 5}, []float64{1, 1, 10, 1, 1})
	b.add(Row{Goal: 0.8}, []float64{8, 7, 9}, []float64{10, 10, 10})
	b.add(Row{}, []float64{9}, []float64{1})
	got := b.report.Rows
	if r := got[0]; r.Ratio != 3 || r.Low != 2 || r.High != 4 || r.Ours != 4 || r.Theirs != 1 || r.Rounds != 5 || r.Met() {
		t.Errorf("got %+v", r)
	}
	if !got[1].Met() || !got[2].Met() || b.report.Missed() != 1 {
		t.Errorf("got %+v, %d missed", got[1:], b.report.Missed())
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
	r := &Report{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 90, Processors: 2, Go: "go1.26", Rows: []Row{
		{What: "an order <refused>", Against: "nginx", Ratio: 0.7, Low: 0.6, High: 0.75, Goal: 0.8, AtMost: true, Ours: 7, Theirs: 10, Unit: "µs of CPU a request", Rounds: 9},
		{What: "goodput", Against: "its own peak", Ratio: 0.5, Goal: 0.9, Ours: 200, Theirs: 400, Unit: "requests/s", Rounds: 1},
	}}
	var html, text bytes.Buffer
	if err := r.WriteHTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"an order &lt;refused&gt;", "0.70x (0.60 to 0.75)", "at most 0.80x", "reached", "0.50x", "at least 0.90x", "missed", "1 of the goals is missed", "200 against 400 requests/s"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	var back Report
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || len(back.Rows) != 2 || back.Rows[0] != r.Rows[0] {
		t.Errorf("got %+v, %v", back, err)
	}
}

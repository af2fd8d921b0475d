package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed report.html
var page string

var reportTemplate = template.Must(template.New("report").Parse(page))

// WriteHTML writes the report, which needs nothing besides itself.
func (r *Report) WriteHTML(w io.Writer) error { return reportTemplate.Execute(w, r) }

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Minutes is how long it took.
func (r *Report) Minutes() string { return fmt.Sprintf("%.1f min", r.Took/60) }

// Missed is how many rows are short of their goals.
func (r *Report) Missed() (n int) {
	for _, row := range r.Rows {
		if row.Missed() {
			n++
		}
	}
	return n
}

// By is where the table comes from.
func (r *Report) By() string {
	partial := ""
	if r.Partial != "" {
		partial = " (" + r.Partial + ")"
	}
	return fmt.Sprintf("Made by `make bench RUNS=%d`%s on %s UTC, at commit %s, on %d processors, with %s, in %s.", r.Runs, partial, r.At.Format("2006-01-02 15:04"), r.Commit, r.Processors, r.Go, r.Minutes())
}

// Brackets is what the figures in brackets are.
func (r *Report) Brackets() string {
	if r.Runs > 1 {
		return fmt.Sprintf("the median of %d runs and, in brackets, the lowest and the highest run", r.Runs)
	}
	return "the median of one run's rounds and, in brackets, the middle half of them"
}

// Times is the figure in words, with its spread where there is one.
func (r Row) Times() string {
	if !r.Measured() {
		return "not measured"
	}
	show := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	unit := "x"
	if r.Plain {
		show, unit = brief, " "+r.Unit
	}
	if r.Rounds < 2 && len(r.Runs) < 2 {
		return show(r.Ratio) + unit
	}
	return fmt.Sprintf("%s%s (%s to %s)", show(r.Ratio), unit, show(r.Low), show(r.High))
}

// Sides is what the two were, in words.
func (r Row) Sides() string {
	if !r.Measured() || r.Plain {
		return ""
	}
	return fmt.Sprintf("%s against %s %s", brief(r.Ours), brief(r.Theirs), r.Unit)
}

func brief(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Wanted is the goal in words, "" where there is none.
func (r Row) Wanted() string {
	if r.Limit == NoGoal {
		return ""
	}
	goal := fmt.Sprintf("%s %.2fx", r.Limit, r.Goal)
	if r.Plain {
		goal = fmt.Sprintf("%s %s %s", r.Limit, brief(r.Goal), r.Unit)
	}
	if r.EachRun {
		goal += " in each run"
	}
	return goal
}

// Verdict is what became of the goal.
func (r Row) Verdict() string {
	switch {
	case r.Limit == NoGoal:
		return "no goal"
	case !r.Measured():
		return "not measured"
	case r.Met():
		return "reached"
	}
	return "**missed**"
}

const markdown = `# Speed, as ratios

%s

The figures are %s. They are CPU time for a request where nothing else is said, of the process that is compared, by its own accounting, in short rounds in
turn. %d of the goals are missed.

## How far they can be trusted

%sA refused request is little more than a few system calls and a thread that is woken, on both sides of the connection. How often
a server sleeps and is woken depends on how fast the load comes, and on the scheduler and other guests of the machine. An earlier table showed one run with all
processes on all cores; one of its rows changed by a quarter between two runs of the same code. Now what the gateway's rows compare has a core of its own
(one worker, one core; the load has the others), there are several runs, and the lowest and the highest are shown.

## The table

| what | against | figure | goal | | what is unequal |
|---|---|---|---|---|---|
`

// trust is what was seen of the spread within runs.
func (r *Report) trust() string {
	for _, row := range r.Rows {
		if row.Load > 0 { // the first, which is a refusal
			return fmt.Sprintf("The costliest round of %s was %.1f times the cheapest of the same run, at %s %s by the median, and the load spends %s on one. ", row.What, row.Swing, brief(row.Ours), row.Unit, brief(row.Load))
		}
	}
	return ""
}

// WriteMarkdown writes the table for docs/.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, markdown, r.By(), r.Brackets(), r.Missed(), r.trust())
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.What, row.Against, row.Times(), row.Wanted(), row.Verdict(), row.Unequal)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// widest is the ratio at the right end of a bar.
const widest = 2.5

// Bar is how much of its line a ratio fills, in percent.
func (r Row) Bar() float64 { return 100 * min(r.Ratio, widest) / widest }

// One is where a bar is as long as the other side's.
func (r Row) One() float64 { return 100 / widest }

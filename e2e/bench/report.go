package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
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
		if !row.Met() {
			n++
		}
	}
	return n
}

// Times is the ratio in words, with the middle half of the rounds where there were several.
func (r Row) Times() string {
	if r.Rounds < 2 {
		return fmt.Sprintf("%.2fx", r.Ratio)
	}
	return fmt.Sprintf("%.2fx (%.2f to %.2f)", r.Ratio, r.Low, r.High)
}

// Sides is what the two were, in words.
func (r Row) Sides() string {
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
	switch {
	case r.Goal == 0:
		return ""
	case r.AtMost:
		return fmt.Sprintf("at most %.2fx", r.Goal)
	}
	return fmt.Sprintf("at least %.2fx", r.Goal)
}

// widest is the ratio at the right end of a bar.
const widest = 2.5

// Bar is how much of its line a ratio fills, in percent.
func (r Row) Bar() float64 { return 100 * min(r.Ratio, widest) / widest }

// One is where a bar is as long as the other side's.
func (r Row) One() float64 { return 100 / widest }

package rehearse

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/preflight"
	"floodgate.internal/shared/version"
	"floodgate.internal/shared/wire"
)

//go:embed report.html
var page string

var reportTemplate = template.Must(template.New("report").Parse(page))

// WriteHTML writes the report, which needs nothing besides itself.
func (r *Result) WriteHTML(w io.Writer) error {
	told, times := r.crowd.total()
	type row struct {
		Name  string
		Class string
		Count int
		Part  string
	}
	presses := 0
	for _, n := range told {
		presses += n
	}
	var answers []row
	for o, n := range told {
		if n > 0 {
			answers = append(answers, row{outcomeNames[o], outcomeClasses[o], n, fmt.Sprintf("%.1f %%", 100*float64(n)/float64(presses))})
		}
	}
	strange := slices.SortedFunc(maps.Keys(r.crowd.strange), func(x, y string) int { return cmp.Compare(r.crowd.strange[y], r.crowd.strange[x]) })
	return reportTemplate.Execute(w, map[string]any{
		"R": r, "Good": r.Good(), "Processors": runtime.NumCPU(), "Presses": presses, "Answers": answers, "Strange": strange, "StrangeCount": r.crowd.strange,
		"Half": brief(times.quantile(0.5)), "Most": brief(times.quantile(0.99)), "Settled": brief(r.Settled), "Length": r.Options.Length,
		"Pressed": r.chart(r.pressed()), "Times": r.chart(r.answered()), "Where": r.chart(r.where()),
	})
}

// WriteJSON writes what a preflight holds against a sale.
func (r *Result) WriteJSON(w io.Writer) error {
	told, _ := r.crowd.total()
	presses := int64(0)
	for _, n := range told {
		presses += int64(n)
	}
	build := version.This()
	return json.NewEncoder(w).Encode(preflight.Rehearsal{At: wire.At(r.Began), Version: build.Version + " " + build.Commit, Shoppers: int64(r.Options.Shoppers), Stock: int64(r.Options.Stock),
		Seconds: r.Options.Length.Seconds(), Presses: presses, Faults: int64(len(r.Faults)), Good: r.Good()})
}

// Words is how long shoppers waited for an answer.
func (f Fault) Words() string {
	switch {
	case f.Error != "":
		return "could not be started again: " + f.Error
	case f.Answered == 0:
		return "nobody pressed after it"
	}
	return brief(f.Answered)
}

// Moment is when it was, after the start.
func (f Fault) Moment() string { return brief(f.At) }

// Gone is for how long it was down.
func (f Fault) Gone() string { return brief(f.Down) }

func brief(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

var outcomeClasses = [outcomes]string{"accepted", "soldout", "early", "early", "already", "limited", "busy", "silent", "other"}

// series is one line, or one layer of a stack.
type series struct {
	name, class string
	at          []float64 // seconds since the start, ascending
	values      []float64
}

func (s *series) add(at, value float64) { s.at, s.values = append(s.at, at), append(s.values, value) }

// figure is what a chart shows: lines, or layers of bars a second wide, one on the other.
type figure struct {
	series  []series
	stacked bool
	unit    string
}

// span is the time that the charts show, in seconds since the start.
func (r *Result) span() (first, last float64) {
	last = r.Options.Length.Seconds()
	for i := range r.crowd.seconds {
		first, last = min(first, float64(i)), max(last, float64(i+1))
	}
	for _, u := range r.Units {
		first, last = min(first, u.At.Seconds()), max(last, u.At.Seconds())
	}
	return first, last
}

// pressed is what presses were told, by the second.
func (r *Result) pressed() figure {
	f := figure{stacked: true, unit: "answers a second"}
	seconds := slices.Sorted(maps.Keys(r.crowd.seconds))
	for o := range outcomes {
		s := series{name: outcomeNames[o], class: outcomeClasses[o]}
		any := false
		for _, i := range seconds {
			n := r.crowd.seconds[i].told[o]
			any = any || n > 0
			s.add(float64(i), float64(n))
		}
		if any {
			f.series = append(f.series, s)
		}
	}
	return f
}

// answered is how long presses took, by the second in which they were answered.
func (r *Result) answered() figure {
	half, most := series{name: "half of them within", class: "accepted"}, series{name: "99 of 100 within", class: "busy"}
	for _, i := range slices.Sorted(maps.Keys(r.crowd.seconds)) {
		times := &r.crowd.seconds[i].times
		half.add(float64(i)+0.5, float64(times.quantile(0.5).Milliseconds()))
		most.add(float64(i)+0.5, float64(times.quantile(0.99).Milliseconds()))
	}
	return figure{series: []series{half, most}, unit: "ms"}
}

// where is where the units were.
func (r *Result) where() figure {
	all := []series{{name: "sold", class: "accepted"}, {name: "locked, unpaid", class: "limited"}, {name: "available", class: "early"}}
	for _, u := range r.Units {
		for i, v := range []int64{u.Sold, u.Locked, u.Available} {
			all[i].add(u.At.Seconds(), float64(v))
		}
	}
	return figure{series: all, unit: "units, by MySQL"}
}

// chart draws a figure as SVG, with a line at each fault.
func (r *Result) chart(f figure) template.HTML {
	const wide, high, left, bottom, line = 960.0, 240.0, 64.0, 24.0, 11.0
	first, last := r.span()
	top := 1.0
	sums := map[float64]float64{}
	for _, s := range f.series {
		for i, v := range s.values {
			if f.stacked {
				sums[s.at[i]] += v
				v = sums[s.at[i]]
			}
			top = max(top, v)
		}
	}
	x := func(at float64) float64 { return left + (at-first)/max(last-first, 1)*(wide-left) }
	// A fault's name stands in the first row where it touches no other, or in the fourth.
	names := make([]float64, len(r.Faults)) // their rows
	ends := map[float64]float64{}           // of the last name in a row
	for i, f := range r.Faults {
		for at := x(f.At.Seconds()); names[i] < 3 && ends[names[i]] > at-30; {
			names[i]++
		}
		ends[names[i]] = x(f.At.Seconds()) + 30
	}
	above := 16 + line*slices.Max(append(names, 0))
	y := func(v float64) float64 { return high - bottom - v/top*(high-bottom-above) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img"><title>%s</title>`, wide, high, template.HTMLEscapeString(f.unit))
	for _, part := range []float64{0, 0.5, 1} {
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, wide, y(top*part), y(top*part), left-6, y(top*part)+4, number(top*part))
	}
	for i, anchor := range []string{"start", "middle", "middle", "middle", "end"} {
		at := first + (last-first)*float64(i)/4
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="%s">%.0f s</text>`, x(at), high-6, anchor, at)
	}
	base := map[float64]float64{}
	for _, s := range f.series {
		if f.stacked {
			for i, v := range s.values {
				if v > 0 {
					low := base[s.at[i]]
					base[s.at[i]] = low + v
					fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s: %.0f</title></rect>`, s.class, x(s.at[i]), y(low+v), max(x(s.at[i]+1)-x(s.at[i])-0.5, 0.5), y(low)-y(low+v),
						template.HTMLEscapeString(s.name), v)
				}
			}
			continue
		}
		fmt.Fprintf(&b, `<polyline class="%s" points="`, s.class)
		for i, v := range s.values {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(s.at[i]), y(v))
		}
		b.WriteString(`"/>`)
	}
	for i, fault := range r.Faults {
		fmt.Fprintf(&b, `<line class="fault" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text class="fault" x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(fault.At.Seconds()), x(fault.At.Seconds()), names[i]*line+10,
			high-bottom, min(x(fault.At.Seconds()), wide-30), names[i]*line+9, template.HTMLEscapeString(fault.Victim))
	}
	b.WriteString(`</svg><p class="legend">`)
	for _, s := range f.series {
		fmt.Fprintf(&b, `<i class="%s"></i>%s `, s.class, template.HTMLEscapeString(s.name))
	}
	fmt.Fprintf(&b, `<span>(%s)</span></p>`, template.HTMLEscapeString(f.unit))
	return template.HTML(b.String())
}

func number(v float64) string {
	if v >= 10 || v == 0 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

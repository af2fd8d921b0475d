// Package bench measures the speed table: what the gateway and the backend cost, as ratios against the plainest program that does
// the same, and against nginx, in the same run on the same machine. Absolute figures of two runs are not to be compared: a shared
// machine is ten times as fast an hour later.
//
// Everything that is compared is a process of its own: the gateway and the backend as they are shipped, nginx, and the peers, which
// are this program once more. They are asked in turn, in short rounds; of each round a ratio is taken, and of the ratios the median.
// One run's median still differs from the next one's: the table that is shown is Merge's, of several runs.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"floodgate.internal/e2e/made"
	"floodgate.internal/e2e/stack"
)

// Options are how it is measured.
type Options struct {
	Dir    string   // of configurations and logs; it is emptied before
	Bin    string   // where the binaries backend and gateway are
	Self   string   // the binary of cmd/bench, to be started as peers
	Only   []string // the parts to measure, of Parts
	Rounds int      // of each comparison of CPU time, from 3
	Size   int      // requests of a round, a multiple of 64; a quarter of it where each is synced, twice as many where orders are followed to MySQL

	Connections int           // that are idle, from 1
	Sales       int           // that are open while nobody comes, from 1
	Window      time.Duration // of three, in which that is watched

	// Where the servers are, as stack.Servers.Env names them.
	Redis, MySQL, AMQP, Management string

	Progress func(format string, args ...any)
	Log      io.Writer // what installers print
}

// Parts are what can be measured.
var Parts = []string{"gateway", "visits", "connections", "memory", "overload", "backend", "idle"}

// Row is one line of the table.
type Row struct {
	What    string `json:"what"`
	Against string `json:"against"` // "" with Plain

	Ratio float64   `json:"ratio"` // of what to what it is compared with, or with Plain the figure itself: the median of the rounds, and of the runs
	Low   float64   `json:"low"`   // of one run: a quarter of the rounds is below it; of several: the lowest run
	High  float64   `json:"high"`  // a quarter of the rounds is above it; the highest run
	Runs  []float64 `json:"runs,omitempty"`
	Plain bool      `json:"plain,omitempty"` // a figure in Unit, not a ratio

	Goal    float64 `json:"goal"`
	Limit   Limit   `json:"limit"`
	EachRun bool    `json:"each_run,omitempty"` // the goal is to be reached by each run, not by their median alone

	Ours    float64 `json:"ours"` // the medians of the two sides, in Unit
	Theirs  float64 `json:"theirs"`
	Unit    string  `json:"unit"`
	Rounds  int     `json:"rounds"`
	Swing   float64 `json:"swing,omitempty"`   // of our side: its costliest round, in cheapest rounds; of several runs the greatest
	Load    float64 `json:"load,omitempty"`    // what a request cost the load, in Unit
	Unequal string  `json:"unequal,omitempty"` // what the two sides do not do alike, or how far the figure reaches
}

// Limit says what a goal is.
type Limit string

// The kinds of goals. A row without one is there for comparison.
const (
	NoGoal  Limit = ""
	AtMost  Limit = "at most"
	Below   Limit = "below"
	AtLeast Limit = "at least"
)

// Measured is false for a goal that was set and that nothing measures yet.
func (r Row) Measured() bool { return r.Rounds > 0 }

// Met reports whether the goal is reached. A row without a goal, or that is not measured, meets nothing.
func (r Row) Met() bool {
	lowest, highest := r.Ratio, r.Ratio
	if r.EachRun && len(r.Runs) > 0 {
		lowest, highest = slices.Min(r.Runs), slices.Max(r.Runs)
	}
	switch {
	case !r.Measured():
		return false
	case r.Limit == AtMost:
		return highest <= r.Goal
	case r.Limit == Below:
		return highest < r.Goal
	case r.Limit == AtLeast:
		return lowest >= r.Goal
	}
	return false
}

// Missed reports whether there is a goal, and the figure does not reach it.
func (r Row) Missed() bool { return r.Limit != NoGoal && r.Measured() && !r.Met() }

// Report is the whole table.
type Report struct {
	At         time.Time `json:"at"`
	Commit     string    `json:"commit"`
	Took       float64   `json:"took_s"`
	Processors int       `json:"processors"`
	Go         string    `json:"go"`
	Runs       int       `json:"runs"`
	Partial    string    `json:"partial,omitempty"` // what was left out of a run
	Rows       []Row     `json:"rows"`
}

// unmeasured are the goals that nothing measures yet.
var unmeasured = []Row{
	{What: "a durable order, CPU of all processes", Against: "the sum of its stages, each alone", Goal: 1.4, Limit: AtMost},
	{What: "durable orders a second", Against: "a row for each unit (SKIP LOCKED), and a conditional UPDATE, in MySQL alone", Goal: 2, Limit: AtLeast},
	{What: "a durable order, CPU of all processes", Against: "a row for each unit (SKIP LOCKED), and a conditional UPDATE, in MySQL alone", Goal: 0.5, Limit: AtMost},
}

// Merge makes one table of several whole runs: of each row the median of the runs, the lowest and the highest.
func Merge(runs []*Report) (*Report, error) {
	if len(runs) == 0 {
		return nil, errors.New("merge: no runs")
	}
	if len(runs) == 1 {
		return runs[0], nil
	}
	first := runs[0]
	out := &Report{At: first.At, Commit: first.Commit, Processors: first.Processors, Go: first.Go, Runs: len(runs), Partial: first.Partial}
	for n, run := range runs {
		if run.Commit != out.Commit || run.Partial != out.Partial || run.Processors != out.Processors || len(run.Rows) != len(first.Rows) {
			return nil, fmt.Errorf("merge: run %d is of commit %s, %d processors and %d rows, the first of commit %s, %d processors and %d rows",
				n+1, run.Commit, run.Processors, len(run.Rows), out.Commit, out.Processors, len(first.Rows))
		}
		out.Took += run.Took
	}
	for i, row := range first.Rows {
		if row.Measured() {
			var ratios, ours, theirs []float64
			for n, run := range runs {
				r := run.Rows[i]
				if r.What != row.What || r.Against != row.Against || !r.Measured() {
					return nil, fmt.Errorf("merge: row %d of run %d is %q against %q, of the first %q against %q", i+1, n+1, r.What, r.Against, row.What, row.Against)
				}
				ratios, ours, theirs = append(ratios, r.Ratio), append(ours, r.Ours), append(theirs, r.Theirs)
				row.Swing, row.Load = max(row.Swing, r.Swing), max(row.Load, r.Load)
			}
			row.Runs, row.Ratio, row.Low, row.High = ratios, quantile(ratios, 0.5), slices.Min(ratios), slices.Max(ratios)
			row.Ours, row.Theirs = quantile(ours, 0.5), quantile(theirs, 0.5)
		}
		out.Rows = append(out.Rows, row)
	}
	return out, nil
}

// bench is one run.
type bench struct {
	Options
	dir     string
	report  *Report
	started []*stack.Process
	alone   []int // the cores that only what is compared runs on; see split
}

// Run measures. An error says that nothing came of it; a goal that is missed is none.
func Run(ctx context.Context, o Options) (*Report, error) {
	began := time.Now()
	if err := os.RemoveAll(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	b := &bench{Options: o, dir: o.Dir, report: &Report{At: began.UTC(), Commit: made.Commit(), Runs: 1, Processors: runtime.NumCPU(), Go: runtime.Version()}}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"gateway", b.gateway}, {"visits", b.visits}, {"connections", b.connections}, {"memory", b.memory}, {"overload", b.overload}, {"backend", b.backend}, {"idle", b.idle}} {
		if !slices.Contains(o.Only, part.name) {
			continue
		}
		err := part.run(ctx)
		b.stopAll(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	b.report.Rows = append(b.report.Rows, unmeasured...)
	b.report.Took = time.Since(began).Seconds()
	return b.report, nil
}

// start starts a program, which is ended when its part is.
func (b *bench) start(ctx context.Context, p stack.Program) (*stack.Process, error) {
	process := stack.NewProcess(b.dir, p)
	b.started = append(b.started, process)
	return process, process.Start(ctx)
}

// startAlone starts a program that is compared, on the core that is kept for these.
func (b *bench) startAlone(ctx context.Context, p stack.Program) (process *stack.Process, err error) {
	if len(b.alone) == 0 {
		return b.start(ctx, p)
	}
	err = on(b.alone, func() error {
		process, err = b.start(ctx, p)
		return err
	})
	return process, err
}

// split leaves the first core to what is compared: from now on this process, which is the load, and every process that it starts run
// on the others, but for those that on starts. Where all share the cores, the load's speed decides how often a server sleeps and is
// woken, and that costs as much as a small request. With one core, or not on Linux, nothing is split.
func (b *bench) split() (undo func() error, err error) {
	all, err := cores()
	if err != nil || len(all) < 2 {
		return func() error { return nil }, err
	}
	before := runtime.GOMAXPROCS(len(all) - 1)
	undo = func() error {
		b.alone = nil
		runtime.GOMAXPROCS(before)
		return bind(all)
	}
	b.alone = all[:1]
	return undo, bind(all[1:])
}

func (b *bench) stopAll(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for _, p := range slices.Backward(b.started) {
		if err := p.Kill(ctx); err != nil {
			b.Progress("%s could not be stopped: %v", p.Name(), err)
		}
	}
	b.started = nil
}

// add makes a row of the two sides' figures of each round.
func (b *bench) add(r Row, ours, theirs []float64) {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	r.Ratio, r.Low, r.High = quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75)
	r.Ours, r.Theirs, r.Rounds = quantile(ours, 0.5), quantile(theirs, 0.5), len(ours)
	r.Swing = slices.Max(ours) / slices.Min(ours)
	b.report.Rows = append(b.report.Rows, r)
	b.Progress("%s: %s of %s (%s)", r.What, r.Times(), r.Against, r.Sides())
}

// plain makes a row of a figure that is compared with nothing.
func (b *bench) plain(r Row, values ...float64) {
	r.Plain = true
	r.Ratio, r.Low, r.High, r.Rounds = quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75), len(values)
	r.Ours = r.Ratio
	b.report.Rows = append(b.report.Rows, r)
	b.Progress("%s: %s", r.What, r.Times())
}

// quantile is the value below which the part q of values is, in a list that is not empty.
func quantile[T cmp.Ordered](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

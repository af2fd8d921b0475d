// Package bench measures the speed table: what the gateway and the backend cost, as ratios against the plainest program that does
// the same, and against nginx, in the same run on the same machine. Absolute figures of two runs are not to be compared: a shared
// machine is ten times as fast an hour later.
//
// Everything that is compared is a process of its own: the gateway and the backend as they are shipped, nginx, and the peers, which
// are this program once more. They are asked in turn, in short rounds; of each round a ratio is taken, and of the ratios the median.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

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

	// Where the servers are, as stack.Servers.Env names them.
	Redis, MySQL, AMQP, Management string

	Progress func(format string, args ...any)
	Log      io.Writer // what installers print
}

// Parts are what can be measured.
var Parts = []string{"gateway", "backend", "memory", "overload"}

// Row is one line of the table.
type Row struct {
	What    string  `json:"what"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"` // of what to what it is compared with: the median of the rounds
	Low     float64 `json:"low"`   // a quarter of the rounds is below it
	High    float64 `json:"high"`  // and a quarter above this
	Goal    float64 `json:"goal"`  // 0: none, it is there for comparison
	AtMost  bool    `json:"at_most"`
	Ours    float64 `json:"ours"` // the medians of the two sides, in Unit
	Theirs  float64 `json:"theirs"`
	Unit    string  `json:"unit"`
	Rounds  int     `json:"rounds"`
}

// Met reports whether the goal is reached; a row without a goal meets it.
func (r Row) Met() bool {
	return r.Goal == 0 || r.AtMost && r.Ratio <= r.Goal || !r.AtMost && r.Ratio >= r.Goal
}

// Report is the whole table.
type Report struct {
	At         time.Time `json:"at"`
	Took       float64   `json:"took_s"`
	Processors int       `json:"processors"`
	Go         string    `json:"go"`
	Rows       []Row     `json:"rows"`
}

// bench is one run.
type bench struct {
	Options
	dir     string
	report  *Report
	started []*stack.Process
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
	b := &bench{Options: o, dir: o.Dir, report: &Report{At: began.UTC(), Processors: runtime.NumCPU(), Go: runtime.Version()}}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"gateway", b.gateway}, {"backend", b.backend}, {"memory", b.memory}, {"overload", b.overload}} {
		if !slices.Contains(o.Only, part.name) {
			continue
		}
		err := part.run(ctx)
		b.stopAll(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	b.report.Took = time.Since(began).Seconds()
	return b.report, nil
}

// start starts a program, which is ended when its part is.
func (b *bench) start(ctx context.Context, p stack.Program) (*stack.Process, error) {
	process := stack.NewProcess(b.dir, p)
	b.started = append(b.started, process)
	return process, process.Start(ctx)
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
	b.report.Rows = append(b.report.Rows, r)
	b.Progress("%s: %.2fx of %s (%.4g against %.4g %s)", r.What, r.Ratio, r.Against, r.Ours, r.Theirs, r.Unit)
}

// quantile is the value below which the part q of values is, in a list that is not empty.
func quantile[T cmp.Ordered](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

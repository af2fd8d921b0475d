package demo

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows a line that changes: in place on a terminal, else as lines of its own, one a second.
type progress struct {
	out      io.Writer
	terminal bool
	every    time.Duration
	last     string
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, every: time.Second}
	if f, ok := out.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			p.terminal, p.every = true, 100*time.Millisecond
		}
	}
	return p
}

// show replaces the line; on anything but a terminal one that says the same is left out.
func (p *progress) show(line string) {
	switch {
	case line == p.last:
	case p.terminal:
		fmt.Fprintf(p.out, "\r\x1b[K%.79s", line) // one that wraps could not be replaced
	default:
		fmt.Fprintf(p.out, "  %s\n", line)
	}
	p.last = line
}

// end leaves the line as it is and goes on below it.
func (p *progress) end() {
	if p.terminal && p.last != "" {
		fmt.Fprintln(p.out)
	}
}

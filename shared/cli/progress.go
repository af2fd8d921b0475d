package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A Progress is shown from progressAfter on, and anew each progressEvery.
const (
	progressAfter = 2 * time.Second
	progressEvery = time.Second
)

// Progress is a line on a terminal that says what a command is doing, once that takes longer than two seconds. It is safe for
// concurrent use.
type Progress struct {
	w    io.Writer
	what string
	stop chan struct{} // closed by End
	done sync.WaitGroup

	mu   sync.Mutex // guards text
	text string
}

// StartProgress shows progress of what, if w is a terminal: in a file or a pipe it would be in the way. End must be called before
// anything else is written to the terminal.
func StartProgress(w io.Writer, what string) *Progress {
	p := &Progress{w: w, what: what, stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok {
		if s, err := f.Stat(); err == nil && s.Mode()&os.ModeCharDevice != 0 {
			p.done.Go(p.show)
		}
	}
	return p
}

// Say sets how far it is.
func (p *Progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = fmt.Sprintf(": "+format, args...)
}

// End takes the line away. It may be called again.
func (p *Progress) End() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.done.Wait()
}

func (p *Progress) show() {
	began := time.Now()
	next := time.NewTimer(progressAfter)
	defer next.Stop()
	shown := false
	for {
		select {
		case <-p.stop:
			if shown {
				fmt.Fprint(p.w, "\r\x1b[K")
			}
			return
		case <-next.C:
			p.mu.Lock()
			fmt.Fprintf(p.w, "\r\x1b[K%s%s, for %v", p.what, p.text, time.Since(began).Round(time.Second))
			p.mu.Unlock()
			shown = true
			next.Reset(progressEvery)
		}
	}
}

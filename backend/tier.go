package backend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// tier is a group of goroutines that end together, when it is their turn: later than the context of the process.
type tier struct {
	ctx  context.Context
	stop context.CancelFunc
	fail context.CancelCauseFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	running []string
	err     error
}

// newTier makes a tier whose contexts carry ctx's values; a part that ends by itself ends the process through fail.
func newTier(ctx context.Context, fail context.CancelCauseFunc) *tier {
	t := &tier{fail: fail}
	t.ctx, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	return t
}

// start runs a part until the tier's context ends.
func (t *tier) start(name string, part func(context.Context) error) {
	t.mu.Lock()
	t.running = append(t.running, name)
	t.mu.Unlock()
	t.wg.Go(func() {
		err := part(t.ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if t.ctx.Err() == nil {
			t.fail(err) // a part that ends by itself without an error ends the process cleanly: its listener was shut down
			err = nil   // said by the process
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running = slices.DeleteFunc(t.running, func(s string) bool { return s == name })
		if t.err == nil {
			t.err = err
		}
	})
}

// end stops the parts and waits for them until ctx ends.
func (t *tier) end(ctx context.Context) error {
	t.stop()
	done := make(chan struct{})
	go func() { t.wg.Wait(); close(done) }()
	select {
	case <-done:
		return t.err
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		return fmt.Errorf("drain: time is up, and there still runs: %s", strings.Join(t.running, ", "))
	}
}

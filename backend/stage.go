package backend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// stage is a group of goroutines that end together, when it is their turn: later than the context of the process.
type stage struct {
	ctx  context.Context
	stop context.CancelFunc
	fail context.CancelCauseFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	running []string
	err     error
}

// newStage makes a stage whose contexts carry ctx's values; a part that ends by itself ends the process through fail.
func newStage(ctx context.Context, fail context.CancelCauseFunc) *stage {
	s := &stage{fail: fail}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// start runs a part until the stage's context ends.
func (s *stage) start(name string, part func(context.Context) error) {
	s.mu.Lock()
	s.running = append(s.running, name)
	s.mu.Unlock()
	s.wg.Go(func() {
		err := part(s.ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if s.ctx.Err() == nil {
			s.fail(err) // a part that ends by itself without an error ends the process cleanly: its listener was shut down
			err = nil   // said by the process
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running = slices.DeleteFunc(s.running, func(n string) bool { return n == name })
		if s.err == nil {
			s.err = err
		}
	})
}

// end stops the parts and waits for them until ctx ends.
func (s *stage) end(ctx context.Context) error {
	s.stop()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return s.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("drain: time is up, and there still runs: %s", strings.Join(s.running, ", "))
	}
}

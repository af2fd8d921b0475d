package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"floodgate.internal/backend/reserve"
)

// pulse shows others that an attempt is at work.
type pulse struct {
	lost context.Context // ends when the gate is no longer the attempt's
	stop context.CancelFunc
	done sync.WaitGroup
}

// beats raises the sale's beat until the pulse or ctx ends, or the gate is lost. Each statement, call and wait of an attempt has its
// own time limit. So an attempt that hangs ends, and its pulse with it.
func (a *attempt) beats(ctx context.Context) *pulse {
	ctx, stop := context.WithCancel(ctx)
	lost, lose := context.WithCancel(context.Background())
	p := &pulse{lost: lost, stop: stop}
	p.done.Go(func() {
		tick := time.NewTicker(a.r.beat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if err := a.r.redis.Beat(ctx, a.sale, a.token); errors.Is(err, reserve.ErrLost) {
				lose()
				return
			} // after any other error the attempt's own calls fail, too
		}
	})
	return p
}

// end ends the pulse, and waits until no beat follows. It may be called more than once.
func (p *pulse) end() {
	p.stop()
	p.done.Wait()
}

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"floodgate.internal/backend/lock"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// aloneLease is the lease unless Config.Lease says otherwise.
const aloneLease = 3 * time.Second

// alone waits until no other process does the work of this name, at most for takeoverTime, and keeps the others waiting until done
// is called. It only saves work, for any number of reconcilers may run at once. So the caller goes on without the lock if it
// cannot be had or is lost. The only error is that ctx has ended.
func (r *Reconciler) alone(ctx context.Context, name string) (done func(), err error) {
	hold, err := r.locks.Acquire(ctx, name, lock.NewOwner(), r.lease, r.takeover)
	if ctx.Err() != nil {
		if hold != nil {
			r.leave(name, hold)
		}
		return nil, ctx.Err()
	}
	if err != nil {
		r.log.Warn("going on beside whoever else is at it", "lock", name, "error", err)
		return func() {}, nil
	}
	return func() { r.leave(name, hold) }, nil
}

func (r *Reconciler) leave(name string, hold *lock.Hold) {
	if err := hold.Release(); err != nil && !errors.Is(err, lock.ErrNotOwner) {
		r.log.Debug("the others wait until the lease ends", "lock", name, "error", err)
	}
}

// Load reconciles a sale that is not in Redis. Of all callers at the same time, in any process, one does it and the others wait.
// After nil its gate is open, or was a moment ago. reserve.ErrGateClosed: it is being reconciled for another reason. That
// reconciler finishes or, if it died, Keep does.
func (r *Reconciler) Load(ctx context.Context, sale int64) error {
	done, err := r.alone(ctx, loadName(sale))
	if err != nil {
		return err
	}
	defer done()
	states, err := r.redis.States(ctx, []int64{sale})
	switch {
	case err != nil:
		return err
	case !states[0].Present:
		return r.Sale(ctx, sale)
	case states[0].Gate != lua.GateOpen:
		return fmt.Errorf("load sale %d: %w", sale, reserve.ErrGateClosed)
	}
	return nil
}

func loadName(sale int64) string { return "load-" + strconv.FormatInt(sale, 10) }

package backend

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"floodgate.internal/backend/durability"
)

// durabilityLog logs what an accepted order survives by the stores' settings, whenever that changes.
type durabilityLog struct {
	log  *slog.Logger
	last atomic.Pointer[durability.Report]
}

// read reads the settings, and logs what they mean when that is new.
func (d *durabilityLog) read(ctx context.Context, stores durability.Stores) durability.Report {
	r := durability.Read(ctx, stores)
	if ctx.Err() != nil { // what could not be read meanwhile says nothing
		return r
	}
	if last := d.last.Swap(&r); last != nil && last.Same(r) {
		return r
	}
	args := []any{"accept.after", r.AcceptAfter}
	for _, t := range r.Settings {
		args = append(args, t.Store+atNode(t.Where)+"."+t.Name, t.Value)
	}
	if r.Weak {
		d.log.Warn("an accepted order survives "+r.Survives, append(args, "advice", r.Advice())...)
	} else {
		d.log.Info("an accepted order survives "+r.Survives, args...)
	}
	return r
}

func atNode(where string) string {
	if where == "" {
		return ""
	}
	return "." + where
}

// watch reads the settings each minute: they can be changed while the stores run.
func (d *durabilityLog) watch(stores durability.Stores) func(context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(durability.Every)
		defer tick.Stop()
		for {
			d.read(ctx, stores)
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}
}

// stores are those that are connected by now.
func (p *process) stores() durability.Stores {
	return durability.Stores{Redis: p.redis.Client(), DB: p.db, Broker: p.broker, Confirm: p.config.Accept.After == AfterConfirm, Replicas: p.config.Accept.replicas()}
}

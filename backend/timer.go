package backend

import (
	"context"
	"time"

	"floodgate.internal/backend/admin"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/revocation"
)

// How long a piece of periodic work rests when there is nothing to do: for orders and units, for deferred orders, which keep a
// sale closed, and where it only tidies up.
const (
	timerEvery    = time.Second
	deferredEvery = 200 * time.Millisecond
	pruneEvery    = 10 * time.Second
)

// How long one pass may take; one that archives a sale, whose audit reads all of its orders.
const (
	passTime    = 30 * time.Second
	archiveTime = 2 * time.Minute
)

// periodic is work that is done again and again. A pass returns how much it did; while that is something the next one follows
// at once.
type periodic struct {
	name   string
	every  time.Duration // between two passes when there is nothing to do
	within time.Duration // for one pass
	pass   func(context.Context) (int, error)
}

// beginTimer starts what is done by the clock. operator is the admin API.
func (p *process) beginTimer(work *stage, operator *admin.Admin) {
	sender := event.NewSender(event.SenderConfig{DB: p.db, Events: p.events, Clock: p.clk, Log: p.log, Register: p.reg, Keep: p.config.Events.Keep,
		Private: p.config.Development})
	work.start("events", sender.Run)
	p.startPeriodic(work,
		periodic{"expiry", timerEvery, passTime, p.orders.Expire},
		periodic{"standby lines", timerEvery, passTime, p.standby.Sweep},
		periodic{"the expiry of coupons", timerEvery, passTime, p.claims.Expire},
		periodic{"intents", timerEvery, passTime, p.intents.Run},
		periodic{"intents of SKUs", timerEvery, passTime, p.intents.RunSKUs},
		periodic{"carts", timerEvery, passTime, p.carts.Sweep},
		periodic{"unsold units", timerEvery, passTime, p.closing.ReturnUnsold},
		periodic{"the archive of sales that are over", pruneEvery, archiveTime, func(ctx context.Context) (int, error) {
			return p.closing.ArchiveOver(ctx, p.config.Sales.archiveAfter())
		}},
		periodic{"old timelines", pruneEvery, passTime, p.timelines.Prune},
		periodic{"old requests of carts", pruneEvery, passTime, p.carts.Prune},
		periodic{"old places in standby lines", pruneEvery, passTime, p.standby.Prune},
		periodic{"events of sales", timerEvery, passTime, func(ctx context.Context) (int, error) {
			return p.events.Moments(ctx, p.db, p.clk.Now().Truncate(time.Millisecond))
		}},
		periodic{"old events", pruneEvery, passTime, sender.Tend},
		periodic{"payments", pruneEvery, passTime, p.payments.Tend},
		periodic{"done intents", pruneEvery, passTime, p.intents.Prune},
		periodic{"done intents of SKUs", pruneEvery, passTime, p.intents.PruneSKUs},
		periodic{"old Idempotency-Keys", pruneEvery, passTime, operator.PruneKeys},
		periodic{"old revocations of tokens", pruneEvery, passTime, func(ctx context.Context) (int, error) {
			return revocation.Prune(ctx, p.db, p.clk.Now())
		}},
		periodic{"old lists", pruneEvery, passTime, func(ctx context.Context) (int, error) { return eligibility.Prune(ctx, p.db) }},
	)
	work.start("histories of sales", p.timelines.Watch(p.catalog.Feed))
}

func (p *process) startPeriodic(s *stage, list ...periodic) {
	for _, w := range list {
		s.start(w.name, p.repeat(w))
	}
}

// repeat makes one pass after the other while there is something to do, and else rests. A failure is logged once, and tried
// again with growing pauses.
func (p *process) repeat(w periodic) func(context.Context) error {
	return func(ctx context.Context) error {
		const most = 10 * time.Second
		rest, failing := w.every, false
		for {
			try, cancel := context.WithTimeout(ctx, w.within)
			n, err := w.pass(try)
			cancel()
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				if !failing {
					p.log.Warn("timer: "+w.name+" fails and is tried again", "error", err)
				}
				rest, failing = min(2*rest, most), true
			default:
				if failing {
					p.log.Info("timer: " + w.name + " works again")
				}
				rest, failing = w.every, false
				if n > 0 {
					continue
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(rest):
			}
		}
	}
}

package backend

import (
	"context"
	"errors"
	"slices"
	"time"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/queued"
)

// beginConsumer starts what settles orders.
func (p *process) beginConsumer(work *stage, name string) {
	work.start("consumer", p.consumer(name))
	if p.broker != nil {
		work.start("dead letters", func(ctx context.Context) error { return p.broker.ConsumeDead(ctx, p.deadLetters.Take) })
	}
	p.startPeriodic(work, periodic{"deferred orders", deferredEvery, passTime, func(ctx context.Context) (int, error) {
		return p.orders.SettleDeferred(ctx, p.deadLetters.Deferred)
	}})
}

// consumer settles orders until ctx ends, and then finishes what it has begun.
func (p *process) consumer(name string) func(context.Context) error {
	c := p.config
	if p.broker != nil {
		return func(ctx context.Context) error {
			return p.broker.Consume(ctx, c.Orders.Batch, c.Orders.BatchWait, broker.Handler{Settle: p.settleOrKeep, Postpone: p.orders.Defer,
				Settled: func(ctx context.Context, batch []queued.Entry) {
					if err := p.orders.Retire(ctx, batch); err != nil { // they are published again, MySQL knows them, and they are retired then
						p.log.Warn("settled orders stay in the outbox for now", "orders", len(batch), "error", err)
					}
				}})
		}
	}
	reader := outbox.NewReader(p.reader(name))
	return func(ctx context.Context) error {
		return reader.Run(ctx, func(ctx context.Context, batch []queued.Entry) error {
			ctx, cancel := grace(ctx, settleGrace)
			defer cancel()
			var kept queued.PoisonError
			for part := range slices.Chunk(batch, c.Orders.Batch) {
				var poison *queued.PoisonError
				if err := p.settle(ctx, part); errors.As(err, &poison) {
					kept.Entries, kept.Err = append(kept.Entries, poison.Entries...), poison.Err
				} else if err != nil {
					return err
				}
			}
			if len(kept.Entries) > 0 {
				return &kept
			}
			return nil
		})
	}
}

// settleOrKeep settles entries of a queue that several sales share. Those for which MySQL takes no row at all become dead letters. A
// *queued.KeptError names these, and those that are deferred.
func (p *process) settleOrKeep(ctx context.Context, batch []queued.Entry) error {
	err := p.orders.SettleOrDefer(ctx, batch)
	var poison *queued.PoisonError
	if !errors.As(err, &poison) {
		return err
	}
	if err := p.deadLetters.Poison(ctx, broker.QueueName(p.broker.Partition(batch[0].Sale)), poison); err != nil {
		return err
	}
	all := queued.KeptError{Entries: poison.Entries}
	if kept := (*queued.KeptError)(nil); errors.As(err, &kept) {
		all.Entries = append(all.Entries, kept.Entries...)
	}
	return &all
}

// settle brings entries that come straight from the outbox to their end, and retires them. Those for which MySQL takes no
// row at all become dead letters, stay in the outbox, which holds their units, and are named in a queued.PoisonError. Where
// some are of a closed sale the others are settled and retired, and the error is the queued.ClosedError: the reader tries each
// sale by itself then.
func (p *process) settle(ctx context.Context, batch []queued.Entry) error {
	err := p.orders.Settle(ctx, batch)
	var poison *queued.PoisonError
	var closed *queued.ClosedError
	isPoison, isClosed := errors.As(err, &poison), errors.As(err, &closed)
	if err != nil && !isPoison && !isClosed {
		return err
	}
	if isPoison && !isClosed {
		if err := p.deadLetters.Poison(ctx, outbox.Queue, poison); err != nil {
			return err
		}
	}
	good := batch
	if isPoison {
		good = without(good, poison.Entries)
	}
	if isClosed {
		good = without(good, closed.Entries)
	}
	if err := p.orders.Retire(ctx, good); err != nil {
		return err
	}
	switch {
	case isClosed:
		return closed
	case isPoison:
		return poison
	}
	return nil
}

// without is a batch without those of its entries whose orders are named.
func without(batch, named []queued.Entry) []queued.Entry {
	ids := make(map[string]bool, len(named))
	for _, e := range named {
		ids[e.ID] = true
	}
	return slices.DeleteFunc(slices.Clone(batch), func(e queued.Entry) bool { return ids[e.ID] })
}

// settleGrace is how long a batch that is being settled may go on when the process ends.
const settleGrace = 5 * time.Second

// grace is a context that ends a while after its parent.
func grace(parent context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		select {
		case <-ctx.Done():
		case <-time.After(after):
			cancel()
		}
	})
	return ctx, func() { stop(); cancel() }
}

package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/tracing"
)

// Publisher is the broker, as the relay needs it.
type Publisher interface {
	// Publish returns nil once the broker has confirmed every entry.
	Publish(ctx context.Context, entries []queued.Entry) error
	// Fence returns nil once everything that was published to the sale's partition before is settled.
	Fence(ctx context.Context, sale int64) error
	// Partition is the number of the sale's queue.
	Partition(sale int64) int
}

// Relay publishes what the outboxes hold. It retires nothing: a confirmed entry is marked as published, and stays until its order
// is settled. The broker has lost an entry that is still there after a later fence has passed its partition. Only then it is
// published again, so nothing is queued twice however long MySQL is away.
type Relay struct {
	*Reader
	pub         Publisher
	tracer      *tracing.Tracer
	spare       time.Duration // 0: publish at once
	deferred    func(ctx context.Context, sale int64) (bool, error)
	republished prometheus.Counter
	spared      prometheus.Counter
}

// RelayConfig is what a Relay needs. If entries that were published ClaimIdle ago are not retired, it sends a fence.
type RelayConfig struct {
	ReaderConfig
	Broker Publisher
	Tracer *tracing.Tracer // nil: nothing is traced

	// Spare makes the relay the safety net of Confirmers, which publish their orders at once: it publishes only entries that are
	// not marked as published for so long after it has read them. 0: it publishes at once.
	Spare time.Duration
	// Deferred reports whether orders of a sale are deferred: nothing of it is published again meanwhile. Nil: none ever is.
	Deferred func(ctx context.Context, sale int64) (bool, error)
}

// NewRelay makes a Relay and registers its metrics.
func NewRelay(c RelayConfig) *Relay {
	r := &Relay{Reader: NewReader(c.ReaderConfig), pub: c.Broker, tracer: c.Tracer, spare: c.Spare, deferred: c.Deferred,
		republished: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_outbox_republished_total",
			Help: "Entries that the broker had confirmed and lost, published again."})}
	r.spared = prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_outbox_overdue_total",
		Help: "Entries that whoever made them did not publish in time, published by the relay (accept.after: confirm)."})
	c.Register.MustRegister(r.republished, r.spared)
	return r
}

// Run relays until ctx is cancelled, and then returns nil.
func (r *Relay) Run(ctx context.Context) error {
	var g errgroup.Group
	handle := r.relay
	if r.spare > 0 {
		handle = func(context.Context, []queued.Entry) error { return nil } // they stay pending for keepSparing
		g.Go(func() error { r.keepSparing(ctx); return nil })
	}
	g.Go(func() error { return r.Reader.Run(ctx, handle) })
	g.Go(func() error { r.keepAsking(ctx); return nil })
	return g.Wait()
}

// publish is Publish, with a span for each traced entry. The messages name those spans, so that what settles them is below.
func publish(ctx context.Context, pub Publisher, tracer *tracing.Tracer, batch []queued.Entry) error {
	batch, spans := queued.Trace(tracer, "publish", tracing.Producer, batch)
	err := pub.Publish(ctx, batch)
	spans.End(err)
	return err
}

func (r *Relay) relay(ctx context.Context, batch []queued.Entry) error {
	if err := publish(ctx, r.pub, r.tracer, batch); err != nil {
		return err
	}
	failpoint.Hit("relay.before-noted")
	for sale := range bySale(batch) {
		r.unsettled.Store(sale, nil)
	}
	return r.mark(ctx, batch)
}

// keepSparing publishes what this relay has read and no Confirmer has published in time.
func (r *Relay) keepSparing(ctx context.Context) {
	tick := time.NewTicker(max(r.spare/2, look))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, sale := range r.live() {
			if err := r.publishOverdue(ctx, sale); err != nil && ctx.Err() == nil {
				r.log.Warn("outbox: publish what nobody has published", "sale", sale, "error", err)
				break
			}
		}
	}
}

// publishOverdue publishes entries of a sale that this relay has held for too long. The claim makes an entry that fails wait
// as long again.
func (r *Relay) publishOverdue(ctx context.Context, sale int64) error {
	for ctx.Err() == nil {
		ids, err := r.idle(ctx, sale, r.name, r.spare, count)
		if err != nil || len(ids) == 0 {
			return err
		}
		claimed, err := r.claim(ctx, sale, idsOf(ids), r.spare)
		if err != nil {
			return err
		}
		var late []queued.Entry
		for _, row := range claimed {
			if row.err == nil && !row.gone {
				late = append(late, row.entry)
			}
		}
		if len(late) == 0 {
			continue
		}
		if err := r.relay(ctx, late); err != nil {
			return errors.Join(err, r.excuse(ctx, sale, idsOf(ids))) // the broker failed, not the entries
		}
		r.spared.Add(float64(len(late)))
	}
	return nil
}

// keepAsking looks for entries that were published claimIdle ago, of the sales that have published ones, and sends a fence to each partition that has some.
func (r *Relay) keepAsking(ctx context.Context) {
	asking := map[int]chan struct{}{} // the partitions that have a fence under way; the goroutine closes it when done
	var g errgroup.Group
	tick := time.NewTicker(max(r.claimIdle/2, look))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = g.Wait() // they return nil
			return
		case <-tick.C:
		}
		late := map[int][]int64{}
		for _, sale := range r.live() {
			if _, some := r.unsettled.Load(sale); !some {
				continue
			}
			ids, err := r.idle(ctx, sale, Published, r.claimIdle, 1)
			if err != nil {
				r.log.Warn("outbox: look for what was published long ago", "error", err)
				break
			}
			if len(ids) > 0 {
				late[r.pub.Partition(sale)] = append(late[r.pub.Partition(sale)], sale)
			}
		}
		for partition, sales := range late {
			select {
			case <-asking[partition]:
				delete(asking, partition)
			default:
			}
			if asking[partition] == nil {
				done := make(chan struct{})
				asking[partition] = done
				g.Go(func() error {
					defer close(done)
					if err := r.ask(ctx, sales); err != nil && ctx.Err() == nil {
						r.log.Warn("outbox: publish again what was lost", "sales", sales, "error", err)
					}
					return nil
				})
			}
		}
	}
}

// ask waits until a partition has settled everything that it held, however long that takes. Then it publishes again what was
// published before and is not retired.
func (r *Relay) ask(ctx context.Context, sales []int64) error {
	began := time.Now()
	if err := r.pub.Fence(ctx, sales[0]); err != nil {
		return err
	}
	for _, sale := range sales {
		if r.deferred != nil {
			if waits, err := r.deferred(ctx, sale); err != nil {
				return err
			} else if waits {
				continue
			}
		}
		for ctx.Err() == nil {
			before := r.claimIdle + time.Since(began)
			ids, err := r.idle(ctx, sale, Published, before, count)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				break
			}
			lost, err := r.claim(ctx, sale, idsOf(ids), before)
			if err != nil {
				return err
			}
			var again []queued.Entry
			for _, row := range lost {
				if row.err == nil && !row.gone {
					again = append(again, row.entry)
				}
			}
			if len(again) == 0 {
				continue
			}
			if err := r.relay(ctx, again); err != nil { // this consumer holds them now, and hands them over again
				return err
			}
			r.republished.Add(float64(len(again)))
			r.log.Info("outbox: published again", "sale", sale, "entries", len(again))
		}
	}
	return nil
}

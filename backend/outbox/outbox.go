// Package outbox reads the outboxes of the live sales. An outbox is a stream in Redis. sale_reserve.lua writes every order
// into it, and the entry stays until the order's row in MySQL is committed. Delivery is at least once: an entry stays pending
// with its consumer until it is retired, and another consumer takes over what one that died has left. See docs/rabbitmq.md.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/failpoint"
)

const (
	salesPerCall = 64                     // outboxes that one call reads, at most
	fewest       = 50                     // entries of an outbox that one call reads, at most, if there are many outboxes
	count        = 500                    // the same, if there are few
	maxBatch     = 500                    // entries that one call of the handler gets, at most
	look         = 50 * time.Millisecond  // between two looks at which sales are live
	block        = 150 * time.Millisecond // how long a read waits; with look, how soon a new sale is read
	mostBlock    = time.Second            // the same where there are many groups of outboxes, which wait longer, so that they ask as often in all
)

// Of a sale of which nobody held anything in calmRounds looks in a row, only every calmEvery-th look is taken, while nothing new is read.
const (
	calmRounds = 4
	calmEvery  = 12
)

// An entry is a dead letter after deliveryLimit deliveries to consumers that died before they reported an error. From
// suspicious deliveries on it is handled alone, so that it does not hold up others.
const (
	deliveryLimit = 50
	suspicious    = 3
)

// Reader reads every live sale's outbox as one consumer of the group.
type Reader struct {
	stream
	deadLetter func(ctx context.Context, m queued.DeadMessage) error
	live       func() []int64
	claimIdle  time.Duration
	peers      peers
	reads      atomic.Int64 // groups of outboxes, each of which is read by a call of its own
	unsettled  sync.Map     // the sales (int64) of which Published held something at the last look, or that were published since
	log        *slog.Logger
	read       prometheus.Counter
	claimed    prometheus.Counter
	failed     prometheus.Counter
	skipped    prometheus.Counter
}

// ReaderConfig is what a Reader needs.
type ReaderConfig struct {
	Redis    *reserve.Store
	Log      *slog.Logger
	Register prometheus.Registerer

	// Live returns the sales to read. It is asked again and again.
	Live func() []int64
	// Name is the consumer's, unique among all processes, ever.
	Name string
	// ClaimIdle is how long an entry may be pending with any consumer but Published until this one takes it over, unless that
	// consumer is known to be dead.
	ClaimIdle time.Duration
	// DeadLetter takes an entry that is no order, or was delivered too often (deadletter.Store.Take). Nil says that it is kept,
	// and that its order is retired with a row in MySQL, or stays in the outbox on purpose. Without DeadLetter an entry that is no
	// order is skipped, and the others are delivered on.
	DeadLetter func(ctx context.Context, m queued.DeadMessage) error
}

// NewReader makes a Reader and registers its metrics.
func NewReader(c ReaderConfig) *Reader {
	counter := func(name, help string) prometheus.Counter {
		n := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		c.Register.MustRegister(n)
		return n
	}
	return &Reader{
		stream: stream{redis: c.Redis, name: c.Name}, deadLetter: c.DeadLetter, live: c.Live, claimIdle: c.ClaimIdle, log: c.Log,
		peers:   peers{seen: map[string]peer{}},
		read:    counter("backend_outbox_read_total", "Entries read from the outboxes, repeats included."),
		claimed: counter("backend_outbox_claimed_total", "Entries that were pending for too long, or with a dead consumer, and taken over."),
		failed:  counter("backend_outbox_handle_errors_total", "Batches of entries whose handling failed; they are handled again."),
		skipped: counter("backend_outbox_stray_total", "Entries that were pending with nobody though later ones had been read: Redis brought them back."),
	}
}

// Run hands entries to handle until ctx is cancelled, and then returns nil. It survives any state of Redis.
//
// A batch has at most 500 entries and may mix sales. The entries of one sale come in order, one batch at a time. A handler
// that succeeds has retired or marked the entries, except those that a queued.PoisonError names: these stay pending and come
// again after claimIdle. If the handler fails, all entries stay pending and come again, with growing pauses. A sale whose
// entries fail alone does not hold up the others.
func (r *Reader) Run(ctx context.Context, handle func(ctx context.Context, batch []queued.Entry) error) error {
	if r.name == Published {
		return fmt.Errorf("the consumer name %q is taken", Published)
	}
	var g errgroup.Group
	g.Go(func() error { r.keepBeating(ctx); return nil })
	var workers []*worker
	tick := time.NewTicker(look)
	defer tick.Stop()
	var divided []int64 // the sales that the workers have
	for ctx.Err() == nil {
		if live := r.live(); !slices.Equal(live, divided) {
			divided = slices.Clone(live)
			groups := r.groups(live)
			r.reads.Store(int64(len(groups)))
			for i, sales := range groups {
				if i == len(workers) {
					w := &worker{r: r, handle: handle, known: map[int64]*progress{}}
					workers = append(workers, w)
					w.sales.Store(&sales)
					g.Go(func() error { w.run(ctx); return nil })
					continue
				}
				workers[i].sales.Store(&sales)
			}
			for _, w := range workers[len(groups):] { // they wait for more groups
				w.sales.Store(&[]int64{})
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return g.Wait()
}

// groups divides sales into what one call can read: at most 64 of them; on a cluster, those of one hash slot.
func (r *Reader) groups(sales []int64) [][]int64 {
	sales = slices.Clone(sales)
	slices.Sort(sales)
	if r.redis.Client().Mode() != rueidis.ClientModeCluster {
		return slices.Collect(slices.Chunk(sales, salesPerCall))
	}
	bySlot := map[uint16][]int64{}
	var slots []uint16
	for _, sale := range sales {
		slot := redis.Slot(r.redis.OutboxKey(sale))
		if bySlot[slot] == nil {
			slots = append(slots, slot)
		}
		bySlot[slot] = append(bySlot[slot], sale)
	}
	groups := make([][]int64, len(slots))
	for i, slot := range slots {
		groups[i] = bySlot[slot]
	}
	return groups
}

// block is how long a read waits for something new. On a cluster the groups are many and small, and share the connections that may wait.
func (r *Reader) block() time.Duration {
	if r.redis.Client().Mode() == rueidis.ClientModeCluster {
		return block
	}
	return min(block*time.Duration(max(1, r.reads.Load())), mostBlock)
}

// worker is the goroutine that reads some of the sales.
type worker struct {
	r      *Reader
	handle func(context.Context, []queued.Entry) error
	sales  atomic.Pointer[[]int64]
	known  map[int64]*progress // used by the goroutine alone
	rounds int64               // looks for what was held for too long
}

// progress is how far a worker is with a sale.
type progress struct {
	absent bool      // Redis has nothing of the sale: look again at next
	looked string    // the last entry that was looked at for skipped ones; "": none
	behind bool      // this consumer holds entries that must be handled first
	deaths int64     // of readers, whose entries were taken over
	calm   int       // looks in a row at which nobody held anything
	next   time.Time // the earliest time of the next attempt
	pause  time.Duration
}

func (p *progress) failed() {
	p.behind = true
	p.pause = min(max(2*p.pause, 100*time.Millisecond), 3*time.Second)
	p.next = time.Now().Add(p.pause)
}

func (w *worker) run(ctx context.Context) {
	nextClaim := time.Now() // at once: a consumer may have died while none looked
	for ctx.Err() == nil {
		sales := *w.sales.Load()
		switch err := w.step(ctx, sales, &nextClaim); {
		case err == nil:
		case errors.Is(err, errNoGroup):
			clear(w.known) // an outbox was removed with its group, which is created again
		case ctx.Err() == nil:
			w.r.log.Warn("outbox", "error", err)
			clear(w.known) // Redis may have been restarted, with or without its data
			sleep(ctx, 500*time.Millisecond)
		}
	}
}

// step does once what is due. Its errors are Redis's.
func (w *worker) step(ctx context.Context, sales []int64, nextClaim *time.Time) error {
	if err := w.meet(ctx, sales); err != nil {
		return err
	}
	wait := w.r.block()
	ahead := make([]int64, 0, len(sales))
	for _, sale := range sales {
		p := w.known[sale]
		if p.absent {
			continue
		}
		if p.behind && !time.Now().Before(p.next) {
			if err := w.catchUp(ctx, sale, p); err != nil {
				return err
			}
		}
		if p.behind {
			wait = min(wait, max(time.Until(p.next), time.Millisecond))
		} else {
			ahead = append(ahead, sale)
		}
	}
	for _, sale := range ahead {
		if err := w.inherit(ctx, sale); err != nil {
			return err
		}
	}
	if !time.Now().Before(*nextClaim) {
		*nextClaim = time.Now().Add(w.r.claimIdle / 2)
		w.rounds++
		for _, sale := range ahead {
			if !w.due(sale) {
				continue
			}
			if err := w.takeOver(ctx, sale); err != nil {
				return err
			}
		}
	}
	if len(ahead) == 0 {
		sleep(ctx, min(wait, look))
		return nil
	}
	found, err := w.r.fresh(ctx, ahead, max(fewest, count/int64(len(ahead))), wait)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		failpoint.Hit("relay.after-read")
	}
	for sale := range found {
		w.known[sale].calm = 0
	}
	return w.give(ctx, found)
}

// due reports whether a sale is looked at in this round. Calm ones take turns, by their ids.
func (w *worker) due(sale int64) bool {
	return w.known[sale].calm < calmRounds || (w.rounds+sale)%calmEvery == 0
}

// meet prepares sales that are new to the worker and forgets those that left it.
func (w *worker) meet(ctx context.Context, sales []int64) error {
	var strangers []int64
	for _, sale := range sales {
		if p := w.known[sale]; p == nil || p.absent && !time.Now().Before(p.next) {
			strangers = append(strangers, sale)
		}
	}
	there := make([]bool, len(strangers))
	var g errgroup.Group // at most salesPerCall, which share one pipeline
	for i, sale := range strangers {
		g.Go(func() (err error) { there[i], err = w.r.redis.Join(ctx, sale); return err })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, sale := range strangers {
		w.known[sale] = &progress{behind: true}
		if !there[i] {
			w.known[sale] = &progress{absent: true, next: time.Now().Add(look)}
		}
	}
	if len(w.known) > len(sales) {
		for sale := range w.known {
			if !slices.Contains(sales, sale) {
				delete(w.known, sale)
				w.r.unsettled.Delete(sale)
			}
		}
	}
	return nil
}

// catchUp handles what this consumer holds of a sale.
func (w *worker) catchUp(ctx context.Context, sale int64, p *progress) error {
	for after := "0"; ; {
		held, err := w.r.own(ctx, sale, after, count)
		if err != nil {
			return err
		}
		if len(held) == 0 {
			*p = progress{}
			return nil
		}
		after = held[len(held)-1].id
		if err := w.give(ctx, map[int64][]row{sale: held}); err != nil {
			return err
		}
		if p.next.After(time.Now()) || ctx.Err() != nil { // it failed
			return nil
		}
	}
}

// inherit handles what dead readers held of a sale, once for each death.
func (w *worker) inherit(ctx context.Context, sale int64) error {
	deaths := w.r.peers.deaths.Load()
	if w.known[sale].deaths == deaths {
		return nil
	}
	if _, err := w.takeFrom(ctx, sale, w.r.peers.dead); err != nil {
		return err
	}
	w.known[sale].deaths = deaths
	return nil
}

// takeFrom handles what these consumers have held for too long. others: there are some, but for this one, that hold nothing.
func (w *worker) takeFrom(ctx context.Context, sale int64, from func(consumer string) bool) (others bool, err error) {
	holders, others, err := w.r.holders(ctx, sale)
	if err != nil {
		return false, err
	}
	if w.known[sale].calm++; len(holders) > 0 {
		w.known[sale].calm = 0
	}
	if slices.Contains(holders, Published) {
		w.r.unsettled.Store(sale, nil)
	} else {
		w.r.unsettled.Delete(sale)
	}
	for _, name := range holders {
		if name == Published || !from(name) {
			continue
		}
		atLeast := w.r.patience(name)
		for !w.known[sale].behind && ctx.Err() == nil {
			ids, err := w.r.idle(ctx, sale, name, atLeast, count)
			if err != nil {
				return false, err
			}
			if len(ids) == 0 {
				break
			}
			for part := range together(ids) {
				if w.known[sale].behind || ctx.Err() != nil {
					break
				}
				if err := w.claim(ctx, sale, name, part, atLeast); err != nil {
					return false, err
				}
			}
			if len(ids) < count {
				break
			}
		}
	}
	return others, nil
}

// takeOver handles what any consumer has held for too long, and removes consumers that are gone.
func (w *worker) takeOver(ctx context.Context, sale int64) error {
	others, err := w.takeFrom(ctx, sale, func(string) bool { return true })
	if err != nil {
		return err
	}
	if err := w.takeSkipped(ctx, sale); err != nil {
		return err
	}
	if !others {
		return nil
	}
	return w.r.redis.SweepOutbox(ctx, sale, max(10*w.r.claimIdle, time.Minute), w.r.name, Published)
}

// takeSkipped makes this consumer hold skipped entries. They are handled when they have been pending for too long.
func (w *worker) takeSkipped(ctx context.Context, sale int64) error {
	p := w.known[sale]
	next, found, err := w.r.redis.StrayEntries(ctx, sale, w.r.name, cmp.Or(p.looked, "-"), w.r.claimIdle)
	if err != nil {
		return err
	}
	p.looked = next
	if len(found) > 0 {
		w.r.skipped.Add(float64(len(found)))
		w.r.log.Warn("outbox: entries were pending with nobody; they are handled now", "sale", sale, "entries", len(found), "first", found[0])
	}
	return nil
}

// together splits entries into batches. A suspicious entry gets a batch of its own.
func together(list []held) iter.Seq[[]held] {
	return func(yield func([]held) bool) {
		for len(list) > 0 {
			n := 0
			for n < len(list) && list[n].deliveries < suspicious {
				n++
			}
			n = max(n, 1)
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// claim takes entries over from a consumer and hands them on. One that was delivered too often becomes a dead letter.
func (w *worker) claim(ctx context.Context, sale int64, from string, part []held, atLeast time.Duration) error {
	claimed, err := w.r.claim(ctx, sale, idsOf(part), atLeast)
	if err != nil {
		return err
	}
	if len(claimed) > 0 {
		failpoint.Hit("relay.during-claim")
	}
	w.r.claimed.Add(float64(len(claimed)))
	if len(claimed) > 0 {
		w.r.log.Info("outbox: entries taken over", "sale", sale, "from", from, "entries", len(claimed))
	}
	if n := part[0].deliveries; n >= deliveryLimit && w.r.deadLetter != nil && len(claimed) == 1 && claimed[0].err == nil && !claimed[0].gone {
		e := claimed[0].entry
		_, err := w.deadLetter(ctx, sale, claimed[0].id, queued.DeadMessage{Queue: Queue, Payload: queued.Encode(e), Deliveries: n, Entry: &e,
			Reason: fmt.Sprintf("delivered %d times and never settled: whoever tried it ended", n)})
		return err
	}
	return w.give(ctx, map[int64][]row{sale: claimed})
}

// deadLetter gives a dead letter away, or leaves its entry pending for now. Its errors are Redis's.
func (w *worker) deadLetter(ctx context.Context, sale int64, id string, m queued.DeadMessage) (kept bool, err error) {
	if err = w.r.deadLetter(ctx, m); err == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	w.r.failed.Inc()
	w.r.log.Warn("outbox: a dead letter stays pending and is tried again", "sale", sale, "entry", id, "error", err)
	w.known[sale].failed()
	return false, nil
}

// give hands entries over. The sales whose entries fail are behind from then on. Its errors are Redis's.
func (w *worker) give(ctx context.Context, found map[int64][]row) error {
	var all []queued.Entry
	for sale, rows := range found {
		var drop, retire []string
		for _, row := range rows {
			switch {
			case row.gone:
				drop = append(drop, row.id)
			case row.err != nil && w.r.deadLetter == nil:
				w.r.log.Error("outbox: an entry is no order: it is left out", "sale", sale, "error", row.err)
				drop = append(drop, row.id)
			case row.err != nil:
				payload, err := json.Marshal(row.raw, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
				if err != nil {
					panic("BUG: fields that do not marshal: " + err.Error())
				}
				kept, err := w.deadLetter(ctx, sale, row.id, queued.DeadMessage{Queue: Queue, Payload: payload, Deliveries: 1, Reason: row.err.Error()})
				if err != nil {
					return err
				}
				if kept {
					retire = append(retire, row.id)
				}
			default:
				all = append(all, row.entry)
			}
		}
		w.r.read.Add(float64(len(rows)))
		if len(drop) > 0 {
			if err := w.r.drop(ctx, sale, drop); err != nil {
				return err
			}
		}
		if err := w.r.redis.Retire(ctx, sale, retire); err != nil { // they are kept as dead letters
			return err
		}
	}
	failed := map[int64][]string{}
	for part := range slices.Chunk(all, maxBatch) {
		if err := w.try(ctx, part); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			w.r.failed.Inc()
			w.apart(ctx, part, err, failed)
		}
	}
	for sale, ids := range failed {
		w.known[sale].failed()
		if err := w.r.excuse(ctx, sale, ids); err != nil {
			return err
		}
	}
	return nil
}

// try calls the handler. Poison stays pending, and comes again when it has been idle for claimIdle.
func (w *worker) try(ctx context.Context, batch []queued.Entry) error {
	err := w.handle(ctx, batch)
	var kept *queued.PoisonError
	if !errors.As(err, &kept) {
		return err
	}
	for sale, ids := range bySale(kept.Entries) {
		if err := w.r.excuse(ctx, sale, ids); err != nil {
			return err
		}
	}
	return nil
}

// apart handles a batch that failed again, each sale by itself.
func (w *worker) apart(ctx context.Context, batch []queued.Entry, err error, failed map[int64][]string) {
	parts := map[int64][]queued.Entry{}
	for _, e := range batch {
		parts[e.Sale] = append(parts[e.Sale], e)
	}
	for sale, part := range parts {
		if len(parts) > 1 {
			err = w.try(ctx, part)
		}
		if err != nil {
			for _, e := range part {
				failed[sale] = append(failed[sale], e.Entry)
			}
			if !w.known[sale].behind {
				w.r.log.Warn("outbox: entries stay pending and are handled again", "sale", sale, "entries", len(part), "error", err)
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

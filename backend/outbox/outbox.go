// Package outbox reads the outboxes of the live sales: the streams in Redis into which sale_reserve.lua writes every order it
// makes, and in which an order stays until its row in MySQL is committed.
//
// Delivery is at least once. An entry is pending with the consumer that was given it until it is retired; what is left
// pending by a consumer that died, or that failed, is handled again.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/failpoint"
)

const (
	laneSales = 64                     // outboxes that one call reads, at most
	fewest    = 50                     // entries of an outbox that one call reads, at most, where there are many outboxes
	count     = 500                    // the same, where there are few
	maxBatch  = 500                    // entries that one call of the handler gets, at most
	look      = 50 * time.Millisecond  // between looks at which sales are live
	block     = 150 * time.Millisecond // that a read waits; with look, how soon a new sale is read
)

// An entry that was delivered deliveryLimit times, each time to a consumer that ended over it without a word, is a dead
// letter. From suspicious deliveries on it is handled alone, so that it takes no other with it.
const (
	deliveryLimit = 50
	suspicious    = 3
)

// Bury takes a dead letter (deadletter.Box.Take): nil says that it is kept, and that its order, if it is one, has a row in
// MySQL and is retired, or stays in the outbox on purpose.
type Bury func(ctx context.Context, m deadletter.Message) error

// Reader reads every live sale's outbox as one consumer of the group.
type Reader struct {
	stream
	bury      Bury
	live      func() []int64
	claimIdle time.Duration
	log       *slog.Logger
	read      prometheus.Counter
	claimed   prometheus.Counter
	failed    prometheus.Counter
	stray     prometheus.Counter
}

// ReaderConfig is what a Reader needs.
type ReaderConfig struct {
	Redis    *reserve.Store
	Log      *slog.Logger
	Register prometheus.Registerer

	// Live says which sales there are; its answer may change.
	Live func() []int64
	// Name is the consumer's, unique among all processes, ever.
	Name string
	// ClaimIdle is how long an entry may be pending with any consumer but Published before this one takes it over.
	ClaimIdle time.Duration
	// Bury gets what is no order, or was delivered too often. Nil: the former is left out, and the latter is delivered again.
	Bury Bury
}

// NewReader makes a Reader and registers its metrics.
func NewReader(c ReaderConfig) *Reader {
	counter := func(name, help string) prometheus.Counter {
		n := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		c.Register.MustRegister(n)
		return n
	}
	return &Reader{
		stream: stream{redis: c.Redis, name: c.Name}, bury: c.Bury, live: c.Live, claimIdle: c.ClaimIdle, log: c.Log,
		read:    counter("backend_outbox_read_total", "Entries read from the outboxes, repeats included."),
		claimed: counter("backend_outbox_claimed_total", "Entries that were pending for too long and taken over."),
		failed:  counter("backend_outbox_handle_errors_total", "Batches of entries whose handling failed; they are handled again."),
		stray:   counter("backend_outbox_stray_total", "Entries that were pending with nobody though later ones had been read: Redis brought them back."),
	}
}

// Run hands entries to handle in batches of at most 500, which may mix sales, until ctx is cancelled; the entries of one
// sale come in order, one batch at a time. A handler that succeeds has retired the entries or marked them, but for those that an
// order.PoisonError names: these stay pending, and come again after claimIdle. When it fails all stay pending and
// are handed over again, with growing pauses; a sale whose entries fail alone does not hold up the others. Run survives
// any state of Redis and returns nil at the end.
func (r *Reader) Run(ctx context.Context, handle func(ctx context.Context, batch []reserve.Entry) error) error {
	if r.name == Published {
		return fmt.Errorf("the consumer name %q is taken", Published)
	}
	var g errgroup.Group
	var lanes []*lane
	tick := time.NewTicker(look)
	defer tick.Stop()
	for ctx.Err() == nil {
		groups := r.groups(r.live())
		for i, sales := range groups {
			if i == len(lanes) {
				l := &lane{r: r, handle: handle, known: map[int64]*progress{}}
				lanes = append(lanes, l)
				l.sales.Store(&sales)
				g.Go(func() error { l.run(ctx); return nil })
				continue
			}
			lanes[i].sales.Store(&sales)
		}
		for _, l := range lanes[len(groups):] { // kept for later; they wait
			l.sales.Store(&[]int64{})
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return g.Wait()
}

// groups divides sales into what one call can read: up to 64 of them, on a cluster those of one hash slot.
func (r *Reader) groups(sales []int64) [][]int64 {
	sales = slices.Clone(sales)
	slices.Sort(sales)
	if r.redis.Client().Mode() != rueidis.ClientModeCluster {
		return slices.Collect(slices.Chunk(sales, laneSales))
	}
	bySlot := map[uint16][]int64{}
	var slots []uint16
	for _, sale := range sales {
		slot := reserve.Slot(r.redis.OutboxKey(sale))
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

// lane is the goroutine that reads some of the sales.
type lane struct {
	r      *Reader
	handle func(context.Context, []reserve.Entry) error
	sales  atomic.Pointer[[]int64]
	known  map[int64]*progress // of the goroutine alone
}

// progress is how far a lane is with a sale.
type progress struct {
	absent bool      // nothing of the sale is in Redis: look again at next
	looked string    // the entry up to which none is stray; "": none was looked at
	behind bool      // what this consumer holds must be handled first
	next   time.Time // not before
	pause  time.Duration
}

func (p *progress) failed() {
	p.behind = true
	p.pause = min(max(2*p.pause, 100*time.Millisecond), 3*time.Second)
	p.next = time.Now().Add(p.pause)
}

func (l *lane) run(ctx context.Context) {
	nextClaim := time.Now() // at once: somebody may have died while nobody looked
	for ctx.Err() == nil {
		sales := *l.sales.Load()
		switch err := l.step(ctx, sales, &nextClaim); {
		case err == nil:
		case errors.Is(err, errNoGroup):
			clear(l.known) // an outbox was emptied, with its group, which is made anew
		case ctx.Err() == nil:
			l.r.log.Warn("outbox", "error", err)
			clear(l.known) // Redis may have been restarted, with or without its data: begin anew
			sleep(ctx, 500*time.Millisecond)
		}
	}
}

// step does what is due once. An error is Redis's.
func (l *lane) step(ctx context.Context, sales []int64, nextClaim *time.Time) error {
	if err := l.meet(ctx, sales); err != nil {
		return err
	}
	wait := block
	ahead := make([]int64, 0, len(sales))
	for _, sale := range sales {
		p := l.known[sale]
		if p.absent {
			continue
		}
		if p.behind && !time.Now().Before(p.next) {
			if err := l.catchUp(ctx, sale, p); err != nil {
				return err
			}
		}
		if p.behind {
			wait = min(wait, max(time.Until(p.next), time.Millisecond))
		} else {
			ahead = append(ahead, sale)
		}
	}
	if !time.Now().Before(*nextClaim) {
		*nextClaim = time.Now().Add(l.r.claimIdle / 2)
		for _, sale := range ahead {
			if err := l.takeOver(ctx, sale); err != nil {
				return err
			}
		}
	}
	if len(ahead) == 0 {
		sleep(ctx, min(wait, look))
		return nil
	}
	found, err := l.r.fresh(ctx, ahead, max(fewest, count/int64(len(ahead))), wait)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		failpoint.Hit("relay.after-read")
	}
	return l.give(ctx, found)
}

// meet prepares sales that are new to the lane and forgets those that left it.
func (l *lane) meet(ctx context.Context, sales []int64) error {
	var strangers []int64
	for _, sale := range sales {
		if p := l.known[sale]; p == nil || p.absent && !time.Now().Before(p.next) {
			strangers = append(strangers, sale)
		}
	}
	there := make([]bool, len(strangers))
	var g errgroup.Group // at most laneSales, which share one pipeline
	for i, sale := range strangers {
		g.Go(func() (err error) { there[i], err = l.r.redis.Join(ctx, sale); return err })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, sale := range strangers {
		l.known[sale] = &progress{behind: true}
		if !there[i] {
			l.known[sale] = &progress{absent: true, next: time.Now().Add(look)}
		}
	}
	if len(l.known) > len(sales) {
		for sale := range l.known {
			if !slices.Contains(sales, sale) {
				delete(l.known, sale)
			}
		}
	}
	return nil
}

// catchUp handles what this consumer holds of a sale.
func (l *lane) catchUp(ctx context.Context, sale int64, p *progress) error {
	for after := "0"; ; {
		held, err := l.r.own(ctx, sale, after, count)
		if err != nil {
			return err
		}
		if len(held) == 0 {
			*p = progress{}
			return nil
		}
		after = held[len(held)-1].id
		if err := l.give(ctx, map[int64][]row{sale: held}); err != nil {
			return err
		}
		if p.next.After(time.Now()) || ctx.Err() != nil { // it failed
			return nil
		}
	}
}

// takeOver handles what anybody has held for too long, and forgets consumers that are gone.
func (l *lane) takeOver(ctx context.Context, sale int64) error {
	holders, err := l.r.holders(ctx, sale)
	if err != nil {
		return err
	}
	for _, name := range holders {
		if name == Published {
			continue
		}
		for !l.known[sale].behind && ctx.Err() == nil {
			ids, err := l.r.idle(ctx, sale, name, l.r.claimIdle, count)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				break
			}
			for part := range together(ids) {
				if l.known[sale].behind || ctx.Err() != nil {
					break
				}
				if err := l.claim(ctx, sale, name, part); err != nil {
					return err
				}
			}
			if len(ids) < count {
				break
			}
		}
	}
	if err := l.adoptStray(ctx, sale); err != nil {
		return err
	}
	return l.r.redis.SweepOutbox(ctx, sale, max(10*l.r.claimIdle, time.Minute), l.r.name, Published)
}

// adoptStray makes entries that nobody holds this consumer's: they are handled when they have been pending for too long.
func (l *lane) adoptStray(ctx context.Context, sale int64) error {
	p := l.known[sale]
	next, found, err := l.r.redis.StrayEntries(ctx, sale, l.r.name, cmp.Or(p.looked, "-"), l.r.claimIdle)
	if err != nil {
		return err
	}
	p.looked = next
	if len(found) > 0 {
		l.r.stray.Add(float64(len(found)))
		l.r.log.Warn("outbox: entries were pending with nobody; they are handled now", "sale", sale, "entries", len(found), "first", found[0])
	}
	return nil
}

// together parts what can be claimed and handled at once: a suspicious entry is alone.
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

// claim takes entries over from a consumer and hands them on; one that was delivered too often is a dead letter.
func (l *lane) claim(ctx context.Context, sale int64, from string, part []held) error {
	claimed, err := l.r.claim(ctx, sale, idsOf(part), l.r.claimIdle)
	if err != nil {
		return err
	}
	if len(claimed) > 0 {
		failpoint.Hit("relay.during-claim")
	}
	l.r.claimed.Add(float64(len(claimed)))
	if len(claimed) > 0 {
		l.r.log.Info("outbox: entries taken over", "sale", sale, "from", from, "entries", len(claimed))
	}
	if n := part[0].deliveries; n >= deliveryLimit && l.r.bury != nil && len(claimed) == 1 && claimed[0].err == nil && !claimed[0].gone {
		e := claimed[0].entry
		_, err := l.buried(ctx, sale, claimed[0].id, deadletter.Message{Queue: Queue, Payload: deadletter.Encode(e), Deliveries: n, Entry: &e,
			Reason: fmt.Sprintf("delivered %d times and never settled: whoever tried it ended", n)})
		return err
	}
	return l.give(ctx, map[int64][]row{sale: claimed})
}

// buried gives a dead letter away, or leaves its entry pending for now. An error is Redis's.
func (l *lane) buried(ctx context.Context, sale int64, id string, m deadletter.Message) (kept bool, err error) {
	if err = l.r.bury(ctx, m); err == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	l.r.failed.Inc()
	l.r.log.Warn("outbox: a dead letter stays pending and is tried again", "sale", sale, "entry", id, "error", err)
	l.known[sale].failed()
	return false, nil
}

// give hands entries over; the sales whose entries fail are behind from then on. An error is Redis's.
func (l *lane) give(ctx context.Context, found map[int64][]row) error {
	var all []reserve.Entry
	for sale, rows := range found {
		var drop, retire []string
		for _, row := range rows {
			switch {
			case row.gone:
				drop = append(drop, row.id)
			case row.err != nil && l.r.bury == nil:
				l.r.log.Error("outbox: an entry is no order: it is left out", "sale", sale, "error", row.err)
				drop = append(drop, row.id)
			case row.err != nil:
				payload, err := json.Marshal(row.raw, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
				if err != nil {
					panic("BUG: fields that do not marshal: " + err.Error())
				}
				kept, err := l.buried(ctx, sale, row.id, deadletter.Message{Queue: Queue, Payload: payload, Deliveries: 1, Reason: row.err.Error()})
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
		l.r.read.Add(float64(len(rows)))
		if len(drop) > 0 {
			if err := l.r.drop(ctx, sale, drop); err != nil {
				return err
			}
		}
		if err := l.r.redis.Retire(ctx, sale, retire); err != nil { // they are kept as dead letters
			return err
		}
	}
	failed := map[int64][]string{}
	for part := range slices.Chunk(all, maxBatch) {
		if err := l.try(ctx, part); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			l.r.failed.Inc()
			l.apart(ctx, part, err, failed)
		}
	}
	for sale, ids := range failed {
		l.known[sale].failed()
		if err := l.r.excuse(ctx, sale, ids); err != nil {
			return err
		}
	}
	return nil
}

// try calls the handler. Entries that it keeps stay pending, and come again when they have been idle for long.
func (l *lane) try(ctx context.Context, batch []reserve.Entry) error {
	err := l.handle(ctx, batch)
	var kept *order.PoisonError
	if !errors.As(err, &kept) {
		return err
	}
	for sale, ids := range bySale(kept.Entries) {
		if err := l.r.excuse(ctx, sale, ids); err != nil {
			return err
		}
	}
	return nil
}

// apart handles a batch that failed again, each sale by itself.
func (l *lane) apart(ctx context.Context, batch []reserve.Entry, err error, failed map[int64][]string) {
	parts := map[int64][]reserve.Entry{}
	for _, e := range batch {
		parts[e.Sale] = append(parts[e.Sale], e)
	}
	for sale, part := range parts {
		if len(parts) > 1 {
			err = l.try(ctx, part)
		}
		if err != nil {
			for _, e := range part {
				failed[sale] = append(failed[sale], e.Entry)
			}
			if !l.known[sale].behind {
				l.r.log.Warn("outbox: entries stay pending and are handled again", "sale", sale, "entries", len(part), "error", err)
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

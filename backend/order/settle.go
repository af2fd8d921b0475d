package order

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/wire"
)

const (
	maxBatch  = 500     // orders in one transaction; a longer batch is settled in several
	maxUnits  = 1000000 // of one order
	maxRounds = 1000    // how often one call of Settle sorts what is left anew, before it asks to be called again
)

// Settle brings a batch of orders to an end in MySQL: orders of any sales, each any number of times. After nil each order
// has been inserted, now or before, or rejected with a terminal row and an intent to release it, or re-queued in its
// sale's current epoch. In the last case its new outbox entry is delivered separately. A *queued.PoisonError, a
// *queued.ClosedError, or both joined, name the entries for which this does not hold. After any other error acknowledge
// nothing: hold the batch and call again.
//
// A batch is one transaction. If that fails, Settle drops what MySQL has already, and tries the rest in halves, down to
// the single order that cannot be inserted, which it decides by itself.
func (s *Store) Settle(ctx context.Context, batch []queued.Entry) error {
	return s.settle(ctx, batch, &settling{store: s})
}

func (s *Store) settle(ctx context.Context, batch []queued.Entry, c *settling) error {
	began := time.Now()
	var err error
	batch, c.spans = queued.Trace(s.tracer, "settle", tracing.Consumer, batch)
	for chunk := range slices.Chunk(newest(batch), maxBatch) {
		if err = c.settle(ctx, chunk); err != nil {
			break
		}
	}
	s.notify(ctx, c.notices)
	for _, n := range c.notices {
		c.spans.Text(n.id, "status", string(n.status))
	}
	c.spans.End(tracing.Failed(err, "not settled"))
	s.metrics.batch.Observe(float64(len(batch)))
	s.metrics.duration.Observe(time.Since(began).Seconds())
	if err != nil {
		return err
	}
	var left []error
	if len(c.poison) > 0 {
		left = append(left, &queued.PoisonError{Entries: c.poison, Err: c.cause})
	}
	if len(c.closed) > 0 {
		left = append(left, &queued.ClosedError{Entries: c.closed, Err: c.why})
	}
	return errors.Join(left...)
}

// newest keeps one entry of each order, that of the highest epoch, sorted by order id, so that all transactions take
// their locks in the same order.
func newest(batch []queued.Entry) []queued.Entry {
	sorted := slices.Clone(batch)
	slices.SortFunc(sorted, func(x, y queued.Entry) int { return cmp.Or(cmp.Compare(x.ID, y.ID), cmp.Compare(y.Epoch, x.Epoch)) })
	return slices.CompactFunc(sorted, func(x, y queued.Entry) bool { return x.ID == y.ID })
}

// settling is one call of Settle.
type settling struct {
	store   *Store
	rounds  int
	spans   queued.Spans // of the batch's traced entries
	notices []notice
	poison  []queued.Entry
	cause   error
	closed  []queued.Entry // they cannot be adopted now
	why     error
	behind  bool // orders behind deferred ones of their sale are not adopted before them
}

// facts is what inserting an order needs to know of its sale.
type facts struct {
	coupon    bool
	versioned bool      // its units are guarded by the version of the stock row
	ends      time.Time // until then a coupon can be used
	archived  bool
	price     int64
	payWithin time.Duration
	epoch     int64
}

func (s *Store) facts(ctx context.Context, entries []queued.Entry) (map[int64]facts, error) {
	var sales []int64
	for _, e := range entries {
		if !slices.Contains(sales, e.Sale) {
			sales = append(sales, e.Sale)
		}
	}
	known := make(map[int64]facts, len(sales))
	if len(sales) == 0 {
		return known, nil
	}
	err := store.Each(ctx, s.db, func(rows *sql.Rows) error {
		var id, seconds int64
		var kind wire.SaleKind
		var guard string
		var f facts
		if err := rows.Scan(&id, &kind, &guard, &f.ends, &f.price, &seconds, &f.archived, &f.epoch); err != nil {
			return err
		}
		f.coupon, f.versioned, f.payWithin = kind == wire.Coupon, guard == GuardVersion, time.Duration(seconds)*time.Second
		known[id] = f
		return nil
	}, `SELECT s.id, s.kind, s.stock_guard, s.ends_at, s.price, s.pay_within_s, s.archived_at IS NOT NULL, k.epoch FROM sales s JOIN sale_stock k ON k.sale_id = s.id
		WHERE s.id IN (`+store.Marks(len(sales))+`)`, store.Anys(sales)...)
	if err != nil {
		return nil, fmt.Errorf("read %d sales: %w", len(sales), err)
	}
	return known, nil
}

// settle sorts entries by what is to be done with them, and does it.
func (c *settling) settle(ctx context.Context, entries []queued.Entry) error {
	if c.rounds++; c.rounds > maxRounds {
		return fmt.Errorf("settle: epochs move faster than %d orders can be settled", len(entries))
	}
	sales, err := c.store.facts(ctx, entries)
	if err != nil {
		return err
	}
	var current, old, late []queued.Entry
	for _, e := range entries {
		f, ok := sales[e.Sale]
		problem, row := check(e)
		switch {
		case problem != nil && !row:
			c.spoiled(e, problem)
		case problem != nil:
			c.store.log.Error("order: an entry contradicts itself", "entry", e, "error", problem)
			err = c.reject(ctx, e, f, verdict{reason: Malformed, gone: !ok})
		case !ok:
			err = c.reject(ctx, e, f, verdict{reason: UnknownSale, gone: true})
		case f.archived:
			late = append(late, e)
		case e.Epoch == f.epoch:
			current = append(current, e)
		default:
			old = append(old, e)
		}
		if err != nil {
			return err
		}
	}
	if err := c.tooLate(ctx, late, sales); err != nil {
		return err
	}
	if err := c.insert(ctx, current, sales); err != nil {
		return err
	}
	return c.adopt(ctx, old, sales)
}

// tooLate ends entries of archived sales. MySQL has their orders, for none was missing when the sale was archived. An
// order that it does not have had been lost by both Redis and the queue. It is rejected, with an error in the log, for
// there is no sale to adopt it.
func (c *settling) tooLate(ctx context.Context, entries []queued.Entry, sales map[int64]facts) error {
	left, err := c.missing(ctx, entries)
	for _, e := range left {
		if err == nil {
			err = c.reject(ctx, e, sales[e.Sale], verdict{reason: Archived, gone: true})
		}
	}
	return err
}

// check returns what is wrong with an entry, and whether it can have a row of its own nevertheless.
func check(e queued.Entry) (problem error, row bool) {
	if sale, ok := wire.SaleOfOrder(e.ID); !ok || sale != e.Sale {
		return fmt.Errorf("%q is no order id of sale %d", e.ID, e.Sale), false
	}
	if !wire.ValidUID(e.UID) {
		return fmt.Errorf("%q is no uid", e.UID), false
	}
	if e.Quantity < 1 || e.Quantity > maxUnits {
		return fmt.Errorf("quantity %d is not between 1 and %d", e.Quantity, maxUnits), true
	}
	if _, err := slots(e); err != nil {
		return err, true
	}
	if e.Key != "" && !wire.ValidIdempotencyKey(e.Key) && !wire.IsOffer(e.ID, e.Key) {
		return fmt.Errorf("%q is no Idempotency-Key", e.Key), true
	}
	if e.At < 0 || e.At > maxMillis {
		return fmt.Errorf("at %d is no time", e.At), true
	}
	return nil, true
}

const maxMillis = 253402300799999 // the end of the year 9999

// slots reads "1,2". There must be as many different slots as units.
func slots(e queued.Entry) ([]int, error) {
	parts := strings.Split(e.Slots, ",")
	if len(parts) != e.Quantity {
		return nil, fmt.Errorf("slots %q for %d units", e.Slots, e.Quantity)
	}
	list := make([]int, len(parts))
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 || n > maxUnits || slices.Contains(list[:i], n) {
			return nil, fmt.Errorf("slots %q for %d units", e.Slots, e.Quantity)
		}
		list[i] = n
	}
	return list, nil
}

// spoiled puts an entry aside for the dead letters.
func (c *settling) spoiled(e queued.Entry, cause error) {
	c.store.log.Error("order: an entry can have no row in MySQL", "entry", e, "error", cause)
	c.store.metrics.poison.Inc()
	c.poison, c.cause = append(c.poison, e), cause
}

// drop handles orders that MySQL had before: delivered again, or decided by another process.
func (c *settling) drop(ctx context.Context, known []row) error {
	var ended []row
	for _, r := range known {
		c.notices = append(c.notices, notice{r.id, r.status})
		if r.status.Terminal() && !r.status.Live() {
			ended = append(ended, r)
		}
	}
	c.store.metrics.settled.WithLabelValues("known").Add(float64(len(known)))
	return c.store.releaseAgain(ctx, ended)
}

// insert puts entries of their sales' current epochs into MySQL.
func (c *settling) insert(ctx context.Context, entries []queued.Entry, sales map[int64]facts) error {
	if len(entries) == 0 {
		return nil
	}
	s := c.store
	began := time.Now()
	err := s.insertAll(ctx, entries, sales)
	c.spans.Step("commit", began, entries, tracing.Failed(err, "not committed"))
	if err == nil {
		s.metrics.settled.WithLabelValues("inserted").Add(float64(len(entries)))
		s.left(entries...)
		for _, e := range entries {
			c.notices = append(c.notices, notice{e.ID, firstStatus(sales[e.Sale])})
			if wire.IsOffer(e.ID, e.Key) {
				s.returned(e.Sale) // perhaps no user waits any more
			}
		}
		return nil
	}
	judged := errors.Is(err, errUnits) || store.Refused(err)
	if !judged && !errors.Is(err, store.ErrUnknown) {
		return err
	}
	left, e := c.missing(ctx, entries)
	if e != nil {
		return errors.Join(err, e)
	}
	if len(left) == 0 {
		return nil
	}
	if !judged { // the outcome of the COMMIT is unknown: hold the batch
		return err
	}
	fresh, e := s.facts(ctx, left)
	if e != nil {
		return errors.Join(err, e)
	}
	for _, e := range left {
		if f, ok := fresh[e.Sale]; !ok || f.epoch != e.Epoch {
			return c.settle(ctx, left)
		}
	}
	switch {
	case len(left) < len(entries):
		return c.insert(ctx, left, fresh)
	case len(left) == 1:
		return c.decide(ctx, left[0], fresh[left[0].Sale], err)
	}
	half := len(left) / 2
	if err := c.insert(ctx, left[:half], fresh); err != nil {
		return err
	}
	return c.insert(ctx, left[half:], fresh)
}

// missing drops the entries that MySQL has, once they are durable there, and returns the others.
func (c *settling) missing(ctx context.Context, entries []queued.Entry) ([]queued.Entry, error) {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	known, err := find(ctx, c.store.db, ids)
	if err != nil {
		return nil, err
	}
	if len(known) > 0 { // committed by somebody else, perhaps just now; or by a COMMIT whose answer was lost
		if err := store.Durable(ctx, c.store.db); err != nil {
			return nil, err
		}
	}
	left := slices.DeleteFunc(slices.Clone(entries), func(e queued.Entry) bool { _, ok := known[e.ID]; return ok })
	return left, c.drop(ctx, slices.Collect(maps.Values(known)))
}

func firstStatus(f facts) wire.OrderStatus {
	if f.coupon {
		return wire.Issued
	}
	return wire.PendingPayment
}

// errSlot: another live order of the buyer has the slot.
var errSlot = errors.New("the buyer's slot is taken")

// insertAll inserts entries in one transaction, or nothing: each with its slots, units and ledger row, those of coupons
// with their claims. An offer moves its place in the standby line on. An offer whose owner has left the line is due at
// once.
func (s *Store) insertAll(ctx context.Context, entries []queued.Entry, sales map[int64]facts) error {
	failpoint.Hit("consumer.before-begin")
	err := store.InTx(ctx, s.db, func(tx *sql.Tx) error {
		now := s.now()
		in := insertion{orders: make([]any, 0, 10*len(entries)), slots: make([]slot, 0, len(entries)), moves: make([]move, 0, len(entries))}
		for _, e := range entries {
			if err := s.add(ctx, tx, now, &in, e, sales[e.Sale]); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, idem_key, created_at, decided_at, pay_before)
			VALUES `+store.Tuples(len(entries), 10), in.orders...); err != nil {
			return fmt.Errorf("insert %d orders: %w", len(entries), err)
		}
		failpoint.Hit("consumer.after-orders")
		if err := takeSlots(ctx, tx, in.slots); err != nil {
			return err
		}
		failpoint.Hit("consumer.after-slots")
		if len(in.issued) > 0 {
			if err := coupon.Issue(ctx, tx, now, in.issued); err != nil {
				return err
			}
			failpoint.Hit("consumer.after-claims")
		}
		if err := moveStock(ctx, tx, now, in.moves); err != nil {
			return err
		}
		if err := s.tellCreated(ctx, tx, now, in); err != nil {
			return err
		}
		failpoint.Hit("consumer.before-commit")
		return nil
	})
	if err == nil {
		failpoint.Hit("consumer.after-commit")
	}
	return err
}

// insertion is what one transaction inserts.
type insertion struct {
	orders []any // values of rows
	slots  []slot
	moves  []move
	issued []coupon.Issued
	told   []event.Event // none where nobody is told
}

// slot is one of a buyer's slots in a sale, and the order that takes it.
type slot struct {
	sale int64
	uid  string
	n    int
	id   string
}

// add adds an entry, and moves the place of an offer in the standby line on.
func (s *Store) add(ctx context.Context, tx *sql.Tx, now time.Time, in *insertion, e queued.Entry, f facts) error {
	status, payBefore := firstStatus(f), sql.NullTime{Time: now.Add(f.payWithin), Valid: !f.coupon}
	if wire.IsOffer(e.ID, e.Key) {
		waits, err := standby.Offered(ctx, tx, now, e.Sale, e.UID, e.ID)
		if err != nil {
			return err
		}
		within := time.Duration(0)
		if waits {
			within = min(s.acceptWithin, f.payWithin)
		}
		payBefore.Time = now.Add(within)
	}
	in.orders = append(in.orders, e.ID, e.Sale, e.UID, e.Quantity, f.price*int64(e.Quantity), string(status), nullable(e.Key), time.UnixMilli(e.At).UTC(), now, payBefore)
	list, err := slots(e)
	if err != nil {
		panic("BUG: an unchecked entry: " + err.Error())
	}
	for _, n := range list {
		in.slots = append(in.slots, slot{e.Sale, e.UID, n, e.ID})
	}
	m := move{sale: e.Sale, epoch: f.epoch, order: e.ID, kind: ledger.Order, available: -int64(e.Quantity), locked: int64(e.Quantity)}
	if f.coupon {
		m.kind, m.locked, m.sold = ledger.Issue, 0, int64(e.Quantity)
		in.issued = append(in.issued, coupon.Issued{Order: e.ID, UID: e.UID, Sale: e.Sale, Slots: list, Until: f.ends})
	}
	if f.versioned {
		m.guard = s.byVersion
	}
	in.moves = append(in.moves, m)
	if s.events.On() {
		o := row{id: e.ID, sale: e.Sale, quantity: e.Quantity, amount: f.price * int64(e.Quantity), status: status, created: time.UnixMilli(e.At), payBefore: payBefore}
		in.told = append(in.told, event.OrderEvent(o.wire(), e.UID))
	}
	return nil
}

// takeSlots inserts slots in one order for all transactions. errSlot: another order has one of them.
func takeSlots(ctx context.Context, tx *sql.Tx, taken []slot) error {
	slices.SortFunc(taken, func(x, y slot) int {
		return cmp.Or(cmp.Compare(x.sale, y.sale), cmp.Compare(x.uid, y.uid), cmp.Compare(x.n, y.n))
	})
	args := make([]any, 0, 4*len(taken))
	for _, t := range taken {
		args = append(args, t.sale, t.uid, t.n, t.id)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO order_slots (sale_id, uid, slot, order_id) VALUES `+store.Tuples(len(taken), 4), args...); err != nil {
		if store.Duplicate(err) {
			err = fmt.Errorf("%w: %w", errSlot, err)
		}
		return fmt.Errorf("take %d slots: %w", len(taken), err)
	}
	return nil
}

func nullable(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }

// decide ends an order that MySQL does not have and cannot insert.
func (c *settling) decide(ctx context.Context, e queued.Entry, f facts, cause error) error {
	v := verdict{reason: Refused}
	switch {
	case errors.Is(cause, errUnits):
		v = verdict{reason: OutOfStock, unless: int64(e.Quantity)}
	case errors.Is(cause, errSlot):
		v.reason = OverLimit
	case store.Duplicate(cause):
		v.reason = DuplicateKey
	}
	return c.reject(ctx, e, f, v)
}

// adopt re-queues entries of older epochs in the current ones. It asks MySQL first, for an order that MySQL has must not
// come back. The epochs were read before that, so a call that slept through a reconciliation meanwhile is refused.
func (c *settling) adopt(ctx context.Context, entries []queued.Entry, sales map[int64]facts) error {
	if len(entries) == 0 {
		return nil
	}
	left, err := c.missing(ctx, entries)
	if err != nil {
		return err
	}
	if c.behind && len(left) > 0 {
		if left, err = c.ahead(ctx, left); err != nil {
			return err
		}
	}
	if len(left) == 0 {
		return nil
	}
	epochs := map[int64]int64{}
	for _, e := range left {
		epochs[e.Sale] = sales[e.Sale].epoch
	}
	failpoint.Hit("consumer.before-adopt")
	answers, err := c.store.redis.Adopt(ctx, left, epochs)
	failpoint.Hit("consumer.after-adopt")
	if ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err != nil { // some may be adopted nevertheless; the next call finds them present
		c.closed, c.why = append(c.closed, left...), err
		return nil
	}
	adopted := map[int64]int{}
	for i, e := range left {
		switch answers[i] {
		case lua.SoldOut:
			err = c.reject(ctx, e, sales[e.Sale], verdict{reason: OutOfStock})
		case lua.Limit:
			err = c.reject(ctx, e, sales[e.Sale], verdict{reason: OverLimit})
		case lua.KeyReused:
			err = c.reject(ctx, e, sales[e.Sale], verdict{reason: DuplicateKey})
		case lua.Adopted, lua.Present:
			c.store.metrics.settled.WithLabelValues("adopted").Inc()
			adopted[e.Sale]++
		default:
			c.closed, c.why = append(c.closed, e), fmt.Errorf("adopt order %s: %w", e.ID, reserve.ErrGateClosed)
		}
		if err != nil {
			return err
		}
	}
	for sale, n := range adopted {
		c.store.log.Info("order: orders of older epochs are adopted", "sale", sale, "orders", n, "epoch", epochs[sale])
	}
	return nil
}

// Retire removes the entries of settled orders from their outboxes, after they were acknowledged. Idempotent.
func (s *Store) Retire(ctx context.Context, batch []queued.Entry) error {
	bySale := map[int64][]string{}
	for _, e := range batch {
		if e.Entry != "" && e.Entry != "-" {
			bySale[e.Sale] = append(bySale[e.Sale], e.Entry)
		}
	}
	var errs []error
	for sale, entries := range bySale {
		for chunk := range slices.Chunk(entries, maxBatch) {
			errs = append(errs, s.redis.Retire(ctx, sale, chunk))
		}
	}
	return errors.Join(errs...)
}

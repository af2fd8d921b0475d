package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// mostOrphans is how many orphans (see read) there may be at once. When Redis dies it tears one script, and so one order, which is
// adopted or rejected within seconds. If there are more, somebody has deleted their reservations.
const mostOrphans = 16

// attempt is one reconciler at one sale. Its methods are the steps of the procedure, in order.
type attempt struct {
	r      *Reconciler
	sale   int64
	gates  gates // nil: the Store's
	token  int64
	first  bool      // the sale was never in any Redis: nothing of it can be queued
	left   bool      // another reconciler had closed the gate and not opened it: the queue itself may wait for that
	began  time.Time // when the gate was closed; zero: it is not
	pulse  *pulse    // since the gate was closed
	load   reserve.Loaded
	undone []int64 // intents that load includes and that are not marked as done yet
	held   int     // reservations that were written

	settled   int            // of load's orders: those of MySQL, which come first, by their ids
	forgotten []reserve.Held // MySQL had them
}

// gates close the gates of sales.
type gates interface {
	Shut(ctx context.Context, sale, token int64) (present bool, err error)
}

// close is steps 0 and 1. From then on the attempt beats, whatever it waits for, until run ends.
func (a *attempt) close(ctx context.Context) error {
	if err := a.r.step(ctx, a.begin); err != nil {
		return err
	}
	failpoint.Hit("reconcile.after-token")
	if err := a.r.step(ctx, a.shut); err != nil {
		return err
	}
	a.began = time.Now()
	a.pulse = a.beats(ctx)
	failpoint.Hit("reconcile.after-shut")
	return nil
}

// run takes every step that is left. reserve.ErrLost: another reconciler took over, or Redis has lost what this one did.
func (a *attempt) run(ctx context.Context) error {
	if a.began.IsZero() {
		if err := a.close(ctx); err != nil {
			return err
		}
	}
	defer a.pulse.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.pulse.lost, cancel)() // the work is in vain from then on
	err := a.work(ctx)
	if err != nil && a.pulse.lost.Err() != nil {
		return reserve.ErrLost
	}
	return err
}

func (a *attempt) work(ctx context.Context) error {
	if err := a.drain(ctx); err != nil {
		return err
	}
	if err := a.r.step(ctx, func(ctx context.Context) error {
		if err := a.read(ctx); err != nil {
			return err
		}
		failpoint.Hit("reconcile.after-read")
		return a.write(ctx)
	}); err != nil {
		return err
	}
	failpoint.Hit("reconcile.after-write")
	if err := a.adopted(ctx); err != nil {
		return err
	}
	failpoint.Hit("reconcile.before-open")
	a.pulse.end()
	if err := a.open(ctx); err != nil {
		return err
	}
	a.r.seconds.Observe(time.Since(a.began).Seconds())
	a.r.log.Info("sale is reconciled and open", "sale", a.sale, "epoch", a.load.Epoch, "token", a.token, "reservations", a.held,
		"stock", a.load.Stock, "total", a.load.Total, "took", time.Since(a.began).Round(time.Millisecond))
	return nil
}

// begin is step 0: a token higher than any before.
func (a *attempt) begin(ctx context.Context) error {
	return store.InTx(ctx, a.r.db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE sale_stock SET token = token + 1 WHERE sale_id = ?`, a.sale); err != nil {
			return fmt.Errorf("take a token: %w", err)
		}
		// Read after the stock row is locked, which an archive locks, too: so the sale is not archived before this commits.
		var archived sql.NullTime
		err := tx.QueryRowContext(ctx, `SELECT archived_at FROM sales WHERE id = ?`, a.sale).Scan(&archived)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrUnknown
		}
		if err != nil {
			return fmt.Errorf("read the sale: %w", err)
		}
		if archived.Valid {
			return ErrArchived
		}
		var epoch int64
		if err := tx.QueryRowContext(ctx, `SELECT token, epoch FROM sale_stock WHERE sale_id = ?`, a.sale).Scan(&a.token, &epoch); err != nil {
			return fmt.Errorf("take a token: %w", err)
		}
		a.first = epoch == 0
		return nil
	})
}

// shut is step 1. From here on nothing is reserved or released, and only a newer reconciler gets further.
func (a *attempt) shut(ctx context.Context) error {
	states, err := a.r.redis.States(ctx, []int64{a.sale})
	if err != nil {
		return err
	}
	a.left = states[0].Present && states[0].Gate != lua.GateOpen
	var gates gates = a.r.redis
	if a.gates != nil {
		gates = a.gates
	}
	present, err := gates.Shut(ctx, a.sale, a.token)
	if err != nil {
		return err
	}
	a.first = a.first && !present // if it is present, another reconciler may have loaded it meanwhile
	return nil
}

// drain is step 2: what the queue holds of the current epoch gets into MySQL. It is bounded, for what is not settled in time is
// adopted later.
func (a *attempt) drain(ctx context.Context) error {
	if a.r.fence == nil || a.first {
		return nil
	}
	within := a.r.drain
	if a.left {
		within /= 8
	}
	short, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := a.r.fence.Fence(short, a.sale); err != nil {
		if ctx.Err() != nil {
			return err
		}
		a.r.log.Warn("the queue could not be drained before reconciling: its orders are adopted afterwards", "sale", a.sale, "error", err)
	}
	return nil
}

// readPage is how many rows one statement reads.
const readPage = 2000

// read is step 3. It reads O from Redis, whose outbox only shrinks while the gate is closed. It raises the epoch, which keeps every
// older message out. Then it reads all that MySQL has, by pages, but as of one moment. Nothing waits for the reading. No order is
// inserted after that moment, for no message has the new epoch before write. Whatever ends an order leaves an intent, which is
// done once, when the gate is open.
//
// An entry is an orphan if Redis does not hold its order and MySQL does not have it. A Redis that dies while it writes a script's
// effects leaves the first of them in its append-only file. Started again, it drops them, but writes on behind them. Started once
// more, it takes them for a part of the transaction that follows, and they are back (valkey-io/valkey#4342). The order was promised to
// nobody, and its unit may be promised to another since. So it is no part of O: it gets what is left when it is adopted.
//
// A reservation that is neither in O nor in M is of an order that MySQL had and has forgotten: see past.go.
func (a *attempt) read(ctx context.Context) error {
	outbox, bad, err := a.r.redis.Outbox(ctx, a.sale)
	if err != nil {
		return err
	}
	for _, err := range bad {
		a.r.log.Error("an outbox entry is no order: it is left out", "sale", a.sale, "error", err)
	}
	unheld, err := a.r.redis.Unheld(ctx, a.sale, outbox)
	if err != nil {
		return err
	}
	if err := a.raise(ctx); err != nil {
		return err
	}
	return a.readRows(ctx, outbox, unheld)
}

// raise raises the epoch. The stock row is locked for no longer than that.
func (a *attempt) raise(ctx context.Context) error {
	return store.InTx(ctx, a.r.db, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, `UPDATE sale_stock SET epoch = epoch + 1 WHERE sale_id = ? AND token = ?`, a.sale, a.token)
		if err != nil {
			return fmt.Errorf("raise the epoch: %w", err)
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			return errors.Join(reserve.ErrLost, err)
		}
		a.load, a.undone = reserve.Loaded{}, nil
		if err := tx.QueryRowContext(ctx, `SELECT epoch FROM sale_stock WHERE sale_id = ?`, a.sale).Scan(&a.load.Epoch); err != nil {
			return fmt.Errorf("read the epoch: %w", err)
		}
		return nil
	})
}

// readRows reads what MySQL has, and makes it durable there, for the units of orders that ended are on sale again after this.
func (a *attempt) readRows(ctx context.Context, outbox []queued.Entry, unheld map[string]bool) error {
	if err := a.readMoment(ctx, outbox, unheld); err != nil {
		return err
	}
	if err := a.readForgotten(ctx, outbox); err != nil {
		return err
	}
	return store.Durable(ctx, a.r.db)
}

// readMoment reads in one REPEATABLE READ transaction, which sees MySQL as of its first statement.
func (a *attempt) readMoment(ctx context.Context, outbox []queued.Entry, unheld map[string]bool) error {
	tx, err := a.r.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	defer tx.Rollback() // it has changed nothing
	var epoch, token int64
	if err := tx.QueryRowContext(ctx, `SELECT epoch, token, total FROM sale_stock WHERE sale_id = ?`, a.sale).Scan(&epoch, &token, &a.load.Total); err != nil {
		return fmt.Errorf("read the stock row: %w", err)
	}
	if token > a.token {
		return reserve.ErrLost
	}
	if epoch != a.load.Epoch { // another server answers, and lags: older messages may still be inserted there
		return fmt.Errorf("read the stock row: it is in epoch %d, and was raised to %d", epoch, a.load.Epoch)
	}
	sales, err := sale.Read(ctx, tx, a.sale)
	if err != nil {
		return err
	}
	if len(sales) != 1 {
		return ErrUnknown
	}
	a.load.Definition = sales[0].Definition()
	if a.load.Standby, err = standby.Newest(ctx, tx, a.sale); err != nil {
		return err
	}
	if err := a.readIntents(ctx, tx); err != nil {
		return err
	}
	return a.readOrders(ctx, tx, outbox, unheld)
}

// readIntents notes the changes of the stock that total includes, so that Redis never applies one again.
func (a *attempt) readIntents(ctx context.Context, tx *sql.Tx) error {
	var last int64
	row := func(rows *sql.Rows) error {
		var open bool
		if err := rows.Scan(&last, &open); err != nil {
			return err
		}
		a.load.Applied = append(a.load.Applied, last)
		if open {
			a.undone = append(a.undone, last)
		}
		return nil
	}
	const page = `SELECT id, done_at IS NULL FROM intents WHERE sale_id = ? AND kind = 'adjust' AND id > ? ORDER BY id LIMIT ?`
	for n := readPage; n == readPage; {
		var err error
		if n, err = each(ctx, tx, row, page, a.sale, last, readPage); err != nil {
			return fmt.Errorf("read the intents: %w", err)
		}
	}
	return nil
}

// readOrders computes the reservations and the stock.
func (a *attempt) readOrders(ctx context.Context, tx *sql.Tx, outbox []queued.Entry, unheld map[string]bool) error {
	slots, err := a.readSlots(ctx, tx)
	if err != nil {
		return err
	}
	entries := make(map[string]string, len(outbox))
	for _, e := range outbox {
		entries[e.ID] = e.Entry
	}
	var units int64
	var id string
	row := func(rows *sql.Rows) error {
		var uid string
		var status wire.OrderStatus
		var quantity int
		var key sql.NullString
		var at time.Time
		if err := rows.Scan(&id, &uid, &status, &quantity, &key, &at); err != nil {
			return err
		}
		entry, waits := entries[id]
		delete(entries, id) // in M
		if !status.Live() {
			a.load.Keys = append(a.load.Keys, reserve.AcceptedKey{UID: uid, Key: key.String, OrderID: id, Quantity: quantity})
			return nil
		}
		if !waits {
			entry = "-"
		}
		units += int64(quantity)
		a.load.Orders = append(a.load.Orders, reserve.Held{ID: id, UID: uid, Quantity: quantity, Slots: slots[id],
			Entry: entry, At: at.UnixMilli(), Key: key.String})
		return nil
	}
	// FORCE INDEX, for servers else use the index for sale_id alone, and read every page from the sale's first order on.
	const page = `SELECT id, uid, status, quantity, idem_key, created_at FROM orders FORCE INDEX (orders_sale)
		WHERE sale_id = ? AND id > ? ORDER BY id LIMIT ?`
	for n := readPage; n == readPage; {
		if n, err = each(ctx, tx, row, page, a.sale, id, readPage); err != nil {
			return fmt.Errorf("read the orders: %w", err)
		}
	}
	a.settled = len(a.load.Orders)
	var waiting, orphans []queued.Entry
	for _, e := range outbox { // O \ M
		switch {
		case entries[e.ID] != e.Entry:
		case unheld[e.ID]:
			orphans = append(orphans, e)
		default:
			waiting = append(waiting, e)
		}
	}
	switch {
	case len(orphans) > mostOrphans:
		a.r.log.Error("redis has lost reservations of queued orders: they are made anew", "sale", a.sale, "orders", len(orphans))
		waiting = append(waiting, orphans...)
	case len(orphans) > 0:
		a.r.log.Warn("redis has brought back orders that it had lost in the middle of writing them down, and that nobody was promised: they get what is left",
			"sale", a.sale, "orders", len(orphans))
	}
	for _, e := range waiting {
		units += int64(e.Quantity)
		a.load.Orders = append(a.load.Orders, reserve.Held{ID: e.ID, UID: e.UID, Quantity: e.Quantity, Slots: e.Slots, Entry: e.Entry, At: e.At, Key: e.Key})
	}
	a.load.Stock = a.load.Total - units
	if a.load.Stock < 0 {
		a.r.log.Error("more is reserved than there is: orders on their way will be rejected", "sale", a.sale, "stock", a.load.Stock, "total", a.load.Total)
	}
	return nil
}

// readSlots returns the slots that each live order holds, in order: "1,2".
func (a *attempt) readSlots(ctx context.Context, tx *sql.Tx) (map[string]string, error) {
	slots := map[string]string{}
	var uid string
	var slot int
	row := func(rows *sql.Rows) error {
		var id string
		if err := rows.Scan(&id, &uid, &slot); err != nil {
			return err
		}
		if slots[id] != "" {
			slots[id] += ","
		}
		slots[id] += strconv.Itoa(slot)
		return nil
	}
	const page = `SELECT order_id, uid, slot FROM order_slots WHERE sale_id = ? AND (uid > ? OR uid = ? AND slot > ?) ORDER BY uid, slot LIMIT ?`
	for n := readPage; n == readPage; {
		var err error
		if n, err = each(ctx, tx, row, page, a.sale, uid, uid, slot, readPage); err != nil {
			return nil, fmt.Errorf("read the slots: %w", err)
		}
	}
	return slots, nil
}

// each calls f for every row of a query, and counts them.
func each(ctx context.Context, tx *sql.Tx, f func(*sql.Rows) error, query string, args ...any) (n int, err error) {
	err = store.Each(ctx, tx, func(rows *sql.Rows) error { n++; return f(rows) }, query, args...)
	return n, err
}

// write is step 4: what was read is written behind the closed gate, which then opens to adopt. The intents that it
// includes are done.
func (a *attempt) write(ctx context.Context) error {
	if err := a.refill(ctx); err != nil {
		return err
	}
	if err := a.r.redis.Load(ctx, a.sale, a.token, a.load); err != nil {
		return err
	}
	a.held, a.load.Orders, a.load.Keys, a.load.Applied = len(a.load.Orders), nil, nil, nil // memory: many sales may wait for their queues at once
	for ids := range slices.Chunk(a.undone, 500) {
		if err := a.done(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}

// done marks intents as done, only while the token is the newest.
func (a *attempt) done(ctx context.Context, ids []int64) error {
	now, err := a.r.redis.Client().Now(ctx)
	if err != nil {
		return err
	}
	return store.InTx(ctx, a.r.db, func(tx *sql.Tx) error {
		var token int64
		if err := tx.QueryRowContext(ctx, `SELECT token FROM sale_stock WHERE sale_id = ? FOR UPDATE`, a.sale).Scan(&token); err != nil {
			return fmt.Errorf("read the newest token: %w", err)
		}
		if token != a.token {
			return reserve.ErrLost
		}
		return intent.Done(ctx, tx, now, ids)
	})
}

// adopted is step 5: it waits until the consumers have adopted what they hold of older epochs, or rejected it for want of stock.
func (a *attempt) adopted(ctx context.Context) error {
	if a.r.fence == nil || a.first {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	if err := a.r.fence.Fence(ctx, a.sale); err != nil {
		return err
	}
	return order.UntilNoneDeferred(ctx, a.r.db, a.sale)
}

// open is step 6.
func (a *attempt) open(ctx context.Context) error { return a.r.redis.Unlock(ctx, a.sale, a.token) }

package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// A MySQL that fails over to a copy that lags, or that did not sync its commits, forgets orders whose outbox entries were retired. Redis
// remembers them. Every order that Redis holds is in its outbox or in MySQL, and every order that is live in MySQL is held. Where the
// first does not hold, MySQL has forgotten an order. Where the second does not, it has forgotten how one ended. docs/reconciling.md has
// the procedure.

// What a MySQL that took over was found to be.
const (
	whole = "whole"
	older = "older"
)

// readForgotten finds what Redis holds and neither O nor M has. Behind the closed gate nothing is reserved or released.
func (a *attempt) readForgotten(ctx context.Context, outbox []queued.Entry) error {
	a.forgotten = nil
	waits := make(map[string]bool, len(outbox))
	for _, e := range outbox {
		waits[e.ID] = true
	}
	bad, err := a.r.redis.EachHeld(ctx, a.sale, func(page []reserve.Held) error {
		for _, h := range page {
			if waits[h.ID] {
				continue
			}
			if _, live := slices.BinarySearchFunc(a.load.Orders[:a.settled], h.ID, func(o reserve.Held, id string) int { return strings.Compare(o.ID, id) }); live {
				continue
			}
			if _, ended := slices.BinarySearchFunc(a.load.Keys, h.ID, func(k reserve.AcceptedKey, id string) int { return strings.Compare(k.OrderID, id) }); ended {
				continue
			}
			waits[h.ID] = true // HSCAN may find it twice
			a.forgotten = append(a.forgotten, h)
			a.load.Stock -= int64(h.Quantity)
		}
		return nil
	})
	for _, err := range bad {
		a.r.log.Error("a reservation cannot be read: it is left out", "sale", a.sale, "error", err)
	}
	return err
}

// refill queues again what MySQL has forgotten, under the epoch that was raised. It comes before the reservations are removed, for until
// then only they know of these orders.
func (a *attempt) refill(ctx context.Context) error {
	if len(a.forgotten) == 0 {
		return nil
	}
	a.r.log.Error("redis holds orders that neither the outbox nor mysql has: they are queued again", "sale", a.sale, "orders", len(a.forgotten), "first", a.forgotten[0].ID)
	if err := a.r.redis.Refill(ctx, a.sale, a.token, a.load.Epoch, a.forgotten); err != nil {
		return err
	}
	a.r.forgotten.Add(float64(len(a.forgotten)))
	a.load.Orders = append(a.load.Orders, a.forgotten...)
	a.forgotten = nil
	return nil
}

// compareAgain is when all sales are compared once more: a consumer may have settled an order in a MySQL that is gone, and retire it only
// now. Connections last for three minutes at most.
var compareAgain = []time.Duration{10 * time.Second, 4 * time.Minute}

// askTime is how long one look waits for MySQL to say who it is.
const askTime = 3 * time.Second

// compare asks which MySQL has the address now. One that is another than before serves nobody (store.Open) until it was compared with
// Redis. Where it is not behind, no gate is closed.
func (k *keeper) compare(ctx context.Context) error {
	r := k.r
	short, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := r.anyMySQL.Conn(short)
	if err != nil {
		return fmt.Errorf("ask which mysql it is: %w", err)
	}
	defer conn.Close()
	this, last, err := store.Who(short, conn)
	if err != nil {
		return err
	}
	if this.Same(last) || !this.Named() {
		k.compareDue(ctx)
		return nil
	}
	done, err := r.alone(ctx, "mysql")
	if err != nil {
		return err
	}
	defer done()
	if this, last, err = store.Who(ctx, conn); err != nil || this.Same(last) { // another process was sooner
		return err
	}
	closed, err := r.takeOver(ctx, conn, this, last)
	if err != nil {
		return fmt.Errorf("mysql is %v, and was %v; it serves nobody until it is compared with redis: %w", this, last, err)
	}
	for _, sale := range closed {
		c := r.closed(reserve.State{Gate: lua.GateShut})
		k.shut[sale] = c
		k.start(ctx, c, &attempt{r: r, sale: sale}, nil)
	}
	k.again = nil
	for _, after := range compareAgain {
		k.again = append(k.again, time.Now().Add(after))
	}
	return nil
}

// takeOver compares a MySQL with Redis, closes the gates of the sales of which it has forgotten something, ends in it what had ended, and
// lets it serve. closed are those sales: each opens when it is reconciled.
func (r *Reconciler) takeOver(ctx context.Context, conn *sql.Conn, this, last store.Server) (closed []int64, err error) {
	now, err := r.redis.Client().Now(ctx)
	if err != nil {
		return nil, err
	}
	now = now.Truncate(time.Millisecond)
	if last == (store.Server{}) { // the first one
		return nil, store.Compared(ctx, conn, now, this, last)
	}
	began := time.Now()
	nodes := r.redis.Client().Hold(ctx)
	defer nodes.Release()
	unsure, away := nodes.Lost(ctx)
	if away != nil {
		return nil, away
	}
	on, over, err := sale.LiveByStart(ctx, conn, now)
	if err != nil {
		return nil, err
	}
	sales := slices.Concat(on, over)
	states, err := r.redis.States(ctx, sales)
	if err != nil {
		return nil, err
	}
	ended := 0
	for i, sale := range sales {
		if !states[i].Present {
			continue
		}
		c := comparison{r: r, conn: conn, sale: sale, state: states[i]}
		// A Redis that was started anew itself may hold less than it did.
		if err := c.read(ctx, unsure == nil || !r.redis.On(unsure).HasSale(sale)); err != nil {
			return nil, err
		}
		if !c.behind {
			continue
		}
		n, err := c.close(ctx)
		if err != nil {
			return nil, err
		}
		closed, ended = append(closed, sale), ended+n
	}
	if now, away := nodes.Lost(ctx); away != nil || (now == nil) != (unsure == nil) {
		return nil, errors.Join(errors.New("redis was started anew meanwhile"), away)
	}
	failpoint.Hit("takeover.before-compared")
	if err := store.Compared(ctx, conn, now, this, last); err != nil {
		return nil, err
	}
	failpoint.Hit("takeover.after-compared")
	took := time.Since(began).Round(time.Millisecond)
	if len(closed) == 0 {
		r.takeovers.WithLabelValues(whole).Inc()
		r.log.Info("mysql was started anew, or another server took over, and has all that redis knows of: it serves", "server", this.String(), "was", last.String(), "took", took)
		return nil, nil
	}
	r.takeovers.WithLabelValues(older).Inc()
	var newest sql.NullString
	if err := conn.QueryRowContext(ctx, `SELECT MAX(id) FROM orders`).Scan(&newest); err != nil {
		r.log.Warn("the newest order cannot be read", "error", err)
	}
	r.log.Error("mysql is older than it was: these sales are closed, get back what redis knows, and open. Payments since cannot be known here: let the payment providers send their events again",
		"server", this.String(), "was", last.String(), "sales", closed, "orders_ended_again", ended, "newest_order_it_has", newest.String, "took", took)
	return closed, nil
}

// comparison is one sale in Redis and in a MySQL that serves nobody.
type comparison struct {
	r     *Reconciler
	conn  *sql.Conn
	sale  int64
	state reserve.State

	behind  bool
	version bool           // the definition in Redis is newer
	live    []string       // in MySQL; Redis knows that they ended
	absent  []reserve.Held // the same, and MySQL has no row of them
}

// read compares. sure: Redis holds every order that it ever held, but for those that ended.
func (c *comparison) read(ctx context.Context, sure bool) error {
	var token, epoch, total, version int64
	if err := c.conn.QueryRowContext(ctx, `SELECT k.token, k.epoch, k.total, s.version FROM sale_stock k JOIN sales s ON s.id = k.sale_id WHERE k.sale_id = ?`, c.sale).
		Scan(&token, &epoch, &total, &version); err != nil {
		return fmt.Errorf("read the stock row of sale %d: %w", c.sale, err)
	}
	st := c.state
	c.version = st.Version > version
	c.behind = st.Gate != lua.GateOpen || st.Token > token || st.Epoch > epoch || st.Total != total || c.version
	gone, err := c.r.redis.Gone(ctx, c.sale)
	if err != nil {
		return err
	}
	stray, err := strays(ctx, c.r.redis, c.conn, c.sale)
	if err != nil {
		return err
	}
	c.behind = c.behind || len(stray) > 0
	if err := c.readEnds(ctx, sure, gone); err != nil {
		return err
	}
	c.behind = c.behind || len(c.live)+len(c.absent) > 0
	return nil
}

// readEnds finds the orders whose end MySQL has forgotten.
func (c *comparison) readEnds(ctx context.Context, sure bool, gone []reserve.Held) error {
	released := make(map[string]bool, len(gone))
	for _, h := range gone {
		released[h.ID] = true
	}
	for last := ""; ; {
		page, err := store.Column[string](ctx, c.conn, `SELECT id FROM orders FORCE INDEX (orders_sale) WHERE sale_id = ? AND id > ? AND status IN (?, ?, ?) ORDER BY id LIMIT ?`,
			c.sale, last, string(wire.PendingPayment), string(wire.Paid), string(wire.Issued), readPage)
		if err != nil {
			return fmt.Errorf("read the live orders of sale %d: %w", c.sale, err)
		}
		unheld, err := c.r.redis.UnheldOf(ctx, c.sale, page)
		if err != nil {
			return err
		}
		for _, id := range page {
			if unheld[id] && (sure || released[id]) {
				c.live = append(c.live, id)
			}
		}
		if len(page) < readPage {
			break
		}
		last = page[len(page)-1]
	}
	for page := range slices.Chunk(gone, 500) {
		ids := make([]string, len(page))
		for i, h := range page {
			ids[i] = h.ID
		}
		known, err := statuses(ctx, c.conn, ids)
		if err != nil {
			return err
		}
		unheld, err := c.r.redis.UnheldOf(ctx, c.sale, ids)
		if err != nil {
			return err
		}
		for _, h := range page {
			if known[h.ID] == "" && unheld[h.ID] {
				c.absent = append(c.absent, h)
			}
		}
	}
	return nil
}

// close closes the sale's gate with a token that is higher than any that Redis has seen, and ends again what had ended. MySQL's epoch is
// no lower than Redis's from then on, and its definition is newer, for it is the one that holds.
func (c *comparison) close(ctx context.Context) (ended int, err error) {
	r, st := c.r, c.state
	if _, err := c.conn.ExecContext(ctx, `UPDATE sale_stock SET token = GREATEST(token, ?) + 1, epoch = GREATEST(epoch, ?) WHERE sale_id = ?`, st.Token, st.Epoch, c.sale); err != nil {
		return 0, fmt.Errorf("take a token of sale %d: %w", c.sale, err)
	}
	if c.version {
		if _, err := c.conn.ExecContext(ctx, `UPDATE sales SET version = ? WHERE id = ?`, st.Version+1, c.sale); err != nil {
			return 0, fmt.Errorf("raise the version of sale %d: %w", c.sale, err)
		}
		r.log.Error("mysql has forgotten a change of a sale: it is as it was before; look at its window, limit and state", "sale", c.sale)
	}
	var token int64
	if err := c.conn.QueryRowContext(ctx, `SELECT token FROM sale_stock WHERE sale_id = ?`, c.sale).Scan(&token); err != nil {
		return 0, fmt.Errorf("take a token of sale %d: %w", c.sale, err)
	}
	failpoint.Hit("takeover.after-token")
	if _, err := r.redis.Shut(ctx, c.sale, token); err != nil {
		return 0, err
	}
	failpoint.Hit("takeover.after-shut")
	return r.orders.EndAgain(ctx, c.conn, c.sale, c.live, c.absent)
}

// strays returns the orders that Redis holds, that are neither in its outbox nor live in MySQL, and that no intent is to release. MySQL has
// forgotten them, or only that they are to be released. Reservations are read before the outbox, and that before MySQL once more: so an
// order that is settled and retired meanwhile is none. Nor is one that is released meanwhile.
func strays(ctx context.Context, redis *reserve.Store, q store.Queryer, sale int64) (stray []string, err error) {
	if _, err := redis.EachHeld(ctx, sale, func(page []reserve.Held) error {
		ids := make([]string, len(page))
		for i, h := range page {
			ids[i] = h.ID
		}
		more, err := notLive(ctx, q, ids)
		stray = append(stray, more...)
		return err
	}); err != nil || len(stray) == 0 {
		return nil, err
	}
	outbox, _, err := redis.Outbox(ctx, sale)
	if err != nil {
		return nil, err
	}
	waits := make(map[string]bool, len(outbox))
	for _, e := range outbox {
		waits[e.ID] = true
	}
	stray = slices.DeleteFunc(stray, func(id string) bool { return waits[id] })
	var left []string
	for ids := range slices.Chunk(stray, 500) {
		ids, err := notLive(ctx, q, ids)
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			continue
		}
		releasing, err := intent.Releasing(ctx, q, ids)
		if err != nil {
			return nil, err
		}
		unheld, err := redis.UnheldOf(ctx, sale, ids)
		if err != nil {
			return nil, err
		}
		left = append(left, slices.DeleteFunc(ids, func(id string) bool { return unheld[id] || slices.Contains(releasing, id) })...)
	}
	return left, nil
}

// notLive returns those of the orders that MySQL does not have as live.
func notLive(ctx context.Context, q store.Queryer, ids []string) (others []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	known, err := statuses(ctx, q, ids)
	for _, id := range ids {
		if !known[id].Live() {
			others = append(others, id)
		}
	}
	return others, err
}

// statuses reads what MySQL has of the orders, at least one.
func statuses(ctx context.Context, q store.Queryer, ids []string) (known map[string]wire.OrderStatus, err error) {
	known = make(map[string]wire.OrderStatus, len(ids))
	if err := store.Each(ctx, q, func(rows *sql.Rows) error {
		var id string
		var status wire.OrderStatus
		err := rows.Scan(&id, &status)
		known[id] = status
		return err
	}, `SELECT id, status FROM orders WHERE id IN (`+store.Marks(len(ids))+`)`, store.Anys(ids)...); err != nil {
		return nil, fmt.Errorf("look for %d orders: %w", len(ids), err)
	}
	return known, nil
}

// compareDue compares all sales once more, beside the looks, when that is due after a takeover.
func (k *keeper) compareDue(ctx context.Context) {
	if len(k.again) == 0 || time.Now().Before(k.again[0]) {
		return
	}
	k.again = k.again[1:]
	k.running.Go(func() {
		if err := k.r.compareAll(ctx); err != nil && ctx.Err() == nil {
			k.r.log.Warn("sales cannot be compared with mysql once more", "error", err)
		}
	})
}

// compareAll reconciles the sales that have strays.
func (r *Reconciler) compareAll(ctx context.Context) error {
	on, over, err := r.live(ctx)
	if err != nil {
		return err
	}
	for _, sale := range slices.Concat(on, over) {
		stray, err := strays(ctx, r.redis, r.db, sale)
		if err != nil {
			return err
		}
		if len(stray) == 0 {
			continue
		}
		r.log.Error("mysql lacks what was settled in the one before it: the sale is reconciled", "sale", sale, "orders", len(stray))
		if err := r.Sale(ctx, sale); err != nil {
			return err
		}
	}
	return nil
}

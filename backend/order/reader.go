package order

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/backoff"
	"floodgate.internal/shared/wire"
)

// ErrCursor: the cursor of a list is none that a list gave out.
var ErrCursor = errors.New("no such cursor")

const (
	fallbackEvery = 500 * time.Millisecond // waiting clients' orders are looked up, whether notified or not
	listDefault   = 20
	listMost      = 100
	maxPrices     = 10000 // sales whose price is remembered; at most for priceFor
	priceFor      = time.Second
)

// Reader tells owners how their orders stand. Many waiting clients cost few queries: a settle notification wakes the
// clients that it is for, and one query each half second covers lost notifications.
type Reader struct {
	db       *sql.DB
	redis    *reserve.Store
	log      *slog.Logger
	lookups  *lookups
	waiters  *waiters
	full     prometheus.Counter
	fallback time.Duration

	mu     sync.Mutex // guards prices
	prices map[int64]priced
}

type priced struct {
	price int64
	until time.Time
}

// ReaderConfig is what a Reader needs.
type ReaderConfig struct {
	DB       *sql.DB
	Redis    *reserve.Store
	Log      *slog.Logger
	Register prometheus.Registerer
}

// NewReader makes a Reader and registers its metrics. Orders can be read at once; waiting for them needs Run.
func NewReader(c ReaderConfig) *Reader {
	sizes := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_order_lookup_orders",
		Help: "Orders in one status query.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500}})
	r := &Reader{db: c.DB, redis: c.Redis, log: c.Log, waiters: newWaiters(maxWaiters), fallback: fallbackEvery, prices: map[int64]priced{},
		full: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_order_waiters_refused_total",
			Help: "Clients that were answered at once because too many were waiting."})}
	r.lookups = newLookups(func(ctx context.Context, ids []string) (map[string]row, error) { return find(ctx, c.DB, ids) }, sizes)
	c.Register.MustRegister(sizes, r.full, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_order_waiters",
		Help: "Clients that wait for their orders to be settled."}, func() float64 { return float64(r.waiters.waiting()) }))
	return r
}

// Run wakes waiting clients until ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { r.listen(ctx); return nil })
	g.Go(func() error { r.serve(ctx); return nil })
	return g.Wait()
}

// listen reads the notifications on its own connection until ctx ends, and connects again when that is lost.
func (r *Reader) listen(ctx context.Context) {
	pause := backoff.Backoff{First: 100 * time.Millisecond, Most: 2 * time.Second}
	for ctx.Err() == nil {
		began := time.Now()
		err := r.redis.Client().Dedicated(func(c rueidis.DedicatedClient) error {
			return c.Receive(ctx, c.B().Subscribe().Channel(channel(r.redis)).Build(), func(m rueidis.PubSubMessage) {
				for id := range noticed(m.Message) {
					r.waiters.settled(id)
				}
			})
		})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > pause.Most {
			pause.Reset()
		}
		r.log.Warn("order: settle notifications are not heard; waiting clients learn of their orders later", "error", err)
		pause.Wait(ctx, nil)
	}
}

func (r *Reader) serve(ctx context.Context) {
	tick := time.NewTicker(r.fallback)
	defer tick.Stop()
	failing := false
	for {
		var ids []string
		select {
		case <-ctx.Done():
			return
		case <-r.waiters.wake:
			ids = r.waiters.takeWoken()
		case <-tick.C:
			ids = r.waiters.ids()
		}
		err := r.deliver(ctx, ids)
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			r.log.Warn("order: waiting clients' orders cannot be read", "orders", len(ids), "error", err)
			failing = true
		case err == nil && len(ids) > 0:
			failing = false
		}
	}
}

// deliver reads orders and hands those that are settled to the clients that wait for them.
func (r *Reader) deliver(ctx context.Context, ids []string) error {
	for chunk := range slices.Chunk(ids, lookupOnce) {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		found, err := find(ctx, r.db, chunk)
		cancel()
		if err != nil {
			return err
		}
		for _, o := range found {
			r.waiters.deliver(o)
		}
	}
	return nil
}

// Order is an order as its owner sees it. With wait it answers when the order leaves queued, or after wait (at most
// wire.MaxWait) with its status then, or at once when too many clients wait already. ErrNotFound: there is no such order,
// or it is somebody else's.
func (r *Reader) Order(ctx context.Context, uid, orderID string, wait time.Duration) (wire.Order, error) {
	if !wire.ValidOrderID(orderID) {
		return wire.Order{}, ErrNotFound
	}
	var w *waiter
	if wait > 0 { // before the first look, so that no notification is missed
		if w = r.waiters.add(orderID); w != nil {
			defer r.waiters.remove(w)
		} else {
			r.full.Inc()
		}
	}
	o, err := r.order(ctx, orderID)
	if err != nil {
		return wire.Order{}, err
	}
	if o.uid != uid {
		return wire.Order{}, ErrNotFound
	}
	if o.status != wire.Queued || w == nil {
		return o.wire(), nil
	}
	timer := time.NewTimer(min(wait, wire.MaxWait))
	defer timer.Stop()
	select {
	case settled := <-w.c:
		if settled.uid != uid {
			return wire.Order{}, ErrNotFound
		}
		return settled.wire(), nil
	case <-timer.C:
		return o.wire(), nil
	case <-ctx.Done():
		return wire.Order{}, fmt.Errorf("wait for order %s: %w", orderID, ctx.Err())
	}
}

// order looks in MySQL, then in Redis, where a queued order is, then once more in MySQL, for it may have been settled in
// between. A cart's order is never queued.
func (r *Reader) order(ctx context.Context, orderID string) (row, error) {
	o, ok, err := r.lookups.get(ctx, orderID)
	if err != nil || ok {
		return o, err
	}
	sale, ok := wire.SaleOfOrder(orderID)
	if !ok {
		return row{}, ErrNotFound
	}
	held, ok, err := r.redis.Lookup(ctx, sale, orderID)
	if ok {
		p, err := r.price(ctx, sale)
		return queuedRow(held, sale, p), err
	}
	unsure, err := uncertain(ctx, r.db, sale, err)
	if err != nil {
		return row{}, err
	}
	o, ok, err = r.lookups.get(ctx, orderID)
	if err == nil && !ok {
		err = cmp.Or(unsure, ErrNotFound)
	}
	return o, err
}

// uncertain reads Lookup's error for an order that Redis does not hold. unsure: it may still be queued, for the sale is
// being loaded into Redis, or has to be. err: the answer is unknown.
func uncertain(ctx context.Context, q store.Queryer, id int64, lookup error) (unsure, err error) {
	switch {
	case errors.Is(lookup, reserve.ErrGateClosed):
		return lookup, nil
	case !errors.Is(lookup, reserve.ErrNotLoaded):
		return nil, lookup
	}
	live, err := sale.IsLive(ctx, q, id)
	if err == nil && live {
		unsure = lookup
	}
	return unsure, err
}

// price is what a unit costs, at most priceFor old. It is for orders that have no row, and so no amount, yet.
func (r *Reader) price(ctx context.Context, sale int64) (int64, error) {
	r.mu.Lock()
	p, ok := r.prices[sale]
	r.mu.Unlock()
	if ok && time.Now().Before(p.until) {
		return p.price, nil
	}
	v, err := price(ctx, r.db, sale)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.prices) >= maxPrices {
		clear(r.prices)
	}
	r.prices[sale] = priced{v, time.Now().Add(priceFor)}
	return v, nil
}

// List is a page of a buyer's own orders, newest first, queued ones included: of one sale, or with sale 0 of all. live
// are the sales in which it looks for queued orders. cursor is "" or the Next of the page before. If queued orders of the
// one sale may be missing, it returns an error. If those of some sales in live may be, the answer names them. ErrCursor.
func (r *Reader) List(ctx context.Context, uid string, sale int64, live []int64, cursor string, limit int) (wire.OrderList, error) {
	if cursor != "" && !wire.ValidOrderID(cursor) {
		return wire.OrderList{}, ErrCursor
	}
	if limit < 1 {
		limit = listDefault
	}
	limit = min(limit, listMost)
	if sale != 0 {
		live = []int64{sale}
	}
	// Redis before MySQL: an order that is settled in between is found in MySQL.
	queued, unsure, err := r.reserved(ctx, uid, live, cursor)
	if err == nil && sale != 0 && len(unsure) > 0 {
		var missing error
		missing, err = uncertain(ctx, r.db, sale, reserve.ErrNotLoaded)
		err, unsure = cmp.Or(err, missing), nil
	}
	if err != nil {
		return wire.OrderList{}, err
	}
	query, args := `SELECT `+columns+` FROM orders WHERE uid = ?`, []any{uid}
	if sale != 0 {
		query, args = query+` AND sale_id = ?`, append(args, sale)
	}
	if cursor != "" {
		query, args = query+` AND id < ?`, append(args, cursor)
	}
	page, err := read(ctx, r.db, query+fmt.Sprintf(` ORDER BY id DESC LIMIT %d`, limit+1), args...)
	if err == nil {
		err = readItems(ctx, r.db, page)
	}
	if err != nil {
		return wire.OrderList{}, fmt.Errorf("list orders of uid %s: %w", uid, err)
	}
	end := "" // where the page ends; "" where MySQL had no more
	if len(page) > limit {
		end = page[limit].id
	}
	settled := make(map[string]bool, len(page))
	for _, o := range page {
		settled[o.id] = true
	}
	var ids []string // those whose rows, if they have any, are beyond this page, or came since it was read
	for _, o := range queued {
		if !settled[o.id] {
			ids = append(ids, o.id)
		}
	}
	others, err := find(ctx, r.db, ids)
	if err != nil {
		return wire.OrderList{}, err
	}
	for _, o := range queued {
		other, ok := others[o.id]
		switch {
		case settled[o.id]:
		case !ok:
			page = append(page, o)
		case o.id > end:
			page = append(page, other)
		}
	}
	slices.SortFunc(page, func(x, y row) int { return cmp.Compare(y.id, x.id) })
	list := wire.OrderList{Orders: make([]wire.Order, 0, min(len(page), limit)), Unsure: unsure}
	for i, o := range page {
		if i == limit {
			list.Next = page[i-1].id
			break
		}
		list.Orders = append(list.Orders, o.wire())
	}
	return list, nil
}

// reserved reads what a buyer's slots hold in Redis: live orders, queued ones among them. Those of the sales in unsure
// may be missing.
func (r *Reader) reserved(ctx context.Context, uid string, sales []int64, cursor string) (out []row, unsure []int64, err error) {
	if len(sales) == 0 {
		return nil, nil, nil
	}
	held, unsure, err := r.redis.OrdersOf(ctx, sales, uid)
	if err != nil {
		return nil, nil, err
	}
	for sale, ids := range held {
		for _, id := range ids {
			if cursor != "" && id >= cursor {
				continue
			}
			h, ok, err := r.redis.Lookup(ctx, sale, id)
			if errors.Is(err, reserve.ErrGateClosed) || errors.Is(err, reserve.ErrNotLoaded) {
				if !slices.Contains(unsure, sale) {
					unsure = append(unsure, sale)
				}
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			if !ok {
				continue // released in between
			}
			p, err := r.price(ctx, sale)
			if err != nil {
				return nil, nil, err
			}
			out = append(out, queuedRow(h, sale, p))
		}
	}
	return out, unsure, nil
}

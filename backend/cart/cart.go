// Package cart makes orders of several SKUs. Each line succeeds or fails on its own, and the answer says which. See
// docs/carts.md.
//
// A request is first written as a row of cart_requests. The transaction that decides it writes the answer into that row.
// So a repeat under the same Idempotency-Key gets the first answer, at the same time, from another process, or days
// later. In between, units are locked in Redis under the order id in the row, by which every step is idempotent. Sweep
// gives back the units of a request that was abandoned. First it gives the row another order id, so a process that was
// only slow finds that and continues with the new id.
package cart

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/event"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

var (
	// ErrKeyReused: the Idempotency-Key was used for other lines.
	ErrKeyReused = errors.New("the Idempotency-Key was used for another cart")
	// ErrBusy: too many carts are being decided. Nothing was done.
	ErrBusy = errors.New("too many carts are being decided")
	// ErrUndecided: MySQL was asked to decide, and it is not known whether it did. A repeat under the same key finds out.
	ErrUndecided = errors.New("the cart's outcome is unknown")
)

// Config is what Carts need.
type Config struct {
	DB       *sql.DB
	SKUs     *sku.Cache
	Events   *event.Log   // nil: the shop is told nothing
	Clock    *clock.Clock // follows Redis's clock before anything is decided
	Log      *slog.Logger
	Register prometheus.Registerer

	PayWithin      time.Duration // time to pay for a cart's order
	AbandonedAfter time.Duration // units that were locked in Redis this long ago are compared with MySQL
	MaxInFlight    int           // carts that are being decided at once by this process; one more is ErrBusy
}

// Carts makes orders. It is safe for concurrent use, by any number of processes.
type Carts struct {
	db      *sql.DB
	skus    *sku.Cache
	clk     *clock.Clock
	log     *slog.Logger
	config  Config
	places  chan struct{} // a cart that is being decided holds one
	metrics metrics
	swept   int64 // the SKU up to which the last pass of Sweep came; for Sweep alone
}

type metrics struct {
	carts, lines, swept *prometheus.CounterVec
	again               prometheus.Counter
}

// New makes Carts and registers their metrics.
func New(c Config) *Carts {
	m := metrics{
		carts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_carts_total",
			Help: "Carts by result: ordered (some line is), empty (none is), repeated, busy, refused (the key was used for another) or failed."}, []string{"result"}),
		lines: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_cart_lines_total",
			Help: "Lines of decided carts, by code; ordered where it has none."}, []string{"code"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_cart_holds_compared_total",
			Help: "Units locked in Redis that were compared with MySQL, by what was done: kept, sold, back."}, []string{"result"}),
		again: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_cart_again_total",
			Help: "Decisions that were begun anew: a SKU was loaded into Redis, or the units were given back, in between."}),
	}
	c.Register.MustRegister(m.carts, m.lines, m.swept, m.again)
	return &Carts{db: c.DB, skus: c.SKUs, clk: c.Clock, log: c.Log, config: c, places: make(chan struct{}, c.MaxInFlight), metrics: m}
}

// Place decides a cart of different SKUs and returns its answer as JSON: see wire.CartAnswer. repeated says that it was
// decided before. ErrKeyReused, ErrBusy, ErrUndecided; after any other error no order was made, and a repeat under the same
// key tries again.
func (c *Carts) Place(ctx context.Context, uid, key string, items []wire.CartItem) (answer []byte, repeated bool, err error) {
	result := "failed"
	defer func() { c.metrics.carts.WithLabelValues(result).Inc() }()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	default:
		result = "busy"
		return nil, false, ErrBusy
	}
	r, err := c.begin(ctx, uid, key, items)
	switch {
	case errors.Is(err, ErrKeyReused):
		result = "refused"
		return nil, false, err
	case err != nil:
		return nil, false, fmt.Errorf("cart of uid %s: %w", uid, err)
	case r.answer != nil:
		result = "repeated"
		return r.answer, true, nil
	}
	failpoint.Hit("cart.after-request")
	if err := c.decide(ctx, r); err != nil {
		return nil, false, fmt.Errorf("cart of uid %s, order %s: %w", uid, r.order, err)
	}
	switch {
	case !r.mine:
		result = "repeated"
	case r.ordered:
		result = "ordered"
	default:
		result = "empty"
	}
	return r.answer, !r.mine, nil
}

// request is one cart on its way to its answer.
type request struct {
	uid, key string
	items    []wire.CartItem
	order    string     // under which units are locked in Redis, and which becomes the order's id
	lines    []line     // of items
	fresh    []sku.Hold // what this call locked, under order
	answer   []byte
	mine     bool // this call decided
	ordered  bool // the answer has an order
	results  []wire.CartResult
}

// line is what Redis answered about an item.
type line struct {
	lock string // the units are locked in Redis
	code wire.CartCode
}

// open says that Redis has not been asked about a line.
func (l line) open() bool { return l == line{} }

// First is the answer that a cart of a key was given before; nil if it has none. ErrKeyReused.
func (c *Carts) First(ctx context.Context, uid, key string, items []wire.CartItem) (answer []byte, err error) {
	_, answer, err = c.before(ctx, uid, key, digest(items))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case errors.Is(err, ErrKeyReused):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("cart of uid %s by its key: %w", uid, err)
	}
	return answer, nil
}

// begin writes the request's row, or finds it.
func (c *Carts) begin(ctx context.Context, uid, key string, items []wire.CartItem) (*request, error) {
	r := &request{uid: uid, key: key, items: items, lines: make([]line, len(items))}
	hash := digest(items)
	var err error
	if r.order, err = newOrder(); err != nil {
		return nil, err
	}
	_, err = c.db.ExecContext(ctx, `INSERT INTO cart_requests (uid, idem_key, request, order_id, created_at) VALUES (?, ?, ?, ?, ?)`,
		uid, key, hash, r.order, c.now())
	if err == nil {
		return r, nil
	}
	if !store.Duplicate(err) {
		return nil, fmt.Errorf("note the request: %w", err)
	}
	r.order, r.answer, err = c.before(ctx, uid, key, hash)
	return r, err
}

// before reads the request of a key: its order, and its answer, nil if it has none. ErrKeyReused; sql.ErrNoRows.
func (c *Carts) before(ctx context.Context, uid, key, hash string) (order string, answer []byte, err error) {
	var request string
	err = c.db.QueryRowContext(ctx, `SELECT request, order_id, answer FROM cart_requests WHERE uid = ? AND idem_key = ?`, uid, key).Scan(&request, &order, &answer)
	if err != nil {
		return "", nil, fmt.Errorf("read the request: %w", err)
	}
	if request != hash {
		return "", nil, ErrKeyReused
	}
	if answer != nil {
		err = store.Durable(ctx, c.db)
	}
	return order, answer, err
}

// digest identifies the content of a request.
func digest(items []wire.CartItem) string {
	text, err := json.Marshal(items)
	if err != nil {
		panic("BUG: a cart that does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func newOrder() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make an order id: %w", err)
	}
	return wire.NewCartOrderID(id.String()), nil
}

// now is the time as MySQL keeps it: in milliseconds.
func (c *Carts) now() time.Time { return c.clk.Now().Truncate(time.Millisecond) }

// attempts bounds how often a decision is begun anew.
const attempts = 8

// decide locks the units in Redis, has MySQL decide, and gives back what it refused.
func (c *Carts) decide(ctx context.Context, r *request) (err error) {
	unsure := false // MySQL was asked, and its answer was lost
	defer func() {
		if err != nil && unsure {
			err = fmt.Errorf("%w: %w", ErrUndecided, err)
		}
	}()
	for attempt := 1; ; attempt++ {
		if err := c.lock(ctx, r); err != nil {
			return err
		}
		failpoint.Hit("cart.after-reduce")
		err := c.commit(ctx, r)
		var moved *movedError
		var retired *retiredError
		switch {
		case err == nil:
			failpoint.Hit("cart.after-commit")
			c.giveBack(ctx, r)
			return nil
		case errors.Is(err, store.ErrUnknown): // the next attempt finds out under the lock of the request's row
			unsure = true
		case errors.As(err, &retired):
			if _, err := c.compare(ctx, r.fresh); err != nil {
				return err
			}
			r.order, r.lines, r.fresh = retired.order, make([]line, len(r.items)), nil
		case errors.As(err, &moved):
			for i, item := range r.items {
				epoch, ok := moved.skus[item.SKU]
				if !ok {
					continue
				}
				r.lines[i] = line{}
				if attempt > 1 { // the first time it was loaded in between; a second time Redis may not have what was loaded last
					if err := c.skus.Renew(ctx, item.SKU, epoch); err != nil {
						return err
					}
				}
			}
		default:
			return err
		}
		if attempt == attempts {
			return err
		}
		c.metrics.again.Inc()
		c.log.Debug("cart: decided anew", "order", r.order, "why", err)
	}
}

// loadRounds bounds how often SKUs are loaded for one attempt: each may be removed again before it is used.
const loadRounds = 3

// lock locks in Redis the units of every line that was not asked for yet, and loads the SKUs that Redis does not have.
func (c *Carts) lock(ctx context.Context, r *request) error {
	for round := 0; ; round++ {
		var ask []sku.Line
		var at []int
		for i, item := range r.items {
			if r.lines[i].open() {
				ask = append(ask, sku.Line{SKU: item.SKU, Units: item.Quantity})
				at = append(at, i)
			}
		}
		if len(ask) == 0 {
			return nil
		}
		verdicts, err := c.skus.Lock(ctx, r.order, ask)
		if err != nil {
			return err
		}
		var absent []int64
		for i, v := range verdicts {
			switch v.Answer {
			case lua.Reduced:
				r.fresh = append(r.fresh, sku.Hold{SKU: ask[i].SKU, Order: r.order, Lock: v.Lock})
				r.lines[at[i]] = line{lock: v.Lock}
			case lua.AlreadyApplied:
				r.lines[at[i]] = line{lock: v.Lock}
			case lua.NotEnough:
				r.lines[at[i]] = line{code: wire.LineInsufficient}
			case lua.NotLoaded:
				absent = append(absent, ask[i].SKU)
			default:
				panic("BUG: sku_lock.lua answered " + string(v.Answer))
			}
		}
		if len(absent) == 0 {
			return nil
		}
		if round == loadRounds {
			return fmt.Errorf("SKUs %v do not stay in redis", absent)
		}
		unknown, err := c.skus.LoadAll(ctx, absent)
		if err != nil {
			return err
		}
		for i, item := range r.items {
			if unknown[item.SKU] {
				r.lines[i] = line{code: wire.LineUnknown}
			}
		}
	}
}

// movedError: SKUs were loaded into Redis since it locked units of them, in the epochs that it names.
type movedError struct{ skus map[int64]int64 }

func (e *movedError) Error() string {
	return fmt.Sprintf("SKUs are not in the epochs in which redis locked their units: %v", e.skus)
}

// retiredError: the request has another order id now.
type retiredError struct{ order string }

func (e *retiredError) Error() string {
	return "the units were given back; the order id is now " + e.order
}

// commit decides in one transaction, under the lock of the request's row.
func (c *Carts) commit(ctx context.Context, r *request) error {
	err := store.InTx(ctx, c.db, func(tx *sql.Tx) error {
		r.answer, r.mine, r.ordered, r.results = nil, false, false, nil
		var order string
		var answer sql.NullString
		// Pessimistic, since everything that follows depends on it: of two that go on with one request, the second waits here
		// and finds the answer.
		err := tx.QueryRowContext(ctx, `SELECT order_id, answer FROM cart_requests WHERE uid = ? AND idem_key = ? FOR UPDATE`, r.uid, r.key).Scan(&order, &answer)
		if err != nil {
			return fmt.Errorf("lock the request: %w", err)
		}
		if answer.Valid {
			r.answer = []byte(answer.String)
			return nil
		}
		if order != r.order {
			return &retiredError{order}
		}
		if err := c.write(ctx, tx, r); err != nil {
			return err
		}
		failpoint.Hit("cart.before-commit")
		r.mine = true
		return nil
	})
	if err != nil {
		return err
	}
	if !r.mine { // somebody else's answer
		return store.Durable(ctx, c.db)
	}
	for _, l := range r.results {
		code := string(l.Code)
		if l.OK {
			code = "ordered"
		}
		c.metrics.lines.WithLabelValues(code).Inc()
	}
	return nil
}

// write makes the order of the lines for which there is enough, and the answer.
func (c *Carts) write(ctx context.Context, tx *sql.Tx, r *request) error {
	var skus []int64
	for i, item := range r.items {
		if r.lines[i].lock != "" {
			skus = append(skus, item.SKU)
		}
	}
	slices.Sort(skus)
	rows, err := sku.Lock(ctx, tx, skus)
	if err != nil {
		return err
	}
	r.results = make([]wire.CartResult, len(r.items))
	moved := map[int64]int64{}
	var changes []sku.Change
	var lines []any
	var ordered []wire.OrderItem
	var quantity, amount int64
	var currency string
	for i, item := range r.items {
		code := r.lines[i].code
		if lock := r.lines[i].lock; lock != "" {
			row := rows[item.SKU]
			switch {
			case row == nil || row.Own:
				code = wire.LineUnknown
			case row.Epoch != sku.Epoch(lock):
				moved[item.SKU] = sku.Epoch(lock)
			case row.Available < item.Quantity:
				code = wire.LineInsufficient
			case currency != "" && currency != row.Currency:
				code = wire.LineCurrency
			case row.Price > 0 && item.Quantity > (math.MaxInt64-amount)/row.Price:
				code = wire.LineAmount
			default:
				currency = row.Currency
				quantity += item.Quantity
				amount += item.Quantity * row.Price
				changes = append(changes, sku.Change{SKU: item.SKU, Kind: ledger.Lock, Ref: r.order, Available: -item.Quantity, Locked: item.Quantity})
				lines = append(lines, r.order, item.SKU, item.Quantity, row.Price, row.Currency, lock)
				ordered = append(ordered, wire.OrderItem{SKU: item.SKU, Quantity: int(item.Quantity), Price: row.Price})
			}
		}
		r.results[i] = wire.CartResult{SKU: item.SKU, OK: code == "", Code: code}
	}
	if len(moved) > 0 {
		return &movedError{moved}
	}
	now := c.now()
	answer := wire.CartAnswer{Results: r.results}
	if len(changes) > 0 {
		r.ordered = true
		answer.OrderID = &r.order
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, sale_id, uid, quantity, amount, status, created_at, decided_at, pay_before) VALUES (?, 0, ?, ?, ?, ?, ?, ?, ?)`,
			r.order, r.uid, quantity, amount, string(wire.PendingPayment), now, now, now.Add(c.config.PayWithin)); err != nil {
			return fmt.Errorf("write the order: %w", err)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO cart_lines (order_id, sku_id, quantity, price, currency, lock_id) VALUES `+store.Tuples(len(changes), 6), lines...); err != nil {
			return fmt.Errorf("write the order's %d lines: %w", len(changes), err)
		}
		if err := rows.Move(ctx, tx, now, changes); err != nil {
			return err
		}
		payBefore := wire.At(now.Add(c.config.PayWithin))
		if err := c.config.Events.Write(ctx, tx, now, event.OrderEvent(wire.Order{OrderID: r.order, Quantity: int(quantity), Amount: amount, Status: wire.PendingPayment,
			CreatedAt: wire.At(now), PayBefore: &payBefore, Items: ordered}, r.uid)); err != nil {
			return err
		}
	}
	if r.answer, err = json.Marshal(answer); err != nil {
		panic("BUG: an answer that does not marshal: " + err.Error())
	}
	if _, err := tx.ExecContext(ctx, `UPDATE cart_requests SET answer = ?, answered_at = ?, refused = ? WHERE uid = ? AND idem_key = ?`,
		string(r.answer), now, !r.ordered, r.uid, r.key); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// giveBack unlocks in Redis what the answer does not have. Sweep does what cannot be done now.
func (c *Carts) giveBack(ctx context.Context, r *request) {
	var err error
	if r.mine {
		var refused []sku.Hold
		for i, l := range r.results {
			if lock := r.lines[i].lock; lock != "" && !l.OK {
				refused = append(refused, sku.Hold{SKU: l.SKU, Order: r.order, Lock: lock})
			}
		}
		_, err = c.skus.Unlock(ctx, lua.ToBack, refused...)
	} else { // another call decided, and these may be units that it did not have, or that the order's end has given back
		_, err = c.compare(ctx, r.fresh)
	}
	if err != nil {
		c.log.Warn("cart: units are given back later, by the timer", "order", r.order, "error", err)
	}
}

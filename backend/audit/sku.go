package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// ErrUnknownSKU: MySQL has no such SKU.
var ErrUnknownSKU = errors.New("no such SKU")

// The equations of a SKU, as findings name them.
const (
	eqSKUUnits   = "available + allotted + locked + sold = total of the SKU"
	eqSKULines   = "locked and sold of the SKU = units of carts' orders"
	eqSKULedger  = "sum of the SKU's ledger = its available and locked units"
	eqSKURequest = "a cart's order is its request's answer"
	eqSKURedis   = "available + locked + sold = total in Redis"
	eqSKUHeld    = "locked in Redis = units of unpaid orders"
	eqSKUTotals  = "the SKU's units in Redis = those in MySQL"
	eqSKUEpoch   = "the SKU's epoch in Redis = that in MySQL"
)

// SKU is the audit of one SKU. available + allotted + locked + sold = total in MySQL, and what carts can have is the same
// in Redis, except for what is in flight.
type SKU struct {
	SKUID     int64     `json:"sku_id"`
	CheckedAt wire.Time `json:"checked_at"`
	Balanced  bool      `json:"balanced"`
	Total     int64     `json:"total"`
	Available int64     `json:"available"`
	Allotted  int64     `json:"allotted"` // to sales
	Locked    int64     `json:"locked"`
	Sold      int64     `json:"sold"`
	Redis     SKURedis  `json:"redis"`
	Lines     int       `json:"lines"`   // of unpaid orders
	Intents   int       `json:"intents"` // that are not done yet
	Findings  []Finding `json:"findings"`
}

// SKURedis is the state in Redis, read in one moment. A SKU that nobody uses is not there.
type SKURedis struct {
	Loaded    bool  `json:"loaded"`
	Epoch     int64 `json:"epoch"`
	Available int64 `json:"available"`
	Locked    int64 `json:"locked"`
	Sold      int64 `json:"sold"`
	Total     int64 `json:"total"`
	Orders    int   `json:"orders"`    // that have units locked
	InFlight  int64 `json:"in_flight"` // units of orders that MySQL does not have
}

// SKUs returns the ids of the SKUs that carts can hold.
func (a *Auditor) SKUs(ctx context.Context) ([]int64, error) {
	ids, err := store.Column[int64](ctx, a.db, `SELECT id FROM skus WHERE own = FALSE ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("audit: SKUs: %w", err)
	}
	return ids, nil
}

// SKU audits one SKU. It returns ErrUnknownSKU, or the error of a server that does not answer.
func (a *Auditor) SKU(ctx context.Context, skuID int64) (SKU, error) {
	var last SKU
	for round := 1; ; round++ {
		r, moving, err := a.skuOnce(ctx, skuID)
		if err != nil {
			return SKU{}, fmt.Errorf("audit SKU %d: %w", skuID, err)
		}
		if len(r.Findings) == 0 {
			return r, nil
		}
		if round >= rounds && !moving || round >= closedRounds {
			if both := common(r.Findings, last.Findings); len(both) > 0 {
				r.Findings = both
			}
			r.Findings = bounded(r.Findings)
			return r, nil
		}
		last = r
		select {
		case <-ctx.Done():
			return SKU{}, fmt.Errorf("audit SKU %d: %w", skuID, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// skuOnce reads Redis, MySQL and Redis again, and compares; moving says that the SKU is being loaded.
func (a *Auditor) skuOnce(ctx context.Context, skuID int64) (r SKU, moving bool, err error) {
	now, err := a.redis.Client().Now(ctx)
	if err != nil {
		return r, false, err
	}
	before, err := sku.Read(ctx, a.redis.Client(), skuID)
	if err != nil {
		return r, false, err
	}
	m, err := readSKU(ctx, a.db, skuID, before.Orders)
	if err != nil {
		return r, false, err
	}
	after, err := sku.Read(ctx, a.redis.Client(), skuID)
	if err != nil {
		return r, false, err
	}
	moving = before.State.Gate == lua.GateShut || after.State.Gate == lua.GateShut || before.State.Epoch != after.State.Epoch
	abandoned := a.abandoned
	if abandoned == 0 {
		abandoned = a.bound
	}
	return compareSKU(skuID, before, after, m, now, abandoned+a.bound), moving, nil
}

// skuRows is all that MySQL has of a SKU, read at one moment.
type skuRows struct {
	units       skuUnits
	epoch       int64
	lines       map[string]int64 // of unpaid orders
	locks       map[string]string
	paid        int64                       // units of paid orders
	held        map[string]wire.OrderStatus // orders that have units locked in Redis and are not unpaid
	ended       map[string]bool             // orders whose end is still to be done in Redis
	adjusts     []adjust
	openIntents int
	available   int64 // sums of the ledger
	locked      int64
	wrong       []Finding
}

// readSKU takes one consistent reading. orders are those that had units locked in Redis before.
func readSKU(ctx context.Context, db *sql.DB, skuID int64, orders map[string]int64) (skuRows, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return skuRows{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it wrote nothing
	m := skuRows{lines: map[string]int64{}, locks: map[string]string{}, held: map[string]wire.OrderStatus{}, ended: map[string]bool{}}
	k := &m.units
	err = tx.QueryRowContext(ctx, `SELECT total, available, allotted, locked, sold, epoch FROM skus WHERE id = ?`, skuID).
		Scan(&k.total, &k.available, &k.allotted, &k.locked, &k.sold, &m.epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return m, ErrUnknownSKU
	}
	if err != nil {
		return m, fmt.Errorf("skus: %w", err)
	}
	for _, step := range []func() error{
		func() error {
			return each(ctx, tx, "sale_stock", `SELECT k.total FROM sale_stock k JOIN sales s ON s.id = k.sale_id WHERE s.sku_id = ?`, skuID, func(rows *sql.Rows) error {
				var n int64
				err := rows.Scan(&n)
				k.sales += n
				return err
			})
		},
		func() error {
			return each(ctx, tx, "cart_lines", `SELECT order_id, quantity, lock_id FROM cart_lines WHERE sku_id = ? AND held = TRUE`, skuID, func(rows *sql.Rows) error {
				var id, lock string
				var n int64
				err := rows.Scan(&id, &n, &lock)
				m.lines[id], m.locks[id] = n, lock
				return err
			})
		},
		func() error {
			return each(ctx, tx, "sku_intents", `SELECT id, kind, order_id, quantity, done_at FROM sku_intents WHERE sku_id = ? AND (done_at IS NULL OR kind = 'adjust')`, skuID, func(rows *sql.Rows) error {
				var id, units int64
				var kind, order string
				var done sql.NullTime
				if err := rows.Scan(&id, &kind, &order, &units, &done); err != nil {
					return err
				}
				if !done.Valid {
					m.openIntents++
				}
				if kind == "adjust" {
					m.adjusts = append(m.adjusts, adjust{id, units})
				} else {
					m.ended[order] = true
				}
				return nil
			})
		},
		func() error { return m.readOrders(ctx, tx, skuID) },
		func() error { return m.readLedger(ctx, tx, skuID) },
		func() error { return m.readHeld(ctx, tx, skuID, orders) },
	} {
		if err := step(); err != nil {
			return m, err
		}
	}
	return m, nil
}

// mostWrong bounds the rows of one kind that are reported.
const mostWrong = 20

func (m *skuRows) find(equation, order, key, detail string, args ...any) {
	m.wrong = append(m.wrong, Finding{Equation: equation, OrderID: order, Key: key, Detail: fmt.Sprintf(detail, args...), Fix: byHand})
}

// readOrders compares the lines with the orders and the requests that they belong to.
func (m *skuRows) readOrders(ctx context.Context, tx *sql.Tx, skuID int64) error {
	err := each(ctx, tx, "orders", `SELECT COALESCE(SUM(l.quantity), 0) FROM cart_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku_id = ? AND o.status = 'paid'`, skuID,
		func(rows *sql.Rows) error { return rows.Scan(&m.paid) })
	if err != nil {
		return err
	}
	at := fmt.Sprintf("cart_lines of SKU %d", skuID)
	err = each(ctx, tx, "orders", fmt.Sprintf(`SELECT l.order_id, COALESCE(o.status, 'gone'), l.held FROM cart_lines l LEFT JOIN orders o ON o.id = l.order_id
		WHERE l.sku_id = ? AND (o.id IS NULL OR l.held <> (o.status = 'pending_payment')) LIMIT %d`, mostWrong), skuID, func(rows *sql.Rows) error {
		var id, status string
		var held bool
		err := rows.Scan(&id, &status, &held)
		m.find(eqSKULines, id, at, "the order is %s, and held of its line is %v", status, held)
		return err
	})
	if err != nil {
		return err
	}
	return each(ctx, tx, "cart_requests", fmt.Sprintf(`SELECT l.order_id FROM cart_lines l LEFT JOIN cart_requests r ON r.order_id = l.order_id
		WHERE l.sku_id = ? AND (r.order_id IS NULL OR r.answer IS NULL) LIMIT %d`, mostWrong), skuID, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		m.find(eqSKURequest, id, at, "no request was answered with this order: a repeat would order again")
		return err
	})
}

// endRow is the ledger row that the end of an order takes.
var endRow = map[wire.OrderStatus]string{wire.Paid: "pay", wire.Cancelled: "cancel", wire.Expired: "expire"}

// readLedger adds the ledger up, and looks for lines whose rows it does not have.
func (m *skuRows) readLedger(ctx context.Context, tx *sql.Tx, skuID int64) error {
	var bad int64
	err := each(ctx, tx, "sku_ledger", `SELECT COALESCE(SUM(available_change), 0), COALESCE(SUM(locked_change), 0),
		COALESCE(SUM(CASE WHEN available_before + available_change = available_after AND locked_before + locked_change = locked_after THEN 0 ELSE 1 END), 0)
		FROM sku_ledger WHERE sku_id = ?`, skuID, func(rows *sql.Rows) error { return rows.Scan(&m.available, &m.locked, &bad) })
	if err != nil {
		return err
	}
	at := fmt.Sprintf("sku_ledger of SKU %d", skuID)
	if bad > 0 {
		m.find(eqSKULedger, "", at, "in %d rows before + change is not after", bad)
	}
	err = each(ctx, tx, "sku_ledger", fmt.Sprintf(`SELECT l.order_id FROM cart_lines l LEFT JOIN sku_ledger g ON g.sku_id = l.sku_id AND g.kind = 'lock' AND g.ref = l.order_id
		WHERE l.sku_id = ? AND (g.id IS NULL OR g.available_change <> -l.quantity OR g.locked_change <> l.quantity) LIMIT %d`, mostWrong), skuID, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		m.find(eqSKULedger, id, at, "the order has no row of kind lock for the units of its line")
		return err
	})
	for status, kind := range endRow {
		if err != nil {
			return err
		}
		err = each(ctx, tx, "sku_ledger", fmt.Sprintf(`SELECT l.order_id FROM cart_lines l JOIN orders o ON o.id = l.order_id LEFT JOIN sku_ledger g ON g.sku_id = l.sku_id AND g.kind = '%s' AND g.ref = l.order_id
			WHERE l.sku_id = ? AND o.status = '%s' AND (g.id IS NULL OR g.locked_change <> -l.quantity) LIMIT %d`, kind, status, mostWrong), skuID, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			m.find(eqSKULedger, id, at, "the order is %s and has no row of kind %s for the units of its line", status, kind)
			return err
		})
	}
	return err
}

// readHeld reads where the orders stand that have units locked in Redis and are not unpaid.
func (m *skuRows) readHeld(ctx context.Context, tx *sql.Tx, skuID int64, orders map[string]int64) error {
	var ids []any
	for id := range orders {
		if _, unpaid := m.lines[id]; !unpaid {
			ids = append(ids, id)
		}
	}
	for part := range slices.Chunk(ids, 500) {
		err := store.Each(ctx, tx, func(rows *sql.Rows) error {
			var id string
			var status wire.OrderStatus
			err := rows.Scan(&id, &status)
			m.held[id] = status
			return err
		}, `SELECT l.order_id, o.status FROM cart_lines l JOIN orders o ON o.id = l.order_id WHERE l.sku_id = ? AND l.order_id IN (`+store.Marks(len(part))+`)`, append([]any{skuID}, part...)...)
		if err != nil {
			return fmt.Errorf("orders: %w", err)
		}
	}
	return nil
}

package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// saleRows is all that MySQL has of a sale, read at one moment.
type saleRows struct {
	sale, sku   int64
	kind        wire.SaleKind
	limit       int
	archived    bool
	definition  reserve.Definition
	total       int64
	available   int64
	locked      int64
	sold        int64
	epoch       int64
	orders      map[string]order
	slots       []slot
	claims      []claim
	ledger      []entry
	releasing   map[string]bool // orders whose release is not done yet
	adjusts     []adjust
	redefining  bool // a definition is not in Redis yet
	archiving   bool // the sale's keys are still to be removed from Redis
	openIntents int
	skuUnits    skuUnits
	line        []place
	settledAt   int64 // when an intent was last done, in milliseconds: whatever it gave back has been there since
}

// place is a place in the standby line.
type place struct {
	uid, order, state string
	joined, changed   int64 // milliseconds
	refused           bool  // he may not buy
}

type order struct {
	id       string // as the map has it: slots and ledger rows share it
	uid      string
	quantity int64
	status   wire.OrderStatus
	at       int64 // of the press, by Redis's clock, in milliseconds
	decided  int64 // when MySQL got it
	reason   string
	key      string // Idempotency-Key or ""
}

type slot struct {
	uid   string
	slot  int
	order string
}

// claim is one coupon that was issued.
type claim struct {
	id, order, uid string
	state          wire.ClaimState
	ended          bool // it says when
}

// entry is a row of the ledger.
type entry struct {
	id                int64
	kind, ref         string
	available, locked change
}

type change struct{ before, by, after int64 }

func (c change) adds() bool { return c.before+c.by == c.after }

type adjust struct {
	intent, units int64
}

type skuUnits struct {
	total, available, allotted, locked, sold int64
	sales                                    int64 // units of all its sales
}

// read takes one consistent reading: a REPEATABLE READ transaction sees everything as of its first statement.
func read(ctx context.Context, db *sql.DB, sale int64) (saleRows, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return saleRows{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it wrote nothing
	m := saleRows{sale: sale, orders: map[string]order{}, releasing: map[string]bool{}}
	for _, step := range []func(context.Context, *sql.Tx) error{
		m.readSale, m.readTranches, m.readOrders, m.readSlots, m.readClaims, m.readLedger, m.readIntents, m.readSKU, m.readLine,
	} {
		if err := step(ctx, tx); err != nil {
			return saleRows{}, err
		}
	}
	return m, nil
}

func (m *saleRows) readSale(ctx context.Context, tx *sql.Tx) error {
	var starts, ends time.Time
	var closed, archived sql.NullTime
	err := tx.QueryRowContext(ctx, `SELECT s.sku_id, s.kind, s.starts_at, s.ends_at, s.per_user_limit, s.paused OR NOT s.published, s.closed_at, s.archived_at,
		s.version, k.total, k.available, k.locked, k.sold, k.epoch
		FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE s.id = ?`, m.sale).
		Scan(&m.sku, &m.kind, &starts, &ends, &m.limit, &m.definition.Paused, &closed, &archived,
			&m.definition.Version, &m.total, &m.available, &m.locked, &m.sold, &m.epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrUnknownSale
	}
	if err != nil {
		return fmt.Errorf("its sale and stock rows: %w", err)
	}
	m.archived = archived.Valid
	m.definition.Closed = closed.Valid
	m.definition.Starts, m.definition.Ends, m.definition.Limit = starts.UnixMilli(), ends.UnixMilli(), m.limit
	return nil
}

func (m *saleRows) readTranches(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "tranches", `SELECT at, quantity FROM tranches WHERE sale_id = ? ORDER BY at`, m.sale, func(rows *sql.Rows) error {
		var at time.Time
		var units int64
		err := rows.Scan(&at, &units)
		if ms := at.UnixMilli(); ms > m.definition.Starts {
			m.definition.Later = append(m.definition.Later, reserve.Tranche{At: ms, Units: units})
		}
		return err
	})
}

func (m *saleRows) readOrders(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "orders", `SELECT id, uid, quantity, status, created_at, decided_at, reason, COALESCE(idem_key, '') FROM orders WHERE sale_id = ?`, m.sale, func(rows *sql.Rows) error {
		var o order
		var at, decided time.Time
		err := rows.Scan(&o.id, &o.uid, &o.quantity, &o.status, &at, &decided, &o.reason, &o.key)
		o.at, o.decided = at.UnixMilli(), decided.UnixMilli()
		m.orders[o.id] = o
		return err
	})
}

// shared is an order's id without a copy of its own, where the order has a row: there are a slot and a ledger row for each, or more.
func (m *saleRows) shared(id string) string {
	if o, ok := m.orders[id]; ok {
		return o.id
	}
	return id
}

func (m *saleRows) readSlots(ctx context.Context, tx *sql.Tx) error {
	m.slots = make([]slot, 0, len(m.orders))
	return each(ctx, tx, "order_slots", `SELECT uid, slot, order_id FROM order_slots WHERE sale_id = ?`, m.sale, func(rows *sql.Rows) error {
		var s slot
		err := rows.Scan(&s.uid, &s.slot, &s.order)
		s.order = m.shared(s.order)
		m.slots = append(m.slots, s)
		return err
	})
}

func (m *saleRows) readClaims(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "coupon_claims", `SELECT id, order_id, uid, state, ended_at FROM coupon_claims WHERE sale_id = ?`, m.sale, func(rows *sql.Rows) error {
		var x claim
		var ended sql.NullTime
		err := rows.Scan(&x.id, &x.order, &x.uid, &x.state, &ended)
		x.ended = ended.Valid
		m.claims = append(m.claims, x)
		return err
	})
}

func (m *saleRows) readLedger(ctx context.Context, tx *sql.Tx) error {
	m.ledger = make([]entry, 0, len(m.orders))
	return each(ctx, tx, "ledger", `SELECT id, kind, ref, available_before, available_change, available_after,
		locked_before, locked_change, locked_after FROM ledger WHERE sale_id = ? ORDER BY id`, m.sale, func(rows *sql.Rows) error {
		var e entry
		err := rows.Scan(&e.id, &e.kind, &e.ref, &e.available.before, &e.available.by, &e.available.after,
			&e.locked.before, &e.locked.by, &e.locked.after)
		e.ref = m.shared(e.ref)
		m.ledger = append(m.ledger, e)
		return err
	})
}

func (m *saleRows) readIntents(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "intents", `SELECT id, kind, order_id, quantity, done_at FROM intents
		WHERE sale_id = ? AND (done_at IS NULL OR kind = 'adjust')`, m.sale, func(rows *sql.Rows) error {
		var id, units int64
		var kind, orderID string
		var done sql.NullTime
		if err := rows.Scan(&id, &kind, &orderID, &units, &done); err != nil {
			return err
		}
		if !done.Valid {
			m.openIntents++
		}
		switch kind {
		case "release":
			m.releasing[orderID] = true
		case "adjust":
			m.adjusts = append(m.adjusts, adjust{id, units})
		case "define":
			m.redefining = true
		case "archive":
			m.archiving = true
		}
		return nil
	})
}

func (m *saleRows) readLine(ctx context.Context, tx *sql.Tx) error {
	var settled sql.NullTime
	if err := tx.QueryRowContext(ctx, `SELECT MAX(done_at) FROM intents WHERE sale_id = ?`, m.sale).Scan(&settled); err != nil {
		return fmt.Errorf("intents: %w", err)
	}
	if settled.Valid {
		m.settledAt = settled.Time.UnixMilli()
	}
	var waiting []string
	err := each(ctx, tx, "standby", `SELECT uid, order_id, state, joined_at, changed_at FROM standby WHERE sale_id = ? ORDER BY place`, m.sale, func(rows *sql.Rows) error {
		var p place
		var joined, changed time.Time
		err := rows.Scan(&p.uid, &p.order, &p.state, &joined, &changed)
		p.joined, p.changed = joined.UnixMilli(), changed.UnixMilli()
		m.line = append(m.line, p)
		if p.state == "waiting" {
			waiting = append(waiting, p.uid)
		}
		return err
	})
	if err != nil {
		return err
	}
	refused := map[string]eligibility.Refusal{}
	for uids := range slices.Chunk(waiting, eligibility.MaxChunk) {
		some, err := eligibility.Among(ctx, tx, m.sale, uids)
		if err != nil {
			return err
		}
		maps.Copy(refused, some)
	}
	for i := range m.line {
		m.line[i].refused = refused[m.line[i].uid] != ""
	}
	return nil
}

func (m *saleRows) readSKU(ctx context.Context, tx *sql.Tx) error {
	k := &m.skuUnits
	err := tx.QueryRowContext(ctx, `SELECT total, available, allotted, locked, sold FROM skus WHERE id = ?`, m.sku).
		Scan(&k.total, &k.available, &k.allotted, &k.locked, &k.sold)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // a finding: no units at all
	}
	if err != nil {
		return fmt.Errorf("sku %d: %w", m.sku, err)
	}
	return each(ctx, tx, "sale_stock", `SELECT k.total FROM sale_stock k JOIN sales s ON s.id = k.sale_id WHERE s.sku_id = ?`, m.sku,
		func(rows *sql.Rows) error {
			var n int64
			err := rows.Scan(&n)
			k.sales += n
			return err
		})
}

func each(ctx context.Context, tx *sql.Tx, table, query string, arg int64, row func(*sql.Rows) error) error {
	if err := store.Each(ctx, tx, row, query, arg); err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	return nil
}

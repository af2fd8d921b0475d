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
	"floodgate.internal/shared/wire"
)

// books is all that MySQL has of a sale, read at one moment.
type books struct {
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
func read(ctx context.Context, db *sql.DB, sale int64) (books, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return books{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it wrote nothing
	b := books{sale: sale, orders: map[string]order{}, releasing: map[string]bool{}}
	for _, step := range []func(context.Context, *sql.Tx) error{
		b.readSale, b.readTranches, b.readOrders, b.readSlots, b.readClaims, b.readLedger, b.readIntents, b.readSKU, b.readLine,
	} {
		if err := step(ctx, tx); err != nil {
			return books{}, err
		}
	}
	return b, nil
}

func (b *books) readSale(ctx context.Context, tx *sql.Tx) error {
	var starts, ends time.Time
	var closed, archived sql.NullTime
	err := tx.QueryRowContext(ctx, `SELECT s.sku_id, s.kind, s.starts_at, s.ends_at, s.per_user_limit, s.paused OR NOT s.published, s.closed_at, s.archived_at,
		s.version, k.total, k.available, k.locked, k.sold, k.epoch
		FROM sales s JOIN sale_stock k ON k.sale_id = s.id WHERE s.id = ?`, b.sale).
		Scan(&b.sku, &b.kind, &starts, &ends, &b.limit, &b.definition.Paused, &closed, &archived,
			&b.definition.Version, &b.total, &b.available, &b.locked, &b.sold, &b.epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrUnknownSale
	}
	if err != nil {
		return fmt.Errorf("its sale and stock rows: %w", err)
	}
	b.archived = archived.Valid
	b.definition.Closed = closed.Valid
	b.definition.Starts, b.definition.Ends, b.definition.Limit = starts.UnixMilli(), ends.UnixMilli(), b.limit
	return nil
}

func (b *books) readTranches(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "tranches", `SELECT at, quantity FROM tranches WHERE sale_id = ? ORDER BY at`, b.sale, func(rows *sql.Rows) error {
		var at time.Time
		var units int64
		err := rows.Scan(&at, &units)
		if ms := at.UnixMilli(); ms > b.definition.Starts {
			b.definition.Later = append(b.definition.Later, reserve.Tranche{At: ms, Units: units})
		}
		return err
	})
}

func (b *books) readOrders(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "orders", `SELECT id, uid, quantity, status, created_at, decided_at, reason, COALESCE(idem_key, '') FROM orders WHERE sale_id = ?`, b.sale, func(rows *sql.Rows) error {
		var id string
		var o order
		var at, decided time.Time
		err := rows.Scan(&id, &o.uid, &o.quantity, &o.status, &at, &decided, &o.reason, &o.key)
		o.at, o.decided = at.UnixMilli(), decided.UnixMilli()
		b.orders[id] = o
		return err
	})
}

func (b *books) readSlots(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "order_slots", `SELECT uid, slot, order_id FROM order_slots WHERE sale_id = ?`, b.sale, func(rows *sql.Rows) error {
		var s slot
		err := rows.Scan(&s.uid, &s.slot, &s.order)
		b.slots = append(b.slots, s)
		return err
	})
}

func (b *books) readClaims(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "coupon_claims", `SELECT id, order_id, uid, state, ended_at FROM coupon_claims WHERE sale_id = ?`, b.sale, func(rows *sql.Rows) error {
		var x claim
		var ended sql.NullTime
		err := rows.Scan(&x.id, &x.order, &x.uid, &x.state, &ended)
		x.ended = ended.Valid
		b.claims = append(b.claims, x)
		return err
	})
}

func (b *books) readLedger(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "ledger", `SELECT id, kind, ref, available_before, available_change, available_after,
		locked_before, locked_change, locked_after FROM ledger WHERE sale_id = ? ORDER BY id`, b.sale, func(rows *sql.Rows) error {
		var e entry
		err := rows.Scan(&e.id, &e.kind, &e.ref, &e.available.before, &e.available.by, &e.available.after,
			&e.locked.before, &e.locked.by, &e.locked.after)
		b.ledger = append(b.ledger, e)
		return err
	})
}

func (b *books) readIntents(ctx context.Context, tx *sql.Tx) error {
	return each(ctx, tx, "intents", `SELECT id, kind, order_id, quantity, done_at FROM intents
		WHERE sale_id = ? AND (done_at IS NULL OR kind = 'adjust')`, b.sale, func(rows *sql.Rows) error {
		var id, units int64
		var kind, orderID string
		var done sql.NullTime
		if err := rows.Scan(&id, &kind, &orderID, &units, &done); err != nil {
			return err
		}
		if !done.Valid {
			b.openIntents++
		}
		switch kind {
		case "release":
			b.releasing[orderID] = true
		case "adjust":
			b.adjusts = append(b.adjusts, adjust{id, units})
		case "define":
			b.redefining = true
		case "archive":
			b.archiving = true
		}
		return nil
	})
}

func (b *books) readLine(ctx context.Context, tx *sql.Tx) error {
	var settled sql.NullTime
	if err := tx.QueryRowContext(ctx, `SELECT MAX(done_at) FROM intents WHERE sale_id = ?`, b.sale).Scan(&settled); err != nil {
		return fmt.Errorf("intents: %w", err)
	}
	if settled.Valid {
		b.settledAt = settled.Time.UnixMilli()
	}
	var waiting []string
	err := each(ctx, tx, "standby", `SELECT uid, order_id, state, joined_at, changed_at FROM standby WHERE sale_id = ? ORDER BY place`, b.sale, func(rows *sql.Rows) error {
		var p place
		var joined, changed time.Time
		err := rows.Scan(&p.uid, &p.order, &p.state, &joined, &changed)
		p.joined, p.changed = joined.UnixMilli(), changed.UnixMilli()
		b.line = append(b.line, p)
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
		some, err := eligibility.Among(ctx, tx, b.sale, uids)
		if err != nil {
			return err
		}
		maps.Copy(refused, some)
	}
	for i := range b.line {
		b.line[i].refused = refused[b.line[i].uid] != ""
	}
	return nil
}

func (b *books) readSKU(ctx context.Context, tx *sql.Tx) error {
	k := &b.skuUnits
	err := tx.QueryRowContext(ctx, `SELECT total, available, allotted, locked, sold FROM skus WHERE id = ?`, b.sku).
		Scan(&k.total, &k.available, &k.allotted, &k.locked, &k.sold)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // a finding: no units at all
	}
	if err != nil {
		return fmt.Errorf("sku %d: %w", b.sku, err)
	}
	return each(ctx, tx, "sale_stock", `SELECT k.total FROM sale_stock k JOIN sales s ON s.id = k.sale_id WHERE s.sku_id = ?`, b.sku,
		func(rows *sql.Rows) error {
			var n int64
			err := rows.Scan(&n)
			k.sales += n
			return err
		})
}

func each(ctx context.Context, tx *sql.Tx, table, query string, arg int64, row func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query, arg)
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	return nil
}

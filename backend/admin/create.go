package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// newSale is a sale that is to be made.
type newSale struct {
	sku              int64 // 0: one of its own
	kind             string
	title            string
	price            int64
	currency         string
	hasPrice         bool // else it is the SKU's
	stock            int64
	starts, ends     time.Time
	limit, payWithin int64
	tranches         []tranche
	hidden           bool
	category, guard  string
	action           string
}

func (a *Admin) createSale(r *request) (*answer, error) {
	var in adminapi.NewSale
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	n := newSale{kind: string(wire.Goods), limit: 1, payWithin: payWithin, hasPrice: in.Price != nil, action: "sale.create"}
	if err := first(
		between("sku_id", in.SKU, 1, 1<<63-1, &n.sku),
		oneOf("kind", in.Kind, &n.kind, string(wire.Goods), string(wire.Coupon)),
		text("title", in.Title, 1, maxTitle, &n.title),
		between("price", in.Price, 0, maxPrice, &n.price),
		currency("currency", in.Currency, &n.currency),
		needed("stock", in.Stock), between("stock", in.Stock, 1, maxUnits, &n.stock),
		needed("starts_at", in.StartsAt), moment("starts_at", in.StartsAt, &n.starts),
		needed("ends_at", in.EndsAt), moment("ends_at", in.EndsAt, &n.ends),
		between("per_user_limit", in.PerUserLimit, 1, maxLimit, &n.limit),
		between("pay_within_s", in.PayWithin, 1, maxPayWithin, &n.payWithin),
	); err != nil {
		return nil, err
	}
	if err := after("ends_at", in.EndsAt, n.ends, "starts_at", n.starts); err != nil {
		return nil, err
	}
	if in.Tranches != nil {
		var err error
		if n.tranches, err = schedule(*in.Tranches, n.stock, n.starts, n.ends); err != nil {
			return nil, err
		}
	}
	if n.kind == string(wire.Coupon) {
		n.guard = order.GuardConditional
	}
	return a.create(r, n)
}

// create writes a sale and loads it into Redis.
func (a *Admin) create(r *request, asked newSale) (*answer, error) {
	if asked.sku == 0 { // there is no SKU to say it
		coupon := asked.kind == string(wire.Coupon)
		if asked.currency == "" && coupon {
			asked.currency = noCurrency
		}
		switch {
		case asked.title == "":
			return nil, missing("title")
		case !asked.hasPrice && !coupon:
			return nil, missing("price")
		case asked.currency == "":
			return nil, missing("currency")
		}
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		n := asked
		var live int64
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM sales WHERE archived_at IS NULL`).Scan(&live); err != nil {
			return change{}, fmt.Errorf("live sales: %w", err)
		}
		if live >= sale.MaxLive {
			p := problem.New(problem.Overloaded, fmt.Sprintf("there are %d live sales, the most there may be: archive some", live))
			p.RetryAfter = time.Minute
			return change{}, p
		}
		if err := a.allot(ctx, tx, &n); err != nil {
			return change{}, err
		}
		result, err := tx.ExecContext(ctx, `INSERT INTO sales (sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s,
			published, category, stock_guard, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			n.sku, n.kind, n.title, n.price, n.currency, n.starts, n.ends, n.limit, n.payWithin, !n.hidden, n.category, n.guard, a.now())
		if err != nil {
			return change{}, fmt.Errorf("insert sale: %w", err)
		}
		id, err := result.LastInsertId()
		if err != nil {
			return change{}, fmt.Errorf("insert sale: %w", err)
		}
		for _, t := range n.tranches {
			if _, err := tx.ExecContext(ctx, `INSERT INTO tranches (sale_id, at, quantity) VALUES (?, ?, ?)`, id, t.at, t.units); err != nil {
				return change{}, fmt.Errorf("insert tranche: %w", err)
			}
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO sale_stock (sale_id, total, available) VALUES (?, ?, ?)`, id, n.stock, n.stock); err != nil {
			return change{}, fmt.Errorf("insert stock: %w", err)
		}
		failpoint.Hit("admin.mid-create")
		if err := a.book(ctx, tx, id, "allot", "create", n.stock, n.stock, 0); err != nil {
			return change{}, err
		}
		after, _, err := a.readSale(ctx, tx, id)
		return change{status: http.StatusCreated, action: n.action, target: saleName(id), after: after, load: id, sku: asked.sku}, err
	})
}

// allot takes the sale's units out of its SKU, or makes one for it, and fills in what the SKU says.
func (a *Admin) allot(ctx context.Context, tx *sql.Tx, n *newSale) error {
	if n.sku == 0 {
		var err error
		n.sku, err = a.insertSKU(ctx, tx, n.title, n.price, n.currency, 0, n.stock, true)
		return err
	}
	sku, err := readSKU(ctx, tx, n.sku, forUpdate)
	var p *problem.Problem
	if errors.As(err, &p) {
		return problem.Invalid("sku_id", fmt.Sprintf("there is no SKU %d: POST /admin/v1/skus makes one, or leave it out for a SKU of the sale's own", n.sku))
	}
	if err != nil {
		return err
	}
	if n.title == "" {
		n.title = sku.Title
	}
	if !n.hasPrice {
		n.price = sku.Price
	}
	if n.currency == "" {
		n.currency = sku.Currency
	}
	return a.takeUnits(ctx, tx, sku, n.stock, "stock")
}

// takeUnits allots available units of a SKU whose row is locked.
func (a *Admin) takeUnits(ctx context.Context, tx *sql.Tx, k adminapi.SKU, units int64, field string) error {
	n, err := affected(tx.ExecContext(ctx, `UPDATE skus SET available = available - ?, allotted = allotted + ? WHERE id = ? AND available >= ?`,
		units, units, k.ID, units))
	if err != nil {
		return fmt.Errorf("allot %d units of sku %d: %w", units, k.ID, err)
	}
	if n == 0 {
		p := problem.New(problem.InsufficientStock, fmt.Sprintf("%s: %d units are asked for, SKU %d has %d available: POST /admin/v1/skus/%d/restock adds some",
			field, units, k.ID, k.Available, k.ID))
		p.Field = field
		return p
	}
	return a.moveSKU(ctx, tx, k, sku.Allot, -units)
}

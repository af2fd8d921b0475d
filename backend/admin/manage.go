package admin

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// match compares If-Match with a version.
func (r *request) match(version int64, required bool) error {
	values := r.Header.Values("If-Match")
	if len(values) == 0 {
		if !required {
			return nil
		}
		return problem.Invalid("If-Match", fmt.Sprintf("missing: give the ETag of the version that you have read; now it is %s", etag(version)))
	}
	for _, v := range strings.Split(strings.Join(values, ","), ",") {
		if v = strings.TrimSpace(v); v == "*" || v == etag(version) || v == strconv.FormatInt(version, 10) {
			return nil
		}
	}
	p := problem.New(problem.PreconditionFailed, fmt.Sprintf("If-Match: %s is not the present version %s: read it again, then decide", short(strings.Join(values, ",")), etag(version)))
	p.Field = "If-Match"
	return p
}

// fixed refuses a member that exists and cannot be changed this way.
func (r *request) fixed(field, way string) error {
	var m map[string]jsontext.Value
	if json.Unmarshal(r.body, &m) != nil {
		return nil // decode says what is wrong
	}
	if v, ok := m[field]; ok {
		return problem.Invalid(field, fmt.Sprintf("%s cannot be set here: %s", short(string(v)), way))
	}
	return nil
}

// patchSale changes title, window, limit and time to pay, and before the start also the price.
//
// What buyers were promised does not change under them: once the sale has started (or is about to), its start and price
// stay, its limit may only be raised. Its SKU, kind, currency and tranches stay for good; stock, pause and close have
// paths of their own. A closed sale never changes again.
func (a *Admin) patchSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	var in adminapi.SalePatch
	path := "POST /admin/v1/sales/" + strconv.FormatInt(id, 10)
	if err := first(
		r.fixed("sku_id", "it stays as it was made; make another sale"),
		r.fixed("kind", "it stays as it was made; make another sale"),
		r.fixed("currency", "it stays as it was made; make another sale"),
		r.fixed("tranches", "they stay as they were made; make another sale, or end this one with "+path+"/close"),
		r.fixed("stock", path+"/restock adds units"),
		r.fixed("paused", path+"/pause and /resume do that"),
		r.decode(&in),
	); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		before, s, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return change{}, err
		}
		if err := first(r.match(before.Version, true), notClosed(before)); err != nil {
			return change{}, err
		}
		next := s
		if err := applyPatch(in, &next, a.Clock.Now()); err != nil {
			return change{}, err
		}
		if same(s, next) {
			return change{status: http.StatusOK, after: before, nothing: true}, nil
		}
		if _, err := tx.ExecContext(ctx, `UPDATE sales SET title = ?, price = ?, starts_at = ?, ends_at = ?, per_user_limit = ?, pay_within_s = ? WHERE id = ?`,
			next.Title, next.Price, next.StartsAt, next.EndsAt, next.PerUserLimit, int64(next.PayWithin/time.Second), id); err != nil {
			return change{}, fmt.Errorf("update sale %d: %w", id, err)
		}
		return a.redefine(ctx, tx, "sale.update", before)
	})
}

func same(s, t sale.Record) bool {
	return s.Title == t.Title && s.Price == t.Price && s.StartsAt.Equal(t.StartsAt) && s.EndsAt.Equal(t.EndsAt) &&
		s.PerUserLimit == t.PerUserLimit && s.PayWithin == t.PayWithin
}

// applyPatch makes s what the patch says, or says why not.
func applyPatch(in adminapi.SalePatch, s *sale.Record, now time.Time) error {
	was := *s
	limit, payWithin := int64(s.PerUserLimit), int64(s.PayWithin/time.Second)
	if err := first(
		text("title", in.Title, 1, maxTitle, &s.Title),
		between("price", in.Price, 0, maxPrice, &s.Price),
		moment("starts_at", in.StartsAt, &s.StartsAt),
		moment("ends_at", in.EndsAt, &s.EndsAt),
		between("per_user_limit", in.PerUserLimit, 1, maxLimit, &limit),
		between("pay_within_s", in.PayWithin, 1, maxPayWithin, &payWithin),
	); err != nil {
		return err
	}
	s.PerUserLimit, s.PayWithin = int(limit), time.Duration(payWithin)*time.Second

	if !now.Add(freeze).Before(was.StartsAt) {
		started := "the sale started at " + was.StartsAt.Format(wire.TimeFormat)
		if now.Before(was.StartsAt) {
			started = "the sale is about to start"
		}
		switch {
		case s.Price != was.Price:
			return problem.Invalid("price", fmt.Sprintf("%d: %s, buyers were shown %d; close it and make another sale", s.Price, started, was.Price))
		case !s.StartsAt.Equal(was.StartsAt):
			return problem.Invalid("starts_at", fmt.Sprintf("%q: %s; pause it instead", *in.StartsAt, started))
		case s.PerUserLimit < was.PerUserLimit:
			return problem.Invalid("per_user_limit", fmt.Sprintf("%d: %s, some may hold %d already; it can only be raised", s.PerUserLimit, started, was.PerUserLimit))
		}
	}
	if err := after("ends_at", in.EndsAt, s.EndsAt, "starts_at", s.StartsAt); err != nil {
		return err
	}
	outside := func(t sale.Tranche) bool { return t.At.Before(s.StartsAt) || !t.At.Before(s.EndsAt) }
	if i := slices.IndexFunc(s.Tranches, outside); i >= 0 {
		field, value := "ends_at", s.EndsAt
		if s.Tranches[i].At.Before(s.StartsAt) {
			field, value = "starts_at", s.StartsAt
		}
		return problem.Invalid(field, fmt.Sprintf("%q leaves the tranche at %s outside the sale: choose another time, or end the sale with close",
			value.Format(wire.TimeFormat), s.Tranches[i].At.Format(wire.TimeFormat)))
	}
	return nil
}

func notClosed(s adminapi.Sale) error {
	if s.ClosedAt == nil {
		return nil
	}
	return problem.New(problem.SaleEnded, fmt.Sprintf("sale %d was closed for good at %s: make another sale", s.ID, s.ClosedAt.Format(wire.TimeFormat)))
}

// redefine counts the version and intends the definition for Redis, and adjusts before it.
func (a *Admin) redefine(ctx context.Context, tx *sql.Tx, action string, before adminapi.Sale, adjusts ...intent.Intent) (change, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE sales SET version = version + 1 WHERE id = ?`, before.ID); err != nil {
		return change{}, fmt.Errorf("version of sale %d: %w", before.ID, err)
	}
	define, err := intent.Define(ctx, tx, a.now(), before.ID)
	if err != nil {
		return change{}, err
	}
	now, _, err := a.readSale(ctx, tx, before.ID)
	return change{status: http.StatusOK, action: action, target: saleName(before.ID), before: before, after: now, intents: append(adjusts, define)}, err
}

func (a *Admin) pauseSale(r *request) (*answer, error) {
	return a.switchSale(r, "sale.pause", `UPDATE sales SET paused = TRUE WHERE id = ?`, func(s adminapi.Sale) (bool, error) { return s.Paused, notClosed(s) })
}

func (a *Admin) resumeSale(r *request) (*answer, error) {
	return a.switchSale(r, "sale.resume", `UPDATE sales SET paused = FALSE WHERE id = ?`, func(s adminapi.Sale) (bool, error) { return !s.Paused, notClosed(s) })
}

// closeSale ends a sale for good: at once in Redis; what was promised before is honoured. ReturnUnsold gives the unsold
// units back to the SKU when nothing is queued any more. Closing a closed sale changes nothing.
func (a *Admin) closeSale(r *request) (*answer, error) {
	return a.switchSale(r, "sale.close", `UPDATE sales SET closed_at = ? WHERE id = ?`, func(s adminapi.Sale) (bool, error) { return s.ClosedAt != nil, nil })
}

// switchSale changes what is one column; already says that there is nothing to change, or why it cannot be.
func (a *Admin) switchSale(r *request, action, update string, already func(adminapi.Sale) (bool, error)) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	if err := r.noBody(); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		before, _, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return change{}, err
		}
		switch done, err := already(before); {
		case err != nil:
			return change{}, err
		case done:
			return change{status: http.StatusOK, after: before, nothing: true}, nil
		}
		args := []any{id}
		if strings.Count(update, "?") == 2 {
			args = []any{a.now(), id}
		}
		if _, err := tx.ExecContext(ctx, update, args...); err != nil {
			return change{}, fmt.Errorf("%s %d: %w", action, id, err)
		}
		return a.redefine(ctx, tx, action, before)
	})
}

// restockSale gives a sale more units, at once on sale: new ones for a SKU of its own, available ones of a shared SKU.
func (a *Admin) restockSale(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	quantity, err := r.quantity()
	if err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		before, s, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return change{}, err
		}
		if err := notClosed(before); err != nil {
			return change{}, err
		}
		sku, err := readSKU(ctx, tx, s.SKU, forUpdate)
		if err != nil {
			return change{}, err
		}
		if before.Total+quantity > maxUnits {
			return change{}, tooMany(before.Total, quantity)
		}
		if sku.Own {
			if sku.Total+quantity > maxUnits {
				return change{}, tooMany(sku.Total, quantity)
			}
			_, err = tx.ExecContext(ctx, `UPDATE skus SET total = total + ?, allotted = allotted + ? WHERE id = ?`, quantity, quantity, sku.ID)
		} else {
			err = a.takeUnits(ctx, tx, sku, quantity, "quantity")
		}
		if err != nil {
			return change{}, err
		}
		adjust, err := a.moveUnits(ctx, tx, id, "restock", quantity)
		if err != nil {
			return change{}, err
		}
		failpoint.Hit("admin.mid-restock")
		c, err := a.redefine(ctx, tx, "sale.restock", before, adjust)
		c.sku = sku.ID
		return c, err
	})
}

// moveUnits changes a sale's total and available units, in the stock row and in the ledger, and intends it for Redis.
func (a *Admin) moveUnits(ctx context.Context, tx *sql.Tx, sale int64, kind string, units int64) (intent.Intent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE sale_stock SET total = total + ?, available = available + ?, version = version + 1 WHERE sale_id = ?`, units, units, sale); err != nil {
		return intent.Intent{}, fmt.Errorf("%s sale %d by %d: %w", kind, sale, units, err)
	}
	var available, locked int64
	if err := tx.QueryRowContext(ctx, `SELECT available, locked FROM sale_stock WHERE sale_id = ? FOR UPDATE`, sale).Scan(&available, &locked); err != nil {
		return intent.Intent{}, fmt.Errorf("stock of sale %d: %w", sale, err)
	}
	i, err := intent.Adjust(ctx, tx, a.now(), sale, units)
	if err != nil {
		return intent.Intent{}, err
	}
	return i, a.book(ctx, tx, sale, kind, i.Ref(), units, available, locked)
}

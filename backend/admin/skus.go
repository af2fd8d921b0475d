package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const skuColumns = `id, title, price, currency, own, total, available, allotted, locked, sold, version, created_at`

func scanSKU(row interface{ Scan(...any) error }) (adminapi.SKU, error) {
	var s adminapi.SKU
	var created time.Time
	err := row.Scan(&s.ID, &s.Title, &s.Price, &s.Currency, &s.Own, &s.Total, &s.Available, &s.Allotted, &s.Locked, &s.Sold, &s.Version, &created)
	s.CreatedAt = wire.At(created)
	return s, err
}

type rower interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// readSKU reads a SKU; in a transaction, lock keeps it until the end.
func readSKU(ctx context.Context, q rower, id int64, lock string) (adminapi.SKU, error) {
	s, err := scanSKU(q.QueryRowContext(ctx, `SELECT `+skuColumns+` FROM skus WHERE id = ? `+lock, id))
	if errors.Is(err, sql.ErrNoRows) {
		return s, noSKU(id)
	}
	if err != nil {
		return s, fmt.Errorf("sku %d: %w", id, err)
	}
	return s, nil
}

func noSKU(id int64) error {
	return problem.New(problem.NotFound, fmt.Sprintf("no SKU %d: GET /admin/v1/skus lists them", id))
}

const forUpdate = "FOR UPDATE"

// maxPage bounds a list's page.
const maxPage = 1000

func (a *Admin) listSKUs(r *request) (*answer, error) {
	below, limit, err := r.page(maxPage)
	if err != nil {
		return nil, err
	}
	rows, err := a.DB.QueryContext(r.Context(), `SELECT `+skuColumns+` FROM skus WHERE id < ? ORDER BY id DESC LIMIT ?`, below, limit+1)
	if err != nil {
		return nil, fmt.Errorf("skus: %w", err)
	}
	defer rows.Close()
	list := []adminapi.SKU{}
	for rows.Next() {
		s, err := scanSKU(rows)
		if err != nil {
			return nil, fmt.Errorf("skus: %w", err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("skus: %w", err)
	}
	var next string
	if int64(len(list)) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].ID, 10)
	}
	return &answer{status: http.StatusOK, value: adminapi.SKUs{SKUs: list, Page: adminapi.Page{Next: next}}}, nil
}

func (a *Admin) getSKU(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "SKU")
	if err != nil {
		return nil, err
	}
	s, err := readSKU(r.Context(), a.DB, id, "")
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: s}, nil
}

func (a *Admin) createSKU(r *request) (*answer, error) {
	var in adminapi.NewSKU
	var s adminapi.SKU
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if err := first(
		needed("title", in.Title), text("title", in.Title, 1, maxTitle, &s.Title),
		needed("price", in.Price), between("price", in.Price, 0, maxPrice, &s.Price),
		needed("currency", in.Currency), currency("currency", in.Currency, &s.Currency),
		needed("stock", in.Stock), between("stock", in.Stock, 1, sale.MaxUnits, &s.Total),
	); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		id, err := a.insertSKU(ctx, tx, s)
		if err != nil {
			return change.Change{}, err
		}
		after, err := readSKU(ctx, tx, id, "")
		return change.Change{Action: "sku.create", Target: change.SKU(id), After: after}, err
	})
}

func (a *Admin) insertSKU(ctx context.Context, tx *sql.Tx, s adminapi.SKU) (int64, error) {
	result, err := tx.ExecContext(ctx, `INSERT INTO skus (title, price, currency, own, total, available, allotted, created_at) VALUES (?, ?, ?, FALSE, ?, ?, 0, ?)`,
		s.Title, s.Price, s.Currency, s.Total, s.Total, a.Changes.Now())
	if err != nil {
		return 0, fmt.Errorf("insert sku: %w", err)
	}
	id, err := result.LastInsertId()
	if err != nil {
		return 0, fmt.Errorf("insert sku: %w", err)
	}
	return id, sku.Record(ctx, tx, a.Changes.Now(), sku.Change{SKU: id, Kind: sku.Created, Ref: sku.Created, Available: s.Total}, 0, 0)
}

// patchAttempts bounds how often a change is begun anew where another one was quicker.
const patchAttempts = 5

// patchSKU changes what the SKU's next sales and carts take over; sales there are keep their own. If-Match is honoured
// where it is given.
//
// It is optimistic: the row is hot with carts, which do not count the version, and a lock on it from the reading to the
// COMMIT would make them all wait for this.
func (a *Admin) patchSKU(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "SKU")
	if err != nil {
		return nil, err
	}
	var in adminapi.SKUPatch
	if err := first(r.fixed("stock", fmt.Sprintf("POST /admin/v1/skus/%d/restock adds units", id)), r.decode(&in)); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		for range patchAttempts {
			before, err := readSKU(ctx, tx, id, "")
			if err != nil {
				return change.Change{}, err
			}
			if err := r.match(before.Version, false); err != nil {
				return change.Change{}, err
			}
			s := before
			if err := first(text("title", in.Title, 1, maxTitle, &s.Title), between("price", in.Price, 0, maxPrice, &s.Price),
				currency("currency", in.Currency, &s.Currency)); err != nil {
				return change.Change{}, err
			}
			if s == before {
				return change.Change{After: before, Nothing: true}, nil
			}
			s.Version++
			n, err := store.Changed(tx.ExecContext(ctx, `UPDATE skus SET title = ?, price = ?, currency = ?, version = ? WHERE id = ? AND version = ?`,
				s.Title, s.Price, s.Currency, s.Version, id, before.Version))
			if err != nil {
				return change.Change{}, fmt.Errorf("update sku %d: %w", id, err)
			}
			if n == 1 {
				return change.Change{Action: "sku.update", Target: change.SKU(id), Before: before, After: s}, nil
			}
		}
		p := problem.New(problem.Overloaded, fmt.Sprintf("SKU %d was changed %d times while this was tried; nothing was done, ask again", id, patchAttempts))
		p.RetryAfter = time.Second
		return change.Change{}, p
	})
}

func (r *request) quantity() (int64, error) {
	var in adminapi.Restock
	var n int64
	if err := r.decode(&in); err != nil {
		return 0, err
	}
	return n, first(needed("quantity", in.Quantity), between("quantity", in.Quantity, 1, sale.MaxUnits, &n))
}

func (a *Admin) restockSKU(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "SKU")
	if err != nil {
		return nil, err
	}
	quantity, err := r.quantity()
	if err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, err := readSKU(ctx, tx, id, forUpdate)
		if err != nil {
			return change.Change{}, err
		}
		if before.Total+quantity > sale.MaxUnits {
			return change.Change{}, inField("quantity", &sale.LimitError{Total: before.Total, More: quantity})
		}
		if _, err := tx.ExecContext(ctx, `UPDATE skus SET total = total + ?, available = available + ?, version = version + 1 WHERE id = ?`,
			quantity, quantity, id); err != nil {
			return change.Change{}, fmt.Errorf("restock sku %d: %w", id, err)
		}
		if err := a.moveSKU(ctx, tx, before, sku.Restock, quantity); err != nil {
			return change.Change{}, err
		}
		after, err := readSKU(ctx, tx, id, "")
		return change.Change{Action: "sku.restock", Target: change.SKU(id), Before: before, After: after, SKU: id}, err
	})
}

// moveSKU writes the ledger row, and the intent for Redis, of a change of a SKU's available units. k is as it was before,
// and its row is locked.
func (a *Admin) moveSKU(ctx context.Context, tx *sql.Tx, k adminapi.SKU, kind string, units int64) error {
	i, err := intent.AdjustSKU(ctx, tx, a.Changes.Now(), k.ID, units)
	if err != nil {
		return err
	}
	return sku.Record(ctx, tx, a.Changes.Now(), sku.Change{SKU: k.ID, Kind: kind, Ref: i.Ref(), Available: units}, k.Available, k.Locked)
}

func (a *Admin) auditSKU(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "SKU")
	if err != nil {
		return nil, err
	}
	result, err := a.Audit.SKU(r.Context(), id)
	if errors.Is(err, audit.ErrUnknownSKU) {
		return nil, noSKU(id)
	}
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: result}, nil
}

// rebuildSKU writes a SKU into Redis anew from MySQL, and answers with the audit that follows.
func (a *Admin) rebuildSKU(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "SKU")
	if err != nil {
		return nil, err
	}
	key, err := r.idempotencyKey()
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	if key != "" { // rebuilding is idempotent; only a repeat's answer has to be the first one's
		if done, err := a.repeat(r.Context(), r, key); !errors.Is(err, sql.ErrNoRows) {
			return done, err
		}
	}
	before, err := readSKU(r.Context(), a.DB, id, "")
	if err != nil {
		return nil, err
	}
	if before.Own {
		return nil, problem.New(problem.NotFound, fmt.Sprintf("SKU %d was made for one sale: carts cannot hold it, so Redis has nothing of it; rebuild its sale", id))
	}
	if err := a.Rebuild(r.Context(), id); err != nil {
		a.Log.Warn("rebuild failed", "request_id", r.id, "sku", id, "error", err)
		p := problem.New(problem.Overloaded, "the rebuild did not come to its end: "+err.Error()+"; it is safe to ask again")
		p.RetryAfter = 2 * time.Second
		return nil, p
	}
	result, err := a.Audit.SKU(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return a.change(r, func(context.Context, *sql.Tx) (change.Change, error) {
		return change.Change{Action: "sku.rebuild", Target: change.SKU(id), Before: before, After: result}, nil
	})
}

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
	"floodgate.internal/backend/sku"
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
		needed("stock", in.Stock), between("stock", in.Stock, 1, maxUnits, &s.Total),
	); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		id, err := a.insertSKU(ctx, tx, s.Title, s.Price, s.Currency, s.Total, 0, false)
		if err != nil {
			return change{}, err
		}
		after, err := readSKU(ctx, tx, id, "")
		return change{status: http.StatusCreated, action: "sku.create", target: skuName(id), after: after}, err
	})
}

func skuName(id int64) string { return "sku " + strconv.FormatInt(id, 10) }

func (a *Admin) insertSKU(ctx context.Context, tx *sql.Tx, title string, price int64, currency string, available, allotted int64, own bool) (int64, error) {
	result, err := tx.ExecContext(ctx, `INSERT INTO skus (title, price, currency, own, total, available, allotted, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		title, price, currency, own, available+allotted, available, allotted, a.now())
	if err != nil {
		return 0, fmt.Errorf("insert sku: %w", err)
	}
	id, err := result.LastInsertId()
	if err != nil || available == 0 {
		return id, err
	}
	return id, sku.Record(ctx, tx, a.now(), sku.Change{SKU: id, Kind: sku.Created, Ref: sku.Created, Available: available}, 0, 0)
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
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		for range patchAttempts {
			before, err := readSKU(ctx, tx, id, "")
			if err != nil {
				return change{}, err
			}
			if err := r.match(before.Version, false); err != nil {
				return change{}, err
			}
			s := before
			if err := first(text("title", in.Title, 1, maxTitle, &s.Title), between("price", in.Price, 0, maxPrice, &s.Price),
				currency("currency", in.Currency, &s.Currency)); err != nil {
				return change{}, err
			}
			if s == before {
				return change{status: http.StatusOK, after: before, nothing: true}, nil
			}
			s.Version++
			n, err := affected(tx.ExecContext(ctx, `UPDATE skus SET title = ?, price = ?, currency = ?, version = ? WHERE id = ? AND version = ?`,
				s.Title, s.Price, s.Currency, s.Version, id, before.Version))
			if err != nil {
				return change{}, fmt.Errorf("update sku %d: %w", id, err)
			}
			if n == 1 {
				return change{status: http.StatusOK, action: "sku.update", target: skuName(id), before: before, after: s}, nil
			}
		}
		p := problem.New(problem.Overloaded, fmt.Sprintf("SKU %d was changed %d times while this was tried; nothing was done, ask again", id, patchAttempts))
		p.RetryAfter = time.Second
		return change{}, p
	})
}

func (r *request) quantity() (int64, error) {
	var in adminapi.Restock
	var n int64
	if err := r.decode(&in); err != nil {
		return 0, err
	}
	return n, first(needed("quantity", in.Quantity), between("quantity", in.Quantity, 1, maxUnits, &n))
}

func tooMany(total, quantity int64) error {
	return problem.Invalid("quantity", fmt.Sprintf("%d more than the %d there are make more than %d: give at most %d", quantity, total, maxUnits, maxUnits-total))
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
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change, error) {
		before, err := readSKU(ctx, tx, id, forUpdate)
		if err != nil {
			return change{}, err
		}
		if before.Total+quantity > maxUnits {
			return change{}, tooMany(before.Total, quantity)
		}
		if _, err := tx.ExecContext(ctx, `UPDATE skus SET total = total + ?, available = available + ?, version = version + 1 WHERE id = ?`,
			quantity, quantity, id); err != nil {
			return change{}, fmt.Errorf("restock sku %d: %w", id, err)
		}
		if err := a.moveSKU(ctx, tx, before, sku.Restock, quantity); err != nil {
			return change{}, err
		}
		after, err := readSKU(ctx, tx, id, "")
		return change{status: http.StatusOK, action: "sku.restock", target: skuName(id), before: before, after: after, sku: id}, err
	})
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
	return a.change(r, func(context.Context, *sql.Tx) (change, error) {
		return change{status: http.StatusOK, action: "sku.rebuild", target: skuName(id), before: before, after: result}, nil
	})
}

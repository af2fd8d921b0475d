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
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// skuOf is a SKU as the API has it.
func skuOf(k sale.SKU) adminapi.SKU {
	return adminapi.SKU{ID: k.ID, Title: k.Title, Price: k.Price, Currency: k.Currency, Own: k.Own, Total: k.Total, Available: k.Available,
		Allotted: k.Allotted, Locked: k.Locked, Sold: k.Sold, Version: k.Version, CreatedAt: wire.At(k.CreatedAt)}
}

// skuRefusal is the error of a SKU's own path: the path names what is not there.
func skuRefusal(err error) error {
	if missing := (*sale.NoSKUError)(nil); errors.As(err, &missing) {
		return noSKU(missing.SKU)
	}
	return err
}

func noSKU(id int64) error {
	return problem.New(problem.NotFound, fmt.Sprintf("no SKU %d: GET /admin/v1/skus lists them", id))
}

// maxPage bounds a list's page.
const maxPage = 1000

func (a *Admin) listSKUs(r *request) (*answer, error) {
	below, limit, err := r.page(maxPage)
	if err != nil {
		return nil, err
	}
	skus, err := sale.SKUs(r.Context(), a.DB, below, limit+1)
	if err != nil {
		return nil, err
	}
	list := make([]adminapi.SKU, len(skus))
	for i, k := range skus {
		list[i] = skuOf(k)
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
	k, err := sale.GetSKU(r.Context(), a.DB, id)
	if err != nil {
		return nil, skuRefusal(err)
	}
	return &answer{status: http.StatusOK, value: skuOf(k)}, nil
}

func (a *Admin) createSKU(r *request) (*answer, error) {
	var in adminapi.NewSKU
	var k sale.SKU
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if err := first(
		needed("title", in.Title), text("title", in.Title, 1, maxTitle, &k.Title),
		needed("price", in.Price), between("price", in.Price, 0, maxPrice, &k.Price),
		needed("currency", in.Currency), currency("currency", in.Currency, &k.Currency),
		needed("stock", in.Stock), between("stock", in.Stock, 1, sale.MaxUnits, &k.Total),
	); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		after, err := sale.CreateSKU(ctx, tx, a.Changes.Now(), k)
		return change.Change{Action: "sku.create", Target: change.SKU(after.ID), After: skuOf(after)}, err
	})
}

// patchAttempts bounds how often a change is begun anew where another one was quicker.
const patchAttempts = 5

// patchSKU changes what the SKU's next sales and carts take over. If-Match is honoured where it is given.
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
			before, err := sale.GetSKU(ctx, tx, id)
			if err != nil {
				return change.Change{}, skuRefusal(err)
			}
			if err := r.match(before.Version, false); err != nil {
				return change.Change{}, err
			}
			next := before
			if err := first(text("title", in.Title, 1, maxTitle, &next.Title), between("price", in.Price, 0, maxPrice, &next.Price),
				currency("currency", in.Currency, &next.Currency)); err != nil {
				return change.Change{}, err
			}
			if next == before {
				return change.Change{After: skuOf(before), Nothing: true}, nil
			}
			after, err := sale.UpdateSKU(ctx, tx, before, next)
			if !errors.Is(err, sale.ErrChanged) {
				return change.Change{Action: "sku.update", Target: change.SKU(id), Before: skuOf(before), After: skuOf(after)}, err
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
		before, after, err := sale.RestockSKU(ctx, tx, a.Changes.Now(), id, quantity)
		if over := (*sale.LimitError)(nil); errors.As(err, &over) {
			err = inField("quantity", over)
		}
		return change.Change{Action: "sku.restock", Target: change.SKU(id), Before: skuOf(before), After: skuOf(after), SKU: id}, skuRefusal(err)
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
	before, err := sale.GetSKU(r.Context(), a.DB, id)
	if err != nil {
		return nil, skuRefusal(err)
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
		return change.Change{Action: "sku.rebuild", Target: change.SKU(id), Before: skuOf(before), After: result}, nil
	})
}

package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
)

// returnPage is how many sales are read at once.
const returnPage = 100

// ReturnUnsold gives the unsold units of closed sales back to their SKUs, and says how many sales it did that for. One
// pass over the live sales (at most sale.MaxLive): the timer calls it again and again, since orders of a closed sale may
// still be cancelled or expire.
//
// A sale's turn comes only when Redis is open, knows that the sale is closed, and has nothing in its outbox: then every
// order that will ever be is in MySQL, and what MySQL says is available stays so. MySQL is changed first; Redis follows
// by the intent's id. Any number of processes may do this at once.
func (a *Admin) ReturnUnsold(ctx context.Context) (n int, err error) {
	var errs []error
	for last := int64(0); ; {
		ids, err := sale.Unsold(ctx, a.DB, last, returnPage)
		if err != nil {
			return n, errors.Join(append(errs, err)...)
		}
		for _, id := range ids {
			switch done, err := a.returnUnsold(ctx, id); {
			case err != nil:
				errs = append(errs, fmt.Errorf("return the unsold units of sale %d: %w", id, err))
			case done:
				n++
			}
		}
		if len(ids) < returnPage || ctx.Err() != nil {
			break
		}
		last = ids[len(ids)-1]
	}
	return n, errors.Join(errs...)
}

func (a *Admin) returnUnsold(ctx context.Context, id int64) (bool, error) {
	// The state before the outbox: closed means that the outbox has seen its last order.
	states, err := a.Redis.States(ctx, []int64{id})
	if err != nil {
		return false, err
	}
	if s := states[0]; s.Gate != lua.GateOpen || !s.Closed {
		return false, nil
	}
	c := a.Redis.Client()
	queued, err := c.Do(ctx, c.B().Xlen().Key(a.Redis.OutboxKey(id)).Build()).AsInt64()
	if err != nil {
		return false, fmt.Errorf("outbox of sale %d: %w", id, err)
	}
	if queued > 0 {
		return false, nil
	}
	var done change
	err = store.InTx(ctx, a.DB, func(tx *sql.Tx) error {
		done = change{}
		before, s, err := a.lockSale(ctx, tx, id)
		if err != nil {
			return err
		}
		sku, err := readSKU(ctx, tx, s.SKU, forUpdate)
		if err != nil {
			return err
		}
		var units int64
		if err := tx.QueryRowContext(ctx, `SELECT available FROM sale_stock WHERE sale_id = ? FOR UPDATE`, id).Scan(&units); err != nil {
			return fmt.Errorf("stock of sale %d: %w", id, err)
		}
		if units == 0 || s.ClosedAt == nil || s.ArchivedAt != nil {
			return nil // another process was here
		}
		adjust, err := a.giveBack(ctx, tx, s, sku, units)
		if err != nil {
			return err
		}
		after, _, err := a.readSale(ctx, tx, id)
		if err != nil {
			return err
		}
		done = change{action: "sale.return", target: saleName(id), before: before, after: after, intents: []intent.Intent{adjust}, sku: s.SKU}
		return a.record(ctx, tx, timer, done)
	})
	if err != nil || done.action == "" {
		return false, err
	}
	a.Log.Info("unsold units are back at the SKU", "sale", id)
	a.apply(ctx, done)
	return true, nil
}

// giveBack moves a sale's available units back to its SKU. k is as it was before, and its row and the sale's stock row are
// locked.
func (a *Admin) giveBack(ctx context.Context, tx *sql.Tx, s sale.Record, k adminapi.SKU, units int64) (intent.Intent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE skus SET allotted = allotted - ?, available = available + ? WHERE id = ?`, units, units, s.SKU); err != nil {
		return intent.Intent{}, fmt.Errorf("sku %d: %w", s.SKU, err)
	}
	if err := a.moveSKU(ctx, tx, k, sku.Returned, units); err != nil {
		return intent.Intent{}, err
	}
	return a.moveUnits(ctx, tx, s.ID, "return", -units)
}

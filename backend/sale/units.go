package sale

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/ledger"
)

// moveUnits changes a sale's total and available units, in the stock row and in the ledger, and intends it for Redis.
func moveUnits(ctx context.Context, tx *sql.Tx, at time.Time, sale int64, kind ledger.Kind, units int64) (intent.Intent, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE sale_stock SET total = total + ?, available = available + ?, version = version + 1 WHERE sale_id = ?`, units, units, sale); err != nil {
		return intent.Intent{}, fmt.Errorf("%s sale %d by %d: %w", kind, sale, units, err)
	}
	var now ledger.Units
	if err := tx.QueryRowContext(ctx, `SELECT available, locked FROM sale_stock WHERE sale_id = ? FOR UPDATE`, sale).Scan(&now.Available, &now.Locked); err != nil {
		return intent.Intent{}, fmt.Errorf("stock of sale %d: %w", sale, err)
	}
	i, err := intent.Adjust(ctx, tx, at, sale, units)
	if err != nil {
		return intent.Intent{}, err
	}
	change := ledger.Units{Available: units}
	return i, ledger.OfSales(ctx, tx, at, ledger.Row{Of: sale, Kind: kind, Ref: i.Ref(), Before: now.Minus(change), Change: change})
}

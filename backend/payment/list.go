package payment

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// Status is where a payment stands.
type Status string

// The statuses of a payment.
const (
	StatusFailed    Status = "failed"
	StatusPaid      Status = "paid"       // its order is paid by it
	StatusRefundDue Status = "refund_due" // it was taken and pays for nothing
	StatusRefunded  Status = "refunded"
)

// Statuses lists them.
var Statuses = []Status{StatusFailed, StatusPaid, StatusRefundDue, StatusRefunded}

// Payment is one payment, for operators.
type Payment struct {
	ID        int64     `json:"id"`
	Provider  string    `json:"provider"`
	PaymentID string    `json:"payment_id"`
	OrderID   string    `json:"order_id"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Status    Status    `json:"status"`
	Reason    string    `json:"reason"` // why a refund is due: mismatch, overdue, or what the order was found to be
	FirstAt   wire.Time `json:"first_at"`
	LastAt    wire.Time `json:"last_at"` // of the newest delivery about it
}

const columns = `id, provider, payment_id, order_id, amount, currency, status, reason, first_at, last_at`

func (p *Payment) scan(from interface{ Scan(...any) error }) error {
	var first, last time.Time
	err := from.Scan(&p.ID, &p.Provider, &p.PaymentID, &p.OrderID, &p.Amount, &p.Currency, &p.Status, &p.Reason, &first, &last)
	p.FirstAt, p.LastAt = wire.At(first), wire.At(last)
	return err
}

// Filter is which payments are listed; what is empty does not count.
type Filter struct {
	Status  Status
	OrderID string
}

// List is a page of payments with an id below the given one, newest first.
func List(ctx context.Context, db *sql.DB, f Filter, below, limit int64) ([]Payment, error) {
	query, args := `SELECT `+columns+` FROM payments WHERE id < ?`, []any{below}
	if f.Status != "" {
		query, args = query+` AND status = ?`, append(args, string(f.Status))
	}
	if f.OrderID != "" {
		query, args = query+` AND order_id = ?`, append(args, f.OrderID)
	}
	list := []Payment{}
	err := store.Each(ctx, db, func(rows *sql.Rows) error {
		var p Payment
		err := p.scan(rows)
		list = append(list, p)
		return err
	}, query+` ORDER BY id DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	return list, nil
}

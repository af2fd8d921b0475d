package event

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// State is where the delivery of an event stands.
type State string

// The states of a delivery.
const (
	Waiting   State = "waiting" // for its first try, for the next, or for an earlier event of its order
	Delivered State = "delivered"
	Failed    State = "failed" // given up; an operator may replay it
)

// States lists them.
var States = []State{Waiting, Delivered, Failed}

// Delivery is an event for one endpoint, as operators see it.
type Delivery struct {
	ID        int64      `json:"id"`
	WebhookID string     `json:"webhook_id"` // as the endpoint gets it
	Endpoint  string     `json:"endpoint"`
	Type      Type       `json:"type"`
	OrderID   string     `json:"order_id"` // "" of a sale's event
	SaleID    int64      `json:"sale_id"`  // 0 of a cart's order
	State     State      `json:"state"`
	Attempts  int64      `json:"attempts"`
	LastError string     `json:"last_error"`
	CreatedAt wire.Time  `json:"created_at"` // the change
	NextAt    *wire.Time `json:"next_at"`    // while it waits
	DoneAt    *wire.Time `json:"done_at"`    // delivered or given up
}

// webhookID is the same in each delivery of a row.
func webhookID(id int64) string { return "evt_" + strconv.FormatInt(id, 10) }

const columns = `id, endpoint, type, ref, state, attempts, last_error, created_at, due_at`

func (d *Delivery) scan(from interface{ Scan(...any) error }) error {
	var ref string
	var created, due time.Time
	err := from.Scan(&d.ID, &d.Endpoint, &d.Type, &ref, &d.State, &d.Attempts, &d.LastError, &created, &due)
	d.WebhookID, d.CreatedAt = webhookID(d.ID), wire.At(created)
	at := wire.At(due)
	if d.State == Waiting {
		d.NextAt = &at
	} else {
		d.DoneAt = &at
	}
	if sale, ok := strings.CutPrefix(ref, "sale:"); ok {
		d.SaleID, _ = wire.ParseID(sale)
	} else {
		d.OrderID = ref
		d.SaleID, _ = wire.SaleOfOrder(ref) // 0 of a cart's
	}
	return err
}

// Filter is which deliveries are listed; what is empty does not count.
type Filter struct {
	Endpoint string
	State    State
}

// List is a page of deliveries with an id below the given one, newest first.
func List(ctx context.Context, db *sql.DB, f Filter, below, limit int64) ([]Delivery, error) {
	query, args := `SELECT `+columns+` FROM events WHERE id < ?`, []any{below}
	if f.Endpoint != "" {
		query, args = query+` AND endpoint = ?`, append(args, f.Endpoint)
	}
	if f.State != "" {
		query, args = query+` AND state = ?`, append(args, string(f.State))
	}
	list := []Delivery{}
	err := store.Each(ctx, db, func(rows *sql.Rows) error {
		var d Delivery
		err := d.scan(rows)
		list = append(list, d)
		return err
	}, query+` ORDER BY id DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return list, nil
}

// ErrNotFound: there is no such event, or it is pruned.
var ErrNotFound = errors.New("no such event")

// Replay makes an event be delivered anew, under the same webhook-id, with all of its tries; one that waits is tried at once. One that
// is being delivered stays as it is. It returns the delivery before and after. ErrNotFound.
func Replay(ctx context.Context, tx *sql.Tx, now time.Time, id int64) (before, after Delivery, err error) {
	get := func(d *Delivery) error {
		err := d.scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM events WHERE id = ? FOR UPDATE`, id))
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		return err
	}
	if err := get(&before); err != nil {
		return before, after, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE events SET state = ?, attempts = 0, due_at = ? WHERE id = ? AND claim = ''`, string(Waiting), now, id); err != nil {
		return before, after, fmt.Errorf("replay event %d: %w", id, err)
	}
	return before, after, get(&after)
}

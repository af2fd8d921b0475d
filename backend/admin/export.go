package admin

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const (
	exportPage = 1000             // orders that one query reads and one write sends
	exportTime = 30 * time.Second // for one page to be read, and to be taken by the client
)

var exportHead = []string{"order_id", "sale_id", "uid", "quantity", "amount", "status", "reason", "idempotency_key", "created_at", "decided_at", "pay_before", "ended_at"}

// exportOrders streams all orders of a sale that MySQL has, oldest first, as CSV (RFC 4180, UTF-8, with a head).
//
// It reads page after page by order id, each with a query of its own, and holds one page: no transaction stays open, and no
// connection of MySQL's is held while a slow client reads. What is settled while a sale still sells may be missing; of a
// sale that is over it is everything. A client that leaves ends it; a failure half way breaks the connection off, so that
// half a file is not taken for a whole one.
func (a *Admin) exportOrders(r *request) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	if len(r.URL.RawQuery) > 0 {
		return nil, problem.Invalid(short(r.URL.RawQuery), "this takes no parameters")
	}
	if _, _, err := a.readSale(r.Context(), a.DB, id); err != nil {
		return nil, err
	}
	page, err := a.exported(r.Context(), id, "")
	if err != nil {
		return nil, err
	}
	stream := func(ctx context.Context, w http.ResponseWriter) error {
		out := csv.NewWriter(w)
		out.UseCRLF = true
		if err := out.Write(exportHead); err != nil {
			return err
		}
		for {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(exportTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
			for _, o := range page {
				if err := out.Write(cells(o)); err != nil {
					return err
				}
			}
			if out.Flush(); out.Error() != nil {
				return out.Error()
			}
			if len(page) < exportPage {
				return nil
			}
			if page, err = a.exported(ctx, id, page[len(page)-1].OrderID); err != nil {
				return err
			}
		}
	}
	return &answer{status: http.StatusOK, stream: stream, header: map[string]string{
		"Content-Type":        "text/csv; charset=utf-8; header=present",
		"Content-Disposition": fmt.Sprintf(`attachment; filename="sale-%d-orders.csv"`, id),
	}}, nil
}

// exported is the next page after an order.
func (a *Admin) exported(ctx context.Context, sale int64, after string) ([]adminapi.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, exportTime)
	defer cancel()
	return readOrders(ctx, a.DB, fmt.Sprintf(`FORCE INDEX (orders_sale) WHERE sale_id = ? AND id > ? ORDER BY id LIMIT %d`, exportPage), sale, after)
}

func cells(o adminapi.Order) []string {
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	at := func(t *wire.Time) string {
		if t == nil {
			return ""
		}
		return t.Format(wire.TimeFormat)
	}
	return []string{o.OrderID, num(o.SaleID), cell(o.UID), num(o.Quantity), num(o.Amount), string(o.Status), cell(o.Reason), cell(o.Key),
		at(&o.CreatedAt), at(&o.DecidedAt), at(o.PayBefore), at(o.EndedAt)}
}

// cell makes text that somebody else chose harmless to spreadsheets, which would take it for a formula: an apostrophe goes
// before what begins like one (OWASP, CSV Injection).
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}

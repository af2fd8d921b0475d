package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// Orders is the command "orders".
type Orders struct {
	Search OrdersSearch `cmd:"" help:"Find orders of a buyer, of a sale, in a status, or all of these; newest first."`
	Cancel OrdersCancel `cmd:"" help:"Cancel an order that is not paid; its units are back on sale."`
	Export OrdersExport `cmd:"" help:"Write all orders of a sale as CSV."`
}

// foundOrder is what the commands read of an order.
type foundOrder struct {
	OrderID   string         `json:"order_id"`
	SaleID    int64          `json:"sale_id"`
	UID       string         `json:"uid"`
	Quantity  int64          `json:"quantity"`
	Amount    int64          `json:"amount"`
	Status    string         `json:"status"`
	Reason    string         `json:"reason"`
	CreatedAt wire.Time      `json:"created_at"`
	PayBefore *wire.Time     `json:"pay_before"`
	More      map[string]any `json:",unknown"` // shown with --json
}

// OrdersSearch is "orders search".
type OrdersSearch struct {
	UID    string `help:"Of this buyer." name:"uid" placeholder:"UID"`
	Sale   int64  `help:"Of this sale." placeholder:"ID"`
	Status string `help:"In this status: pending_payment, paid, issued, cancelled, expired, rejected."`
	Limit  int    `default:"100" help:"How many, at most."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (OrdersSearch) Help() string {
	return `Orders that are settled; those that are still queued are counted by backend queue.

Examples:
  backend orders search -config configs/backend.yaml --uid 4711
  backend orders search -config configs/backend.yaml --sale 7 --status rejected`
}

// Run implements the command.
func (c *OrdersSearch) Run(ctx context.Context, env *Env) error {
	if c.Limit < 1 {
		return cli.Usage("--limit %d: must be positive", c.Limit)
	}
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	query := url.Values{}
	for name, value := range map[string]string{"uid": c.UID, "status": c.Status} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if c.Sale != 0 {
		query.Set("sale_id", strconv.FormatInt(c.Sale, 10))
	}
	orders := []foundOrder{}
	more := true
	for more && len(orders) < c.Limit { // a page of a rare status may be empty, and not the last one
		var page struct {
			Orders []foundOrder `json:"orders"`
			Next   string       `json:"next"`
		}
		query.Set("limit", strconv.Itoa(min(200, c.Limit-len(orders))))
		if err := api.call(ctx, http.MethodGet, "/admin/v1/orders?"+query.Encode(), "", nil, &page); err != nil {
			return fmt.Errorf("orders search: %w", err)
		}
		orders = append(orders, page.Orders...)
		query.Set("cursor", page.Next)
		more = page.Next != ""
	}
	if c.JSON {
		return printJSON(env.Stdout, map[string]any{"orders": orders})
	}
	var rows []string
	for _, o := range orders {
		rows = append(rows, fmt.Sprintf("%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s", o.OrderID, o.SaleID, o.UID, o.Quantity, o.Amount, o.Status, o.Reason, o.CreatedAt.Format(time.RFC3339)))
	}
	if err := table(env.Stdout, "ORDER\tSALE\tUID\tQUANTITY\tAMOUNT\tSTATUS\tREASON\tMADE", rows); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(env.Stderr, "there may be more: --limit shows them\n")
	}
	return nil
}

// OrdersCancel is "orders cancel".
type OrdersCancel struct {
	ID  string `arg:"" help:"The order's id."`
	Key string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (OrdersCancel) Help() string {
	return `A paid order is not cancelled: it would have to be refunded. Cancelling again changes nothing.

Example:
  backend orders cancel -config configs/backend.yaml 0190163d-8694-739b-aea5-966c26f8ad91-7`
}

// Run implements the command.
func (c *OrdersCancel) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var o foundOrder
	if err := api.call(ctx, http.MethodPost, "/admin/v1/orders/"+url.PathEscape(c.ID)+"/cancel", c.Key, nil, &o); err != nil {
		return fmt.Errorf("orders cancel: %w", err)
	}
	if c.JSON {
		return printJSON(env.Stdout, o)
	}
	_, err = fmt.Fprintf(env.Stdout, "order %s is %s (%s)\n", o.OrderID, o.Status, o.Reason)
	return err
}

// OrdersExport is "orders export".
type OrdersExport struct {
	Sale int64  `arg:"" help:"The sale's id."`
	To   string `help:"The file to write, which is there only when it is whole (default: standard output)." placeholder:"FILE"`
	Remote
}

// Help implements kong's HelpProvider.
func (OrdersExport) Help() string {
	return `Oldest first, with a head; RFC 4180, UTF-8. A cell that a spreadsheet would take for a formula begins with an apostrophe.

Example:
  backend orders export -config configs/backend.yaml 7 --to orders.csv`
}

// Run implements the command.
func (c *OrdersExport) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	path := fmt.Sprintf("%s/%d/orders.csv", salesPath, c.Sale)
	if c.To == "" {
		return api.copy(ctx, path, env.Stdout)
	}
	part := c.To + ".part"
	f, err := os.Create(part)
	if err != nil {
		return cli.Usage("--to: %w", err)
	}
	err = api.copy(ctx, path, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("orders export: %w", err), os.Remove(part))
	}
	return os.Rename(part, c.To)
}

// copy streams an answer. One that breaks off is an error.
func (c *client) copy(ctx context.Context, path string, to io.Writer) error {
	patient := *c
	patient.http = &http.Client{Transport: c.http.Transport} // without a time-out of the whole
	resp, err := patient.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(to, resp.Body); err != nil {
		return fmt.Errorf("GET %s: it broke off: %w", path, err)
	}
	return nil
}

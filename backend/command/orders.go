package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// Orders is the command "orders".
type Orders struct {
	Search ordersSearch `cmd:"" help:"Find orders of a buyer, of a sale, in a status, or all of these; newest first."`
	Cancel ordersCancel `cmd:"" help:"Cancel an order that is not paid; its units are back on sale."`
	Export ordersExport `cmd:"" help:"Write all orders of a sale as CSV."`
}

type ordersSearch struct {
	UID    string `help:"Of this buyer." name:"uid" placeholder:"UID"`
	Sale   int64  `help:"Of this sale." placeholder:"ID"`
	Status string `help:"In this status: pending_payment, paid, issued, cancelled, expired, rejected."`
	Limit  int    `default:"100" help:"How many, at most."`
	API
}

func (c *ordersSearch) Run(ctx context.Context, env *Env) error {
	return c.with(env, func(api *adminapi.Client) error {
		sale := ""
		if c.Sale != 0 {
			sale = fmt.Sprint(c.Sale)
		}
		list, more, err := collect(ctx, api, "/orders", filter("uid", c.UID, "sale_id", sale, "status", c.Status), c.Limit, 200, func(p adminapi.Orders) []adminapi.Order { return p.Orders })
		if err != nil {
			return err
		}
		return c.print(env.Stdout, map[string]any{"orders": list}, func(w *bytes.Buffer) {
			if more {
				fmt.Fprintln(env.Stderr, "there may be more: --limit shows them")
			}
			listed(w, row{"ORDER", "SALE", "UID", "QUANTITY", "AMOUNT", "STATUS", "REASON", "MADE"}, list, func(o adminapi.Order) row {
				return row{o.OrderID, o.SaleID, o.UID, o.Quantity, o.Amount, o.Status, o.Reason, o.CreatedAt.Format(time.RFC3339)}
			})
		})
	})
}

type ordersCancel struct {
	ID  string `arg:"" help:"The order's id."`
	Key string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	API
}

func (c *ordersCancel) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, post(c.Key, nil, "/orders/%s/cancel", url.PathEscape(c.ID)), func(w *bytes.Buffer, o wire.Order) {
		fmt.Fprintf(w, "order %s is %s (%s)\n", o.OrderID, o.Status, o.Reason)
	})
}

type ordersExport struct {
	Sale int64  `arg:"" help:"The sale's id."`
	To   string `help:"The file to write, which is there only when it is whole (default: standard output)." placeholder:"FILE"`
	Remote
}

func (c *ordersExport) Run(ctx context.Context, env *Env) error {
	return c.with(env, func(api *adminapi.Client) error {
		path := fmt.Sprintf("%s/sales/%d/orders.csv", adminapi.Prefix, c.Sale)
		if c.To == "" {
			return api.Copy(ctx, path, env.Stdout)
		}
		part := c.To + ".part"
		f, err := os.Create(part)
		if err != nil {
			return cli.Usage("--to: %w", err)
		}
		p := cli.StartProgress(env.Stderr, "export")
		err = api.Copy(ctx, path, f)
		p.End()
		if err = errors.Join(err, f.Close()); err != nil {
			return errors.Join(err, os.Remove(part))
		}
		return os.Rename(part, c.To)
	})
}

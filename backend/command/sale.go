package command

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/standby"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// Sale is the command "sale".
type Sale struct {
	Create  saleCreate  `cmd:"" help:"Make a sale and load it into Redis."`
	List    saleList    `cmd:"" help:"List the sales, newest first."`
	Get     saleGet     `cmd:"" help:"Show one sale."`
	Pause   saleChange  `cmd:"" help:"Stop taking orders until resume. Orders there are can be paid."`
	Resume  saleChange  `cmd:"" help:"Take orders again."`
	Close   saleChange  `cmd:"" help:"End a sale for good; its unsold units go back to its SKU."`
	Restock saleRestock `cmd:"" help:"Put more units on sale."`
	Archive saleArchive `cmd:"" help:"Take a sale that is over out of Redis."`

	Concentration saleConcentration `cmd:"" help:"From which networks a process took a sale's orders."`
}

func printSale(w *bytes.Buffer, s adminapi.Sale) {
	closing := ""
	switch {
	case s.ArchivedAt != nil:
		closing = "archived " + s.ArchivedAt.Format(time.RFC3339)
	case s.ClosedAt != nil:
		closing = "closed for good"
	}
	rows := []row{
		{"sale", s.ID, s.Title},
		{"state", s.State, closing},
		{"window", s.StartsAt.Format(time.RFC3339), fmt.Sprintf("to %s (%s)", s.EndsAt.Format(time.RFC3339), span(s.EndsAt.Sub(s.StartsAt.Time)))},
		{"price", fmt.Sprintf("%d %s", s.Price, s.Currency), fmt.Sprintf("minor units; %s", s.Kind)},
		{"limit", s.PerUserLimit, "for each buyer, to pay within " + span(time.Duration(s.PayWithin)*time.Second)},
		{"stock", s.Total, fmt.Sprintf("= %d available + %d locked + %d sold (as MySQL has it; of SKU %d)", s.Available, s.Locked, s.Sold, s.SKU)},
	}
	if s.Standby != (standby.Length{}) {
		rows = append(rows, row{"standby", s.Standby.Waiting, fmt.Sprintf("wait for a unit; %d offers are open", s.Standby.Offers)})
	}
	for _, t := range s.Tranches {
		rows = append(rows, row{"tranche", t.Quantity, "at " + t.At.Format(wire.TimeFormat)})
	}
	table(w, append(rows, row{"version", s.Version, "made " + s.CreatedAt.Format(time.RFC3339)})...)
}

type saleCreate struct {
	Title        string        `help:"What is sold (default: the SKU's)."`
	Stock        int64         `required:"" help:"How many units."`
	Price        *int64        `help:"In minor units: 1999 is 19.99 (default: the SKU's)."`
	Picture      string        `help:"An https URL of a picture." placeholder:"URL"`
	Currency     string        `help:"Three capital letters (default: the SKU's)."`
	StartsAt     string        `default:"now" help:"When it opens: RFC 3339, now, or from now: +10m." placeholder:"TIME"`
	EndsAt       string        `required:"" help:"When it ends: RFC 3339, or from now: +2h." placeholder:"TIME"`
	PerUserLimit int64         `default:"1" help:"Units one buyer may hold, 1 to 100."`
	PayWithin    time.Duration `default:"15m" help:"Time to pay before an order expires."`
	Kind         string        `default:"goods" enum:"goods,coupon" help:"goods are paid for, a coupon is issued."`
	SKU          int64         `help:"Sell available units of this SKU, instead of making one." name:"sku" placeholder:"ID"`
	Tranche      []string      `help:"Release this many units at this time: TIME=UNITS. Repeat it; together they are the stock." placeholder:"TIME=UNITS" sep:"none"`
	Key          string        `help:"Idempotency-Key: run again with the same one, nothing is made twice."`
	API
}

func (c *saleCreate) Run(ctx context.Context, env *Env) error {
	if c.PayWithin%time.Second != 0 {
		return cli.Usage("--pay-within %s: give whole seconds", c.PayWithin)
	}
	return c.with(env, func(api *adminapi.Client) error {
		now := sync.OnceValues(func() (time.Time, error) { return api.Now(ctx) }) // one moment for all times
		starts, err1 := when("--starts-at", c.StartsAt, now)
		ends, err2 := when("--ends-at", c.EndsAt, now)
		tranches, err3 := c.tranches(now)
		if err := cmp.Or(err1, err2, err3); err != nil {
			return err
		}
		return tell(ctx, env, api, c.Output, post(c.Key, adminapi.NewSale{
			SKU: given(c.SKU), Kind: &c.Kind, Title: given(c.Title), Price: c.Price, Currency: given(c.Currency), Picture: given(c.Picture), Stock: &c.Stock,
			StartsAt: &starts, EndsAt: &ends, PerUserLimit: &c.PerUserLimit, PayWithin: new(int64(c.PayWithin / time.Second)), Tranches: tranches,
		}, "/sales"), printSale)
	})
}

// given is nil for a flag that was left out.
func given[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

func (c *saleCreate) tranches(now func() (time.Time, error)) (*[]adminapi.NewTranche, error) {
	var list []adminapi.NewTranche
	for _, t := range c.Tranche {
		at, units, ok := strings.Cut(t, "=")
		n, err := strconv.ParseInt(units, 10, 64)
		if !ok || err != nil {
			return nil, cli.Usage("--tranche %q: the form is TIME=UNITS, like +20m=40", t)
		}
		if at, err = when("--tranche", at, now); err != nil {
			return nil, err
		}
		list = append(list, adminapi.NewTranche{At: &at, Quantity: &n})
	}
	if list == nil {
		return nil, nil
	}
	return &list, nil
}

type saleList struct {
	Limit int `default:"100" help:"How many, 1 to 1000."`
	API
}

func (c *saleList) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/sales?limit=%d", c.Limit), func(w *bytes.Buffer, list adminapi.Sales) {
		env.more(list.Page)
		listed(w, row{"SALE", "STATE", "KIND", "TOTAL", "AVAILABLE", "LOCKED", "SOLD", "STARTS", "ENDS", "TITLE"}, list.Sales, func(s adminapi.Sale) row {
			return row{s.ID, s.State, s.Kind, s.Total, s.Available, s.Locked, s.Sold, s.StartsAt.Format(time.RFC3339), s.EndsAt.Format(time.RFC3339), s.Title}
		})
	})
}

// more says on stderr that a page is not the last one.
func (e *Env) more(p adminapi.Page) {
	if p.Next != "" {
		fmt.Fprintln(e.Stderr, "there are more: --limit shows up to 1000")
	}
}

type saleGet struct {
	ID int64 `arg:"" help:"The sale's id."`
	API
}

func (c *saleGet) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/sales/%d", c.ID), printSale)
}

// saleChange is "sale pause", "resume" and "close": the command's name is the path's last part.
type saleChange struct {
	ID  int64  `arg:"" help:"The sale's id."`
	Key string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	API
}

func (c *saleChange) Run(ctx context.Context, env *Env, k *kong.Context) error {
	return ask(ctx, env, c.API, post(c.Key, nil, "/sales/%d/%s", c.ID, k.Selected().Name), printSale)
}

type saleArchive struct{ saleChange }

type saleRestock struct {
	ID    int64  `arg:"" help:"The sale's id."`
	Units int64  `arg:"" help:"How many more."`
	Key   string `help:"Idempotency-Key: run again with the same one, nothing is added twice."`
	API
}

func (c *saleRestock) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, post(c.Key, adminapi.Restock{Quantity: &c.Units}, "/sales/%d/restock", c.ID), printSale)
}

type saleConcentration struct {
	ID  int64 `arg:"" help:"The sale's id."`
	Top int   `default:"20" help:"How many networks."`
	API
}

func (c *saleConcentration) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/sales/%d/concentration", c.ID), func(w *bytes.Buffer, r adminapi.Concentration) {
		fmt.Fprintf(w, "%d orders that this process took since %s\n", r.Orders, r.Since.Format(time.RFC3339))
		top := r.Networks[:max(0, min(c.Top, len(r.Networks)))]
		listed(w, row{"NETWORK", "ORDERS, AT MOST", "AT LEAST", "OF ALL, AT LEAST"}, top, func(n origins.Counted) row {
			return row{n.Network, n.Orders, n.AtLeast, fmt.Sprintf("%.1f %%", 100*float64(n.AtLeast)/float64(r.Orders))}
		})
	})
}

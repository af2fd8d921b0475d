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
	Create  SaleCreate  `cmd:"" help:"Make a sale and load it into Redis."`
	List    SaleList    `cmd:"" help:"List the sales, newest first."`
	Get     SaleGet     `cmd:"" help:"Show one sale."`
	Pause   SaleChange  `cmd:"" help:"Stop taking orders until resume. Orders there are can be paid."`
	Resume  SaleChange  `cmd:"" help:"Take orders again."`
	Close   SaleChange  `cmd:"" help:"End a sale for good; its unsold units go back to its SKU."`
	Restock SaleRestock `cmd:"" help:"Put more units on sale."`
	Archive SaleArchive `cmd:"" help:"Take a sale that is over out of Redis."`

	Concentration SaleConcentration `cmd:"" help:"From which networks a process took a sale's orders."`
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

// SaleCreate is "sale create".
type SaleCreate struct {
	Title        string        `help:"What is sold (default: the SKU's)."`
	Stock        int64         `required:"" help:"How many units."`
	Price        *int64        `help:"In minor units: 1999 is 19.99 (default: the SKU's)."`
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

// Help implements kong's HelpProvider.
func (SaleCreate) Help() string {
	return `Examples:
  backend sale create -config configs/backend.yaml --title "Mug" --stock 100 --price 1999 --currency EUR --ends-at +1h
  backend sale create -config configs/backend.yaml --sku 3 --stock 50 --starts-at 2026-07-01T10:00:00Z --ends-at 2026-07-01T12:00:00Z
  backend sale create -config configs/backend.yaml --title "Mug" --stock 100 --price 1999 --currency EUR \
      --starts-at +5m --ends-at +1h --tranche +5m=60 --tranche +20m=40

Times from now count from the backend's clock, which is Redis's. A time ago takes the equals sign: --starts-at=-5m.`
}

// Run implements the command.
func (c *SaleCreate) Run(ctx context.Context, env *Env) error {
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
			SKU: given(c.SKU), Kind: &c.Kind, Title: given(c.Title), Price: c.Price, Currency: given(c.Currency), Stock: &c.Stock,
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

func (c *SaleCreate) tranches(now func() (time.Time, error)) (*[]adminapi.NewTranche, error) {
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

// SaleList is "sale list".
type SaleList struct {
	Limit int `default:"100" help:"How many, 1 to 1000."`
	API
}

// Run implements the command.
func (c *SaleList) Run(ctx context.Context, env *Env) error {
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

// SaleGet is "sale get".
type SaleGet struct {
	ID int64 `arg:"" help:"The sale's id."`
	API
}

// Run implements the command.
func (c *SaleGet) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/sales/%d", c.ID), printSale)
}

// SaleChange is "sale pause", "resume" and "close": the command's name is the path's last part.
type SaleChange struct {
	ID  int64  `arg:"" help:"The sale's id."`
	Key string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	API
}

// Run implements the command.
func (c *SaleChange) Run(ctx context.Context, env *Env, k *kong.Context) error {
	return ask(ctx, env, c.API, post(c.Key, nil, "/sales/%d/%s", c.ID, k.Selected().Name), printSale)
}

// SaleArchive is "sale archive".
type SaleArchive struct{ SaleChange }

// Help implements kong's HelpProvider.
func (SaleArchive) Help() string {
	return `The sale must have ended or be closed, every order must be paid, issued, cancelled, expired or rejected, and the audit must balance:
else the refusal names what is in the way. From then on MySQL alone answers for it; nothing brings it back.

Example:
  backend sale archive -config configs/backend.yaml 7`
}

// SaleRestock is "sale restock".
type SaleRestock struct {
	ID    int64  `arg:"" help:"The sale's id."`
	Units int64  `arg:"" help:"How many more."`
	Key   string `help:"Idempotency-Key: run again with the same one, nothing is added twice."`
	API
}

// Help implements kong's HelpProvider.
func (SaleRestock) Help() string {
	return `A sale with a SKU of its own gets new units; one of a shared SKU gets units that are available there.

Example:
  backend sale restock -config configs/backend.yaml 7 50`
}

// Run implements the command.
func (c *SaleRestock) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, post(c.Key, adminapi.Restock{Quantity: &c.Units}, "/sales/%d/restock", c.ID), printSale)
}

// SaleConcentration is "sale concentration".
type SaleConcentration struct {
	ID  int64 `arg:"" help:"The sale's id."`
	Top int   `default:"20" help:"How many networks."`
	API
}

// Help implements kong's HelpProvider.
func (SaleConcentration) Help() string {
	return `Accepted orders by the /24 or /64 of the connection that brought them to the gateway, since the process began. Each process with the
role api counts its own: ask each with --admin.

Example:
  backend sale concentration -config configs/backend.yaml 7`
}

// Run implements the command.
func (c *SaleConcentration) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/sales/%d/concentration", c.ID), func(w *bytes.Buffer, r adminapi.Concentration) {
		fmt.Fprintf(w, "%d orders that this process took since %s\n", r.Orders, r.Since.Format(time.RFC3339))
		top := r.Networks[:max(0, min(c.Top, len(r.Networks)))]
		listed(w, row{"NETWORK", "ORDERS, AT MOST", "AT LEAST", "OF ALL, AT LEAST"}, top, func(n origins.Counted) row {
			return row{n.Network, n.Orders, n.AtLeast, fmt.Sprintf("%.1f %%", 100*float64(n.AtLeast)/float64(r.Orders))}
		})
	})
}

package command

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// Sale is the command "sale".
type Sale struct {
	Create  SaleCreate  `cmd:"" help:"Make a sale and load it into Redis."`
	List    SaleList    `cmd:"" help:"List the sales, newest first."`
	Get     SaleGet     `cmd:"" help:"Show one sale."`
	Pause   SalePause   `cmd:"" help:"Stop taking orders until resume. Orders there are can be paid."`
	Resume  SaleResume  `cmd:"" help:"Take orders again."`
	Close   SaleClose   `cmd:"" help:"End a sale for good; its unsold units go back to its SKU."`
	Restock SaleRestock `cmd:"" help:"Put more units on sale."`
	Archive SaleArchive `cmd:"" help:"Take a sale that is over out of Redis."`

	Concentration SaleConcentration `cmd:"" help:"From which networks a process took a sale's orders."`
}

// sale is what the commands read of an admin answer.
type sale struct {
	ID           int64          `json:"id"`
	SKU          int64          `json:"sku_id"`
	Kind         string         `json:"kind"`
	Title        string         `json:"title"`
	Price        int64          `json:"price"`
	Currency     string         `json:"currency"`
	StartsAt     wire.Time      `json:"starts_at"`
	EndsAt       wire.Time      `json:"ends_at"`
	PerUserLimit int            `json:"per_user_limit"`
	PayWithin    int64          `json:"pay_within_s"`
	Tranches     []tranche      `json:"tranches"`
	State        string         `json:"state"`
	ClosedAt     *wire.Time     `json:"closed_at"`
	ArchivedAt   *wire.Time     `json:"archived_at"`
	Total        int64          `json:"total"`
	Available    int64          `json:"available"`
	Locked       int64          `json:"locked"`
	Sold         int64          `json:"sold"`
	Standby      standby        `json:"standby"`
	Version      int64          `json:"version"`
	CreatedAt    wire.Time      `json:"created_at"`
	More         map[string]any `json:",unknown"` // shown with --json
}

// standby is the length of a sale's standby line.
type standby struct {
	Waiting int64 `json:"waiting"`
	Offers  int64 `json:"offers"`
}

type tranche struct {
	At       string `json:"at"`
	Quantity int64  `json:"quantity"`
}

const salesPath = "/admin/v1/sales"

func (s sale) print(w io.Writer) error {
	lines := []string{
		fmt.Sprintf("sale\t%d\t%s", s.ID, s.Title),
		fmt.Sprintf("state\t%s\t%s", s.State, closing(s)),
		fmt.Sprintf("window\t%s\tto %s (%s)", s.StartsAt.Format(time.RFC3339), s.EndsAt.Format(time.RFC3339), span(s.EndsAt.Sub(s.StartsAt.Time))),
		fmt.Sprintf("price\t%d %s\tminor units; %s", s.Price, s.Currency, s.Kind),
		fmt.Sprintf("limit\t%d\tfor each buyer, to pay within %s", s.PerUserLimit, span(time.Duration(s.PayWithin)*time.Second)),
		fmt.Sprintf("stock\t%d\t= %d available + %d locked + %d sold (as MySQL has it; of SKU %d)", s.Total, s.Available, s.Locked, s.Sold, s.SKU),
	}
	if s.Standby != (standby{}) {
		lines = append(lines, fmt.Sprintf("standby\t%d\twait for a unit; %d offers are open", s.Standby.Waiting, s.Standby.Offers))
	}
	for _, t := range s.Tranches {
		lines = append(lines, fmt.Sprintf("tranche\t%d\tat %s", t.Quantity, t.At))
	}
	lines = append(lines, fmt.Sprintf("version\t%d\tmade %s", s.Version, s.CreatedAt.Format(time.RFC3339)))
	return table(w, lines[0], lines[1:])
}

func closing(s sale) string {
	switch {
	case s.ArchivedAt != nil:
		return "archived " + s.ArchivedAt.Format(time.RFC3339)
	case s.ClosedAt != nil:
		return "closed for good"
	default:
		return ""
	}
}

func (o Output) sale(env *Env, s sale) error {
	if o.JSON {
		return printJSON(env.Stdout, s)
	}
	return s.print(env.Stdout)
}

// SaleCreate is "sale create".
type SaleCreate struct {
	Title        string        `help:"What is sold (default: the SKU's)."`
	Stock        int64         `required:"" help:"How many units."`
	Price        *int64        `help:"In minor units: 1999 is 19.99 (default: the SKU's)."`
	Currency     string        `help:"Three capital letters (default: the SKU's)."`
	StartsAt     string        `default:"now" help:"When it opens: RFC 3339, now, or from now: +10m." placeholder:"TIME"`
	EndsAt       string        `required:"" help:"When it ends: RFC 3339, or from now: +2h." placeholder:"TIME"`
	PerUserLimit int           `default:"1" help:"Units one buyer may hold, 1 to 100."`
	PayWithin    time.Duration `default:"15m" help:"Time to pay before an order expires."`
	Kind         string        `default:"goods" enum:"goods,coupon" help:"goods are paid for, a coupon is issued."`
	SKU          int64         `help:"Sell available units of this SKU, instead of making one." name:"sku" placeholder:"ID"`
	Tranche      []string      `help:"Release this many units at this time: TIME=UNITS. Repeat it; together they are the stock." placeholder:"TIME=UNITS" sep:"none"`
	Key          string        `help:"Idempotency-Key: run again with the same one, nothing is made twice."`
	Remote
	Output
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
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	now := api.nowOnce(ctx)
	body := map[string]any{"stock": c.Stock, "per_user_limit": c.PerUserLimit, "pay_within_s": int64(c.PayWithin / time.Second), "kind": c.Kind}
	if c.Title != "" {
		body["title"] = c.Title
	}
	if c.Price != nil {
		body["price"] = *c.Price
	}
	if c.Currency != "" {
		body["currency"] = c.Currency
	}
	if c.SKU != 0 {
		body["sku_id"] = c.SKU
	}
	if body["starts_at"], err = when("--starts-at", c.StartsAt, now); err != nil {
		return err
	}
	if body["ends_at"], err = when("--ends-at", c.EndsAt, now); err != nil {
		return err
	}
	var tranches []tranche
	for _, t := range c.Tranche {
		at, units, ok := strings.Cut(t, "=")
		n, err := strconv.ParseInt(units, 10, 64)
		if !ok || err != nil {
			return cli.Usage("--tranche %q: the form is TIME=UNITS, like +20m=40", t)
		}
		if at, err = when("--tranche", at, now); err != nil {
			return err
		}
		tranches = append(tranches, tranche{at, n})
	}
	if tranches != nil {
		body["tranches"] = tranches
	}
	var s sale
	if err := api.call(ctx, http.MethodPost, salesPath, c.Key, body, &s); err != nil {
		return fmt.Errorf("sale create: %w", err)
	}
	return c.sale(env, s)
}

// SaleList is "sale list".
type SaleList struct {
	Limit int `default:"100" help:"How many, 1 to 1000."`
	Remote
	Output
}

// Run implements the command.
func (c *SaleList) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var list struct {
		Sales []sale `json:"sales"`
		Next  string `json:"next"`
	}
	if err := api.call(ctx, http.MethodGet, fmt.Sprintf("%s?limit=%d", salesPath, c.Limit), "", nil, &list); err != nil {
		return fmt.Errorf("sale list: %w", err)
	}
	if c.JSON {
		return printJSON(env.Stdout, list)
	}
	var rows []string
	for _, s := range list.Sales {
		rows = append(rows, fmt.Sprintf("%d\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s", s.ID, s.State, s.Kind, s.Total, s.Available, s.Locked, s.Sold,
			s.StartsAt.Format(time.RFC3339), s.EndsAt.Format(time.RFC3339), s.Title))
	}
	if err := table(env.Stdout, "SALE\tSTATE\tKIND\tTOTAL\tAVAILABLE\tLOCKED\tSOLD\tSTARTS\tENDS\tTITLE", rows); err != nil {
		return err
	}
	if list.Next != "" {
		fmt.Fprintf(env.Stderr, "there are more: --limit shows up to 1000\n")
	}
	return nil
}

// SaleGet is "sale get".
type SaleGet struct {
	ID int64 `arg:"" help:"The sale's id."`
	Remote
	Output
}

// Run implements the command.
func (c *SaleGet) Run(ctx context.Context, env *Env) error {
	return verb(ctx, env, c.Remote, c.Output, http.MethodGet, c.ID, "", "", nil)
}

// SalePause is "sale pause".
type SalePause struct{ saleVerb }

// Run implements the command.
func (c *SalePause) Run(ctx context.Context, env *Env) error { return c.run(ctx, env, "pause") }

// SaleResume is "sale resume".
type SaleResume struct{ saleVerb }

// Run implements the command.
func (c *SaleResume) Run(ctx context.Context, env *Env) error { return c.run(ctx, env, "resume") }

// SaleClose is "sale close".
type SaleClose struct{ saleVerb }

// Run implements the command.
func (c *SaleClose) Run(ctx context.Context, env *Env) error { return c.run(ctx, env, "close") }

// SaleArchive is "sale archive".
type SaleArchive struct{ saleVerb }

// Help implements kong's HelpProvider.
func (SaleArchive) Help() string {
	return `The sale must have ended or be closed, every order must be paid, issued, cancelled, expired or rejected, and the audit must balance:
else the refusal names what is in the way. From then on MySQL alone answers for it; nothing brings it back.

Example:
  backend sale archive -config configs/backend.yaml 7`
}

// Run implements the command.
func (c *SaleArchive) Run(ctx context.Context, env *Env) error { return c.run(ctx, env, "archive") }

// SaleConcentration is "sale concentration".
type SaleConcentration struct {
	ID  int64 `arg:"" help:"The sale's id."`
	Top int   `default:"20" help:"How many networks."`
	Remote
	Output
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
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var r struct {
		SaleID   int64     `json:"sale_id"`
		Since    wire.Time `json:"since"`
		Orders   int64     `json:"orders"`
		Networks []struct {
			Network string `json:"network"`
			Orders  int64  `json:"orders"`
			AtLeast int64  `json:"at_least"`
		} `json:"networks"`
	}
	if err := api.call(ctx, http.MethodGet, fmt.Sprintf("%s/%d/concentration", salesPath, c.ID), "", nil, &r); err != nil {
		return fmt.Errorf("sale %d: %w", c.ID, err)
	}
	if c.JSON {
		return printJSON(env.Stdout, r)
	}
	fmt.Fprintf(env.Stdout, "%d orders that this process took since %s\n", r.Orders, r.Since.Format(time.RFC3339))
	var rows []string
	for i, n := range r.Networks {
		if i == c.Top {
			break
		}
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%.1f %%", n.Network, n.Orders, n.AtLeast, 100*float64(n.AtLeast)/float64(r.Orders)))
	}
	return table(env.Stdout, "NETWORK\tORDERS, AT MOST\tAT LEAST\tOF ALL, AT LEAST", rows)
}

type saleVerb struct {
	ID  int64  `arg:"" help:"The sale's id."`
	Key string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	Remote
	Output
}

func (c *saleVerb) run(ctx context.Context, env *Env, name string) error {
	return verb(ctx, env, c.Remote, c.Output, http.MethodPost, c.ID, "/"+name, c.Key, nil)
}

// SaleRestock is "sale restock".
type SaleRestock struct {
	ID    int64  `arg:"" help:"The sale's id."`
	Units int64  `arg:"" help:"How many more."`
	Key   string `help:"Idempotency-Key: run again with the same one, nothing is added twice."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (SaleRestock) Help() string {
	return `A sale with a SKU of its own gets new units; one of a shared SKU gets units that are available there.

Example:
  backend sale restock -config configs/backend.yaml 7 50`
}

// Run implements the command.
func (c *SaleRestock) Run(ctx context.Context, env *Env) error {
	return verb(ctx, env, c.Remote, c.Output, http.MethodPost, c.ID, "/restock", c.Key, map[string]int64{"quantity": c.Units})
}

func verb(ctx context.Context, env *Env, r Remote, o Output, method string, id int64, path, key string, body any) error {
	api, err := r.connect(env)
	if err != nil {
		return err
	}
	var s sale
	if err := api.call(ctx, method, salesPath+"/"+strconv.FormatInt(id, 10)+path, key, body, &s); err != nil {
		return fmt.Errorf("sale %d: %w", id, err)
	}
	return o.sale(env, s)
}

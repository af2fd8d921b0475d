package command

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"floodgate.internal/shared/wire"
)

// Coupon is the command "coupon". A campaign is a sale: the verbs of "sale" (pause, close, restock) are for it too.
type Coupon struct {
	Create    CouponCreate    `cmd:"" help:"Make a coupon campaign and load it into Redis."`
	List      CouponList      `cmd:"" help:"List the campaigns, newest first."`
	Get       CouponGet       `cmd:"" help:"Show one campaign."`
	Publish   CouponPublish   `cmd:"" help:"Show a campaign to the public; it can be claimed while it is valid."`
	Unpublish CouponUnpublish `cmd:"" help:"Hide a campaign. Coupons that were issued can be used all the same."`
}

// campaign is what the commands read of an admin answer.
type campaign struct {
	ID           int64          `json:"id"`
	Title        string         `json:"title"`
	Category     string         `json:"category"`
	Published    bool           `json:"published"`
	ValidFrom    wire.Time      `json:"valid_from"`
	ValidUntil   wire.Time      `json:"valid_until"`
	PerUserLimit int            `json:"per_user_limit"`
	Guard        string         `json:"guard"`
	State        string         `json:"state"`
	Total        int64          `json:"total"`
	Available    int64          `json:"available"`
	Sold         int64          `json:"sold"`
	Version      int64          `json:"version"`
	CreatedAt    wire.Time      `json:"created_at"`
	More         map[string]any `json:",unknown"` // shown with --json
}

const couponsPath = "/admin/v1/coupons"

func shown(published bool) string {
	if published {
		return "published"
	}
	return "not published"
}

func (c campaign) print(w io.Writer) error {
	return table(w, fmt.Sprintf("campaign\t%d\t%s", c.ID, c.Title), []string{
		fmt.Sprintf("state\t%s\t%s", c.State, shown(c.Published)),
		fmt.Sprintf("category\t%s\t", c.Category),
		fmt.Sprintf("valid\t%s\tto %s (%s)", c.ValidFrom.Format(time.RFC3339), c.ValidUntil.Format(time.RFC3339), span(c.ValidUntil.Sub(c.ValidFrom.Time))),
		fmt.Sprintf("limit\t%d\tfor each shopper", c.PerUserLimit),
		fmt.Sprintf("units\t%d\t= %d available + %d issued (as MySQL has it), guarded by %s", c.Total, c.Available, c.Sold, c.Guard),
		fmt.Sprintf("version\t%d\tmade %s", c.Version, c.CreatedAt.Format(time.RFC3339)),
	})
}

// CouponCreate is "coupon create".
type CouponCreate struct {
	Title        string `required:"" help:"What it says."`
	Total        int64  `required:"" help:"How many there are."`
	ValidFrom    string `default:"now" help:"When it can be claimed and used from: RFC 3339, now, or from now: +10m." placeholder:"TIME"`
	ValidUntil   string `required:"" help:"Until when: RFC 3339, or from now: +720h." placeholder:"TIME"`
	Category     string `help:"What it is for."`
	PerUserLimit int    `default:"1" help:"How many one shopper may claim, 1 to 100."`
	Guard        string `default:"conditional" enum:"conditional,version" help:"How MySQL's stock row is guarded: conditional (one UPDATE, where enough is left) or version (optimistic, by a version column)."`
	Unpublished  bool   `help:"Do not show it to the public yet: coupon publish does."`
	Key          string `help:"Idempotency-Key: run again with the same one, nothing is made twice."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (CouponCreate) Help() string {
	return `Examples:
  backend coupon create -config configs/backend.yaml --title "10 off" --category shoes --total 500 --valid-until +720h
  backend coupon create -config configs/backend.yaml --title "Opening day" --total 100 --per-user-limit 2 --guard version --unpublished \
      --valid-from 2026-07-01T10:00:00Z --valid-until 2026-08-01T00:00:00Z

Times from now count from the backend's clock, which is Redis's.`
}

// Run implements the command.
func (c *CouponCreate) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	now := api.nowOnce(ctx)
	body := map[string]any{"title": c.Title, "category": c.Category, "total": c.Total, "per_user_limit": c.PerUserLimit, "guard": c.Guard, "published": !c.Unpublished}
	if body["valid_from"], err = when("--valid-from", c.ValidFrom, now); err != nil {
		return err
	}
	if body["valid_until"], err = when("--valid-until", c.ValidUntil, now); err != nil {
		return err
	}
	return c.show(ctx, env, api, http.MethodPost, couponsPath, c.Key, body)
}

// show sends a request and prints the campaign that comes back.
func (o Output) show(ctx context.Context, env *Env, api *client, method, path, key string, body any) error {
	var c campaign
	if err := api.call(ctx, method, path, key, body, &c); err != nil {
		return fmt.Errorf("coupon: %w", err)
	}
	if o.JSON {
		return printJSON(env.Stdout, c)
	}
	return c.print(env.Stdout)
}

// CouponList is "coupon list".
type CouponList struct {
	Limit int `default:"100" help:"How many, 1 to 1000."`
	Remote
	Output
}

// Run implements the command.
func (c *CouponList) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var list struct {
		Coupons []campaign `json:"coupons"`
		Next    string     `json:"next"`
	}
	if err := api.call(ctx, http.MethodGet, fmt.Sprintf("%s?limit=%d", couponsPath, c.Limit), "", nil, &list); err != nil {
		return fmt.Errorf("coupon list: %w", err)
	}
	if c.JSON {
		return printJSON(env.Stdout, list)
	}
	var rows []string
	for _, x := range list.Coupons {
		rows = append(rows, fmt.Sprintf("%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s", x.ID, x.State, shown(x.Published), x.Category, x.Total, x.Available, x.Sold,
			x.ValidFrom.Format(time.RFC3339), x.ValidUntil.Format(time.RFC3339), x.Title))
	}
	if err := table(env.Stdout, "CAMPAIGN\tSTATE\tPUBLISHED\tCATEGORY\tTOTAL\tAVAILABLE\tISSUED\tFROM\tUNTIL\tTITLE", rows); err != nil {
		return err
	}
	if list.Next != "" {
		fmt.Fprintf(env.Stderr, "there are more: --limit shows up to 1000\n")
	}
	return nil
}

type couponVerb struct {
	ID int64 `arg:"" help:"The campaign's id."`
	Remote
	Output
}

func (c *couponVerb) run(ctx context.Context, env *Env, method string, body any) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	return c.show(ctx, env, api, method, couponsPath+"/"+strconv.FormatInt(c.ID, 10), "", body)
}

// CouponGet is "coupon get".
type CouponGet struct{ couponVerb }

// Run implements the command.
func (c *CouponGet) Run(ctx context.Context, env *Env) error {
	return c.run(ctx, env, http.MethodGet, nil)
}

// CouponPublish is "coupon publish".
type CouponPublish struct{ couponVerb }

// Run implements the command.
func (c *CouponPublish) Run(ctx context.Context, env *Env) error {
	return c.run(ctx, env, http.MethodPatch, map[string]bool{"published": true})
}

// CouponUnpublish is "coupon unpublish".
type CouponUnpublish struct{ couponVerb }

// Run implements the command.
func (c *CouponUnpublish) Run(ctx context.Context, env *Env) error {
	return c.run(ctx, env, http.MethodPatch, map[string]bool{"published": false})
}

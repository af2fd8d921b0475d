package command

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"floodgate.internal/backend/adminapi"
)

// Coupon is the command "coupon". A campaign is a sale: the verbs of "sale" (pause, close, restock) are for it too.
type Coupon struct {
	Create    couponCreate  `cmd:"" help:"Make a coupon campaign and load it into Redis."`
	List      couponList    `cmd:"" help:"List the campaigns, newest first."`
	Get       couponGet     `cmd:"" help:"Show one campaign."`
	Publish   couponPublish `cmd:"" help:"Show a campaign to the public; it can be claimed while it is valid."`
	Unpublish couponPublish `cmd:"" help:"Hide a campaign. Coupons that were issued can be used all the same."`
}

// campaign is what only a coupon campaign has.
func campaign(s adminapi.Sale) (published, category, guard string) {
	published = "not published"
	if s.Published != nil && *s.Published {
		published = "published"
	}
	none := ""
	return published, *cmp.Or(s.Category, &none), *cmp.Or(s.Guard, &none)
}

func printCampaign(w *bytes.Buffer, s adminapi.Sale) {
	published, category, guard := campaign(s)
	table(w,
		row{"campaign", s.ID, s.Title},
		row{"state", s.State, published},
		row{"category", category, ""},
		row{"valid", s.StartsAt.Format(time.RFC3339), fmt.Sprintf("to %s (%s)", s.EndsAt.Format(time.RFC3339), span(s.EndsAt.Sub(s.StartsAt.Time)))},
		row{"limit", s.PerUserLimit, "for each shopper"},
		row{"units", s.Total, fmt.Sprintf("= %d available + %d issued (as MySQL has it), guarded by %s", s.Available, s.Sold, guard)},
		row{"version", s.Version, "made " + s.CreatedAt.Format(time.RFC3339)})
}

type couponCreate struct {
	Title        string `required:"" help:"What it says."`
	Total        int64  `required:"" help:"How many there are."`
	ValidFrom    string `default:"now" help:"When it can be claimed and used from: RFC 3339, now, or from now: +10m." placeholder:"TIME"`
	ValidUntil   string `required:"" help:"Until when: RFC 3339, or from now: +720h." placeholder:"TIME"`
	Category     string `help:"What it is for."`
	PerUserLimit int64  `default:"1" help:"How many one shopper may claim, 1 to 100."`
	Guard        string `default:"conditional" enum:"conditional,version" help:"How MySQL's stock row is guarded: conditional (one UPDATE, where enough is left) or version (optimistic, by a version column)."`
	Unpublished  bool   `help:"Do not show it to the public yet: coupon publish does."`
	Key          string `help:"Idempotency-Key: run again with the same one, nothing is made twice."`
	API
}

func (c *couponCreate) Run(ctx context.Context, env *Env) error {
	return c.with(env, func(api *adminapi.Client) error {
		now := sync.OnceValues(func() (time.Time, error) { return api.Now(ctx) }) // one moment for both times
		from, err1 := when("--valid-from", c.ValidFrom, now)
		until, err2 := when("--valid-until", c.ValidUntil, now)
		if err := cmp.Or(err1, err2); err != nil {
			return err
		}
		return tell(ctx, env, api, c.Output, post(c.Key, adminapi.NewCoupon{Total: &c.Total, CouponPatch: adminapi.CouponPatch{
			Title: &c.Title, Category: &c.Category, Published: new(!c.Unpublished), ValidFrom: &from, ValidUntil: &until, PerUserLimit: &c.PerUserLimit, Guard: &c.Guard,
		}}, "/coupons"), printCampaign)
	})
}

type couponList struct {
	Limit int `default:"100" help:"How many, 1 to 1000."`
	API
}

func (c *couponList) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/coupons?limit=%d", c.Limit), func(w *bytes.Buffer, list adminapi.Coupons) {
		env.more(list.Page)
		listed(w, row{"CAMPAIGN", "STATE", "PUBLISHED", "CATEGORY", "TOTAL", "AVAILABLE", "ISSUED", "FROM", "UNTIL", "TITLE"}, list.Coupons, func(s adminapi.Sale) row {
			published, category, _ := campaign(s)
			return row{s.ID, s.State, published, category, s.Total, s.Available, s.Sold, s.StartsAt.Format(time.RFC3339), s.EndsAt.Format(time.RFC3339), s.Title}
		})
	})
}

type couponGet struct {
	ID int64 `arg:"" help:"The campaign's id."`
	API
}

func (c *couponGet) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/coupons/%d", c.ID), printCampaign)
}

// couponPublish is "coupon publish" and "coupon unpublish".
type couponPublish struct {
	ID int64 `arg:"" help:"The campaign's id."`
	API
}

func (c *couponPublish) Run(ctx context.Context, env *Env, k *kong.Context) error {
	r := request{http.MethodPatch, fmt.Sprintf("/coupons/%d", c.ID), "", adminapi.CouponPatch{Published: new(k.Selected().Name == "publish")}}
	return ask(ctx, env, c.API, r, printCampaign)
}

package adminapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"floodgate.internal/shared/wire"
)

// Goods asks for a sale of goods at a price in minor units of EUR, one for each buyer, with ten minutes to pay.
func Goods(title string, price, stock int64, starts, ends time.Time) NewSale {
	return NewSale{Title: &title, Price: &price, Currency: new("EUR"), Stock: &stock, PayWithin: new(int64(600)),
		StartsAt: new(starts.UTC().Format(wire.TimeFormat)), EndsAt: new(ends.UTC().Format(wire.TimeFormat))}
}

// CreateSale returns the new sale's id.
func (c *Client) CreateSale(ctx context.Context, n NewSale) (int64, error) {
	var made Sale
	if err := c.Call(ctx, http.MethodPost, Prefix+"/sales", "", n, &made); err != nil {
		return 0, fmt.Errorf("create sale %q: %w", *n.Title, err)
	}
	return made.ID, nil
}

// Samples creates the sales of a first look: one that is open, one that opens in a minute, and a coupon; and two SKUs for
// carts. It returns the sales. Where there is a sale already it creates none, and returns none.
func (c *Client) Samples(ctx context.Context) (ids []int64, err error) {
	var list Sales
	if err := c.Call(ctx, http.MethodGet, Prefix+"/sales", "", nil, &list); err != nil || len(list.Sales) > 0 {
		return nil, err
	}
	now := time.Now().Truncate(time.Second)
	end := now.Add(24 * time.Hour)
	coupon := Goods("10 off your next order", 0, 200, now, end)
	coupon.Kind, coupon.PayWithin = new(string(wire.Coupon)), nil
	for _, n := range []NewSale{
		Goods("Mechanical keyboard", 4900, 100, now, end),
		Goods("Noise-cancelling headphones", 9900, 50, now.Add(time.Minute), end),
		coupon,
	} {
		id, err := c.CreateSale(ctx, n)
		if err != nil {
			return ids, err
		}
		ids = append(ids, id)
	}
	for _, n := range []NewSKU{
		{Title: new("USB-C cable"), Price: new(int64(900)), Currency: new("EUR"), Stock: new(int64(500))},
		{Title: new("Mouse pad"), Price: new(int64(1500)), Currency: new("EUR"), Stock: new(int64(80))},
	} {
		if err := c.Call(ctx, http.MethodPost, Prefix+"/skus", "", n, nil); err != nil {
			return ids, fmt.Errorf("create SKU %q: %w", *n.Title, err)
		}
	}
	return ids, nil
}

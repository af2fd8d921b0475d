package change

import (
	"context"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/wire"
)

// Sales are sales as operators see them.
func (m *Maker) Sales(ctx context.Context, q store.Queryer, records ...sale.Record) ([]adminapi.Sale, error) {
	views := make([]adminapi.Sale, len(records))
	if len(records) == 0 {
		return views, nil
	}
	ids := make([]int64, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	lines, err := standby.Lengths(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	now := m.Clock.Now()
	for i := range records {
		views[i] = view(&records[i], now)
		views[i].Standby = lines[records[i].ID]
	}
	return views, nil
}

func view(r *sale.Record, now time.Time) adminapi.Sale {
	v := adminapi.Sale{
		ID: r.ID, SKU: r.SKU, Kind: r.Kind, Title: r.Title, Price: r.Price, Currency: r.Currency, Picture: r.Picture, Stock: r.Total,
		StartsAt: wire.At(r.StartsAt), EndsAt: wire.At(r.EndsAt), PerUserLimit: r.PerUserLimit, PayWithin: int64(r.PayWithin / time.Second),
		Tranches: []adminapi.Tranche{}, State: r.State(now), Paused: r.Paused, ClosedAt: optional(r.ClosedAt), ArchivedAt: optional(r.ArchivedAt),
		Total: r.Total, Available: r.Available, Locked: r.Locked, Sold: r.Sold, Version: r.Version, CreatedAt: wire.At(r.CreatedAt),
	}
	for _, t := range r.Tranches {
		v.Tranches = append(v.Tranches, adminapi.Tranche{At: wire.At(t.At), Quantity: t.Quantity})
	}
	if r.Kind == wire.Coupon {
		category, guard, published := r.Category, r.Guard, !r.Hidden
		v.Category, v.Published, v.Guard, v.ValidFrom, v.ValidUntil = &category, &published, &guard, &v.StartsAt, &v.EndsAt
	}
	return v
}

func optional(t *time.Time) *wire.Time {
	if t == nil {
		return nil
	}
	at := wire.At(*t)
	return &at
}

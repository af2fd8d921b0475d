package standin

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// Row C1, row C3: under either guard coupons are issued, used and expire on the stand-ins as on the real servers.
func TestCouponsAreIssuedUsedAndExpire(t *testing.T) {
	t.Attr("row", "C1 C3")
	for _, guard := range []string{order.GuardConditional, order.GuardVersion} {
		t.Run(guard, func(t *testing.T) {
			_, db := openMySQL(t, 1)
			redis := openRedis(t)
			ctx, now := t.Context(), time.Now().UTC().Truncate(time.Millisecond)
			d := definition(t, redis)
			exec(t, db, `INSERT INTO skus (id, title, price, currency, own, total, available, allotted, created_at) VALUES (1, 'x', 0, 'XXX', TRUE, 3, 0, 3, ?)`, now)
			exec(t, db, `INSERT INTO sales (id, sku_id, kind, title, price, currency, starts_at, ends_at, per_user_limit, pay_within_s, category, stock_guard, created_at)
				VALUES (?, 1, 'coupon', 'x', 0, 'XXX', ?, ?, 2, 60, 'shoes', ?, ?)`, sale, time.UnixMilli(d.Starts).UTC(), time.UnixMilli(d.Ends).UTC(), guard, now)
			exec(t, db, `INSERT INTO sale_stock (sale_id, total, available, epoch) VALUES (?, 3, 3, 1)`, sale)
			exec(t, db, `INSERT INTO ledger (sale_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
				VALUES (?, 'allot', 'create', 0, 3, 3, 0, 0, 0, ?)`, sale, now)
			d.Limit = 2
			load(t, redis, 1, reserve.Loaded{Definition: d, Stock: 3, Total: 3})
			for _, uid := range []string{"ann", "bob", "cyd"} {
				r := reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale), Epoch: 1}
				if v, err := redis.Reserve(ctx, r); err != nil || v.Answer != lua.Reserved {
					t.Fatalf("got %+v, %v", v, err)
				}
			}
			clk, reg, log := new(clock.Clock), prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
			book, claims := order.NewStore(order.Config{DB: db, Redis: redis, Clock: clk, Log: log, Register: reg}), coupon.New(coupon.Config{DB: db, Clock: clk, Register: reg})
			snap, err := redis.Snapshot(ctx, sale)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(book.Settle(ctx, snap.Outbox), book.Settle(ctx, snap.Outbox), book.Retire(ctx, snap.Outbox)); err != nil {
				t.Fatal(err)
			}
			list, err := claims.List(ctx, "ann", "", 10)
			if err != nil || len(list.Coupons) != 1 || list.Coupons[0].State != wire.ClaimNew || list.Coupons[0].Category != "shoes" {
				t.Fatalf("got %+v, %v", list, err)
			}
			id := list.Coupons[0].ClaimID
			if _, err := claims.Use(ctx, "bob", id); !errors.Is(err, coupon.ErrNotFound) {
				t.Errorf("somebody else's: got %v", err)
			}
			if x, err := claims.Use(ctx, "ann", id); err != nil || x.State != wire.ClaimUsed || x.UsedAt == nil {
				t.Errorf("got %+v, %v", x, err)
			}
			var ended *coupon.EndedError
			if _, err := claims.Use(ctx, "ann", id); !errors.As(err, &ended) || ended.Claim.State != wire.ClaimUsed {
				t.Errorf("used twice: got %v", err)
			}
			late := new(clock.Clock)
			late.Set(now.Add(2*time.Hour), time.Now())
			expiring := coupon.New(coupon.Config{DB: db, Clock: late, Register: prometheus.NewRegistry()})
			for _, want := range []int{2, 0} {
				if n, err := expiring.Expire(ctx); n != want || err != nil {
					t.Errorf("got %d expired, %v; want %d", n, err, want)
				}
			}
			if r, err := audit.New(audit.Config{DB: db, Redis: redis, QueuedBound: time.Minute}).Sale(ctx, sale); err != nil || !r.Balanced || r.Sold != 3 || r.MySQL.Claims != 3 {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

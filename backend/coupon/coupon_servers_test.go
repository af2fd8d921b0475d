//go:build servers

package coupon_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// campaign is a coupon campaign on the real MySQL, whose claims are valid for an hour.
type campaign struct {
	t     *testing.T
	dsn   string
	db    *sql.DB
	sale  int64
	until time.Time
}

func newCampaign(t *testing.T) *campaign {
	dsn := backendtest.MySQLDSN(t)
	db := backendtest.OpenMySQL(t, dsn, 16)
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	c := &campaign{t, dsn, db, backendtest.Sale(t, db, backendtest.SaleOptions{Kind: wire.Coupon}), time.Now().UTC().Truncate(time.Millisecond).Add(time.Hour)}
	if _, err := db.ExecContext(t.Context(), `UPDATE sales SET category = 'shoes' WHERE id = ?`, c.sale); err != nil {
		t.Fatal(err)
	}
	return c
}

// claims are a process's, whose clock has gone on by d.
func (c *campaign) claims(d time.Duration) *coupon.Claims {
	clk := new(clock.Clock)
	clk.Set(time.Now().Add(d), time.Now())
	return coupon.New(coupon.Config{DB: c.db, Clock: clk, Register: prometheus.NewRegistry()})
}

// issue issues units to a user, and returns the claims' ids.
func (c *campaign) issue(uid string, units int) (ids []string) {
	c.t.Helper()
	o := coupon.Issued{Order: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), c.sale), UID: uid, Sale: c.sale, Until: c.until}
	for i := range units {
		o.Slots = append(o.Slots, i+1)
		ids = append(ids, wire.NewClaimID(o.Order, i+1))
	}
	err := store.InTx(c.t.Context(), c.db, func(tx *sql.Tx) error {
		return coupon.Issue(c.t.Context(), tx, time.Now().UTC(), []coupon.Issued{o})
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return ids
}

// states are how many claims are in which state, in MySQL.
func (c *campaign) states() map[wire.ClaimState]int {
	c.t.Helper()
	rows, err := c.db.QueryContext(c.t.Context(), `SELECT state, COUNT(*) FROM coupon_claims GROUP BY state`)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	got := map[wire.ClaimState]int{}
	for rows.Next() {
		var s wire.ClaimState
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			c.t.Fatal(err)
		}
		got[s] = n
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	return got
}

// ended is the error of a claim that is in this state.
func ended(t *testing.T, err error, state wire.ClaimState) {
	t.Helper()
	var e *coupon.EndedError
	if !errors.As(err, &e) || e.Claim.State != state {
		t.Errorf("got %v, want that it is %s", err, state)
	}
}

// Row C1: a claim is its owner's, is used once, and stands in the owner's list.
func TestAClaimIsUsedOnce(t *testing.T) {
	t.Attr("row", "C1")
	c := newCampaign(t)
	claims := c.claims(0)
	first := c.issue("ann", 2)
	last := c.issue("ann", 1)
	c.issue("bob", 1)

	page, err := claims.List(t.Context(), "ann", "", 2)
	if err != nil || len(page.Coupons) != 2 || page.Next == "" || page.Coupons[0].ClaimID != last[0] {
		t.Fatalf("got %+v, %v; want two claims, the newest first", page, err)
	}
	if x := page.Coupons[0]; x.SaleID != c.sale || x.Title != "test sale" || x.Category != "shoes" || x.State != wire.ClaimNew || x.UsedAt != nil || !x.ValidUntil.Equal(c.until) {
		t.Errorf("got %+v", x)
	}
	rest, err := claims.List(t.Context(), "ann", page.Next, 2)
	if err != nil || len(rest.Coupons) != 1 || rest.Next != "" || rest.Coupons[0].OrderID != page.Coupons[1].OrderID {
		t.Errorf("got %+v, %v; want the other claim of the first order", rest, err)
	}
	if none, err := claims.List(t.Context(), "cyd", "", 2); err != nil || none.Coupons == nil || len(none.Coupons) != 0 {
		t.Errorf("got %+v, %v", none, err)
	}
	for _, cursor := range []string{"x", first[0] + "x", "0", page.Coupons[0].OrderID} {
		if _, err := claims.List(t.Context(), "ann", cursor, 2); !errors.Is(err, coupon.ErrCursor) {
			t.Errorf("cursor %q: got %v", cursor, err)
		}
	}

	for who, id := range map[string]string{"bob": first[0], "": first[0], "ann": wire.NewClaimID(page.Coupons[0].OrderID, 7), "ANN": first[0]} {
		if _, err := claims.Use(t.Context(), who, id); !errors.Is(err, coupon.ErrNotFound) {
			t.Errorf("%q uses %s: got %v, want that there is none", who, id, err)
		}
	}
	used, err := claims.Use(t.Context(), "ann", first[1])
	if err != nil || used.State != wire.ClaimUsed || used.UsedAt == nil || used.ClaimID != first[1] {
		t.Fatalf("got %+v, %v", used, err)
	}
	_, err = claims.Use(t.Context(), "ann", first[1])
	ended(t, err, wire.ClaimUsed)
	_, err = c.claims(2*time.Hour).Use(t.Context(), "ann", first[1])
	ended(t, err, wire.ClaimUsed)
	if got := c.states(); got[wire.ClaimUsed] != 1 || got[wire.ClaimNew] != 3 {
		t.Errorf("got %v", got)
	}
}

// Row C1: from valid_until on a claim is expired, before the timer has come to it too; the timer's passes are bounded.
func TestClaimsExpire(t *testing.T) {
	t.Attr("row", "C1")
	c := newCampaign(t)
	ids := c.issue("ann", 3)
	if n, err := c.claims(0).Expire(t.Context()); n != 0 || err != nil {
		t.Errorf("before the end: got %d, %v", n, err)
	}
	if _, err := c.claims(0).Use(t.Context(), "ann", ids[0]); err != nil {
		t.Fatal(err)
	}
	late := c.claims(time.Until(c.until) + time.Millisecond)
	_, err := late.Use(t.Context(), "ann", ids[1])
	ended(t, err, wire.ClaimExpired)
	list, err := late.List(t.Context(), "ann", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []wire.ClaimState
	for _, x := range list.Coupons {
		got = append(got, x.State)
	}
	if want := []wire.ClaimState{wire.ClaimExpired, wire.ClaimExpired, wire.ClaimUsed}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range 11 {
		c.issue(fmt.Sprint("u", i), 100)
	}
	for _, want := range []int{500, 500, 102, 0} {
		if n, err := late.Expire(t.Context()); n != want || err != nil {
			t.Errorf("a pass: got %d, %v; want %d", n, err, want)
		}
	}
	if got := c.states(); got[wire.ClaimUsed] != 1 || got[wire.ClaimExpired] != 1102 {
		t.Errorf("got %v", got)
	}
	_, err = c.claims(0).Use(t.Context(), "ann", ids[1]) // by a clock that is behind: what has expired stays so
	ended(t, err, wire.ClaimExpired)
}

// Row C1: where the answer to the COMMIT is lost, nobody says that the coupon was not used.
func TestALostAnswerIsAnUnknownOutcome(t *testing.T) {
	t.Attr("row", "C1")
	c := newCampaign(t)
	id := c.issue("ann", 1)[0]
	dsn, err := mysql.ParseDSN(c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	cutter := netfault.New(t, dsn.Addr)
	dsn.Addr = cutter.Addr()
	clk := new(clock.Clock)
	claims := coupon.New(coupon.Config{DB: backendtest.OpenMySQL(t, dsn.FormatDSN(), 1), Clock: clk, Register: prometheus.NewRegistry()})
	cutter.LoseAnswerTo("\x03COMMIT")
	if _, err := claims.Use(t.Context(), "ann", id); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	if list, err := claims.List(t.Context(), "ann", "", 1); err != nil || list.Coupons[0].State != wire.ClaimUsed {
		t.Errorf("got %+v, %v; want it used", list, err)
	}
	_, err = claims.Use(t.Context(), "ann", id)
	ended(t, err, wire.ClaimUsed)
}

// Row C1: of two presses and the expiry exactly one has each claim, and everybody is told the truth, three thousand times.
func TestUseAgainstUseAndExpiry(t *testing.T) {
	t.Attr("row", "C1")
	const rounds, units = 60, 50
	c := newCampaign(t)
	using, expiring := c.claims(0), c.claims(2*time.Hour)
	var won, expired atomic.Int64
	for round := range rounds {
		ids := c.issue("ann", units)
		successes := make([]atomic.Int64, units)
		var start, done sync.WaitGroup
		start.Add(1)
		var presses atomic.Int64
		after, due := int64(1+round*units/rounds), make(chan struct{}) // the claims come due earlier or later in the round
		for press := range 2 {
			for half := range 2 {
				done.Go(func() {
					start.Wait()
					for i := half * units / 2; i < (half+1)*units/2; i++ {
						_, err := using.Use(context.Background(), "ann", ids[i])
						var e *coupon.EndedError
						switch {
						case err == nil:
							successes[i].Add(1)
						case !errors.As(err, &e) || e.Claim.State == wire.ClaimNew:
							t.Errorf("round %d, press %d of %s: %v", round, press, ids[i], err)
						}
						if presses.Add(1) == after {
							close(due)
						}
					}
				})
			}
		}
		for range 2 {
			done.Go(func() {
				<-due
				n, err := expiring.Expire(context.Background())
				if err != nil {
					t.Error(err)
				}
				expired.Add(int64(n))
			})
		}
		start.Done()
		done.Wait()
		list, err := using.List(t.Context(), "ann", "", units)
		if err != nil || len(list.Coupons) != units {
			t.Fatalf("got %d claims, %v", len(list.Coupons), err)
		}
		for _, x := range list.Coupons {
			i := slices.Index(ids, x.ClaimID)
			n := successes[i].Load()
			won.Add(n)
			if want := map[wire.ClaimState]int64{wire.ClaimUsed: 1, wire.ClaimExpired: 0}; x.State == wire.ClaimNew || n != want[x.State] {
				t.Errorf("round %d: claim %s is %s, and was used %d times", round, x.ClaimID, x.State, n)
			}
		}
	}
	got := c.states()
	if int64(got[wire.ClaimUsed]) != won.Load() || int64(got[wire.ClaimExpired]) != expired.Load() || won.Load()+expired.Load() != rounds*units {
		t.Errorf("mysql has %v; %d presses were told that they used one, %d claims were told to have expired", got, won.Load(), expired.Load())
	}
	t.Logf("%d used, %d expired", won.Load(), expired.Load())
}

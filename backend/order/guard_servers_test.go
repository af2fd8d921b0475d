//go:build servers

package order

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

const claimantPlan = "FLOODGATE_CLAIMANT"

// plan is what a claimant process does.
type plan struct {
	DSN, Redis, Prefix string
	Sales              []int64
	UIDs               []string // each claims one unit of each sale
	Forged             bool     // nobody asks Redis: MySQL alone is to judge
	Batch              int
}

// claimed is what came of it.
type claimed struct {
	Reserved, SoldOut, Limit int // as Redis said
	Overtaken                int // how often the stock row had changed since it was read
	Held                     int // how often a batch could not be settled and was settled again
}

// claimAll tells that it is ready, waits for the word, claims for every uid and settles what it got, as a consumer does.
func claimAll(text string) error {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	db, err := store.Open(p.DSN, 2)
	if err != nil {
		return err
	}
	defer db.Close()
	redis, err := reserve.Open(redis.Config{Addrs: []string{p.Redis}, Prefix: p.Prefix}, 0)
	if err != nil {
		return err
	}
	if err := redis.Client().Begin(ctx); err != nil {
		return err
	}
	defer redis.Close()
	if err := redis.Client().Begin(ctx); err != nil {
		return err
	}
	clk := new(clock.Clock)
	clk.Set(time.Now(), time.Now())
	orders := newBook(db, redis, clk, slog.New(slog.DiscardHandler))
	if err := db.PingContext(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the word: %w", err)
	}
	var got claimed
	var entries []queued.Entry
	for i := range len(p.Sales) * len(p.UIDs) {
		sale, uid := p.Sales[i/len(p.UIDs)], p.UIDs[i%len(p.UIDs)]
		if p.Forged {
			entries = append(entries, forged(sale, uid, queued.Entry{}))
		} else {
			r := reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: newID(sale), Epoch: 1}
			v, err := redis.Reserve(ctx, r)
			if err != nil {
				return err
			}
			switch v.Answer {
			case lua.Reserved:
				got.Reserved++
				entries = append(entries, r.Entry(v))
			case lua.SoldOut:
				got.SoldOut++
			case lua.AlreadyOrdered:
				got.Limit++
			default:
				return fmt.Errorf("uid %s: %+v", uid, v)
			}
		}
		if len(entries) < p.Batch && i < len(p.Sales)*len(p.UIDs)-1 {
			continue
		}
		for err := orders.Settle(ctx, entries); err != nil; err = orders.Settle(ctx, entries) {
			if !errors.Is(err, errOvertaken) && !store.Retryable(err) {
				return err
			}
			got.Held++
		}
		entries = entries[:0]
	}
	got.Overtaken = int(testutil.ToFloat64(orders.metrics.overtaken))
	return json.NewEncoder(os.Stdout).Encode(got)
}

// claimants runs plans, each in a process of its own, all at once, and adds up what came of them.
func (s *shop) claimants(plans []plan) (sum claimed) {
	s.t.Helper()
	type process struct {
		*exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
		err *strings.Builder
	}
	var all []process
	for _, p := range plans {
		p.DSN, p.Redis, p.Prefix = s.dsn, os.Getenv("REDIS_ADDR"), s.redis.Client().Prefix()
		text, err := json.Marshal(p)
		if err != nil {
			s.t.Fatal(err)
		}
		c := process{Cmd: exec.CommandContext(s.t.Context(), os.Args[0]), err: new(strings.Builder)}
		c.Env, c.Stderr = append(os.Environ(), claimantPlan+"="+string(text)), c.err
		if c.in, err = c.StdinPipe(); err != nil {
			s.t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			s.t.Fatal(err)
		}
		c.out = bufio.NewReader(out)
		if err := c.Start(); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, c)
	}
	for _, p := range all {
		if line, err := p.out.ReadString('\n'); line != "ready\n" {
			s.t.Errorf("a claimant said %q, %v: %s", line, err, p.err)
		}
	}
	for _, p := range all {
		if _, err := p.in.Write([]byte("go\n")); err != nil {
			s.t.Error(err)
		}
	}
	for _, p := range all {
		var got claimed
		said, err := io.ReadAll(p.out)
		if err := errors.Join(err, p.Wait()); err != nil {
			s.t.Fatalf("a claimant: %v\n%s", err, p.err)
		}
		if err := json.Unmarshal(said, &got); err != nil {
			s.t.Fatalf("a claimant said %q: %v", said, err)
		}
		sum = claimed{sum.Reserved + got.Reserved, sum.SoldOut + got.SoldOut, sum.Limit + got.Limit, sum.Overtaken + got.Overtaken, sum.Held + got.Held}
	}
	return sum
}

var guards = []string{GuardConditional, GuardVersion}

const processes = 8

// Row C2, row C3: eight processes at once claim from forty campaigns of three units each; nobody upstream counts, and no
// CHECK stands behind it: the guard alone issues every unit once, and nobody is refused while there is one.
func TestEightProcessesDoNotOverIssue(t *testing.T) {
	t.Attr("row", "C2 C3")
	for _, guard := range guards {
		t.Run(guard, func(t *testing.T) {
			s := newShop(t)
			const campaigns, stock = 40, 3
			s.exec(`ALTER TABLE sale_stock DROP CONSTRAINT sale_stock_units`)
			var sales []int64
			for range campaigns {
				sales = append(sales, s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Guard: guard, Stock: stock}))
			}
			var plans []plan
			for i := range processes {
				plans = append(plans, plan{Sales: sales, UIDs: []string{fmt.Sprint("u", i)}, Forged: true, Batch: 1})
			}
			got := s.claimants(plans)
			for _, sale := range sales {
				issued, refused := s.count(sale, wire.Issued), s.number(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND status = 'rejected' AND reason = ?`, sale, OutOfStock)
				claims := s.number(`SELECT COUNT(*) FROM coupon_claims WHERE sale_id = ? AND state = 'new'`, sale)
				if issued != stock || claims != stock || refused != processes-stock {
					t.Errorf("%d claims of a stock of %d: %d are issued, with %d claims, and %d refused for want of stock", processes, stock, issued, claims, refused)
				}
			}
			t.Logf("%d times overtaken, %d batches held and settled again", got.Overtaken, got.Held)
		})
	}
}

// Row C2, row C3: the same through Redis, by the same forty shoppers in every process: what Redis accepted is issued, all
// of it, and nobody has more than the limit.
func TestEightProcessesIssueWhatRedisAccepted(t *testing.T) {
	t.Attr("row", "C2 C3")
	for _, guard := range guards {
		t.Run(guard, func(t *testing.T) {
			s := newShop(t)
			const stock, shoppers, limit = 60, 40, 2
			sale := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Guard: guard, Stock: stock, Limit: limit})
			var plans []plan
			for i := range processes {
				p := plan{Sales: []int64{sale}, Batch: 4}
				for n := range shoppers {
					p.UIDs = append(p.UIDs, fmt.Sprint("u", (n+5*i)%shoppers))
				}
				plans = append(plans, p)
			}
			got := s.claimants(plans)
			if got.Reserved != stock || got.Reserved+got.SoldOut+got.Limit != processes*shoppers {
				t.Errorf("redis said %+v to %d claims of a stock of %d", got, processes*shoppers, stock)
			}
			if issued, all := s.count(sale, wire.Issued), s.number(`SELECT COUNT(*) FROM orders`); issued != stock || all != stock {
				t.Errorf("%d orders of %d are issued, want %d", issued, all, stock)
			}
			if n := s.number(`SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM coupon_claims WHERE sale_id = ? GROUP BY uid) x`, sale); n > limit {
				t.Errorf("somebody has %d claims, the limit is %d", n, limit)
			}
			backendtest.RedisBalanced(t, s.db, s.redis, sale)
			t.Logf("%d times overtaken, %d batches held and settled again", got.Overtaken, got.Held)
		})
	}
}

// readsVersion is in the statement by which the guard version reads the stock row, and in no other.
const readsVersion = "epoch, version FROM sale_stock"

// interrupted is a Book whose every reading of the stock row's version is followed by do, before it learns what it read.
func (s *shop) interrupted(do func()) (*Store, *netfault.Link) {
	s.t.Helper()
	c, err := mysql.ParseDSN(s.dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	cutter := netfault.New(s.t, c.Addr)
	c.Addr = cutter.Addr()
	cutter.BeforeAnswerTo(readsVersion, do)
	db := backendtest.OpenMySQL(s.t, c.FormatDSN(), 4)
	return newBook(db, s.redis, s.clk, backendtest.Log(s.t)), cutter
}

// Row C3: units that went and came back between reading and writing are not taken for unchanged.
func TestTheVersionTellsWhatWentAndCameBack(t *testing.T) {
	t.Attr("row", "C3")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Guard: GuardVersion, Stock: 5})
	order := s.press(sale, "ann", 1, "")
	var reads atomic.Int64
	orders, _ := s.interrupted(func() {
		if reads.Add(1) > 1 {
			return
		}
		for _, n := range []int{3, -3} { // as another order would that is made and cancelled
			s.exec(`UPDATE sale_stock SET available = available - ?, locked = locked + ?, version = version + 1 WHERE sale_id = ?`, n, n, sale)
		}
	})
	if err := orders.Settle(t.Context(), s.outbox(sale)); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(orders.metrics.overtaken); got != 1 || reads.Load() != 2 {
		t.Errorf("got %v overtaken of %d readings, want one of two", got, reads.Load())
	}
	if got := s.stands(order); got != string(wire.Issued) {
		t.Errorf("the order is %q", got)
	}
}

// Row C3: who is overtaken each time gives up after a bounded number of attempts, with nothing done and nobody refused; and
// the batch goes in when it is settled again.
func TestWhoIsOvertakenEachTimeLeavesNothing(t *testing.T) {
	t.Attr("row", "C3")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Guard: GuardVersion, Stock: 5})
	goods := s.sale(backendtest.SaleOptions{Stock: 5})
	orders := []string{s.press(sale, "ann", 1, ""), s.press(sale, "bob", 1, ""), s.press(goods, "ann", 1, "")}
	batch := slices.Concat(s.outbox(sale), s.outbox(goods))
	var reads atomic.Int64
	cut, cutter := s.interrupted(func() {
		reads.Add(1)
		s.exec(`UPDATE sale_stock SET version = version + 1 WHERE sale_id = ?`, sale)
	})
	if err := cut.Settle(t.Context(), batch); !errors.Is(err, errOvertaken) || reads.Load() != versionAttempts {
		t.Errorf("got %v after %d readings, want it given up after %d", err, reads.Load(), versionAttempts)
	}
	for _, table := range []string{"orders", "order_slots", "coupon_claims"} {
		if n := s.number(`SELECT COUNT(*) FROM ` + table); n != 0 {
			t.Errorf("%s has %d rows of a batch that was given up", table, n)
		}
	}
	if n := s.stock(sale); n != 3 {
		t.Errorf("redis has %d units, want the two orders' still held", n)
	}
	cutter.BeforeAnswerTo("", nil)
	if err := cut.Settle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range orders {
		got = append(got, s.stands(id))
	}
	if want := []string{"issued", "issued", "pending_payment"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Row C3: an epoch that was raised between reading and writing is seen, though it is no change of the units: the order is
// adopted into the new one, and issued there.
func TestTheVersionGuardKeepsToTheEpoch(t *testing.T) {
	t.Attr("row", "C3")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Guard: GuardVersion, Stock: 5})
	order := s.press(sale, "ann", 1, "")
	old := s.outbox(sale)
	var reads atomic.Int64
	orders, _ := s.interrupted(func() {
		if reads.Add(1) == 1 {
			s.reload(sale, nil, 5, true) // as if nobody had seen the order
		}
	})
	if err := orders.Settle(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if got := s.stands(order); got != "" {
		t.Errorf("the order of an epoch that is over is %q", got)
	}
	s.settle(sale)
	if got := s.stands(order); got != string(wire.Issued) {
		t.Errorf("the order is %q", got)
	}
}

// Row C1: a claim is valid as long as its campaign said when it was issued, whatever the campaign says later.
func TestAClaimKeepsItsValidity(t *testing.T) {
	t.Attr("row", "C1")
	s := newShop(t)
	first := time.Now().UTC().Add(time.Hour).Truncate(time.Millisecond)
	sale := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, EndsAt: first})
	early := s.ordered(sale, "ann")
	second := first.Add(time.Hour)
	s.exec(`UPDATE sales SET ends_at = ? WHERE id = ?`, second, sale)
	late := s.ordered(sale, "bob")
	for id, want := range map[string]time.Time{early: first, late: second} {
		if n := s.number(`SELECT COUNT(*) FROM coupon_claims WHERE order_id = ? AND valid_until = ?`, id, want); n != 1 {
			t.Errorf("the claim of %s is not valid until %v", id, want)
		}
	}
}

// Row C1: what keeps an order out of MySQL keeps its claims out: they are of one transaction.
func TestNoClaimWithoutItsOrder(t *testing.T) {
	t.Attr("row", "C1")
	for _, guard := range guards {
		t.Run(guard, func(t *testing.T) {
			s := newShop(t)
			sale := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Guard: guard, Stock: 3, Limit: 3})
			first := s.press(sale, "ann", 2, "")
			s.settle(sale)
			late := forged(sale, "bob", queued.Entry{Quantity: 2, Slots: "1,2"}) // one unit is left
			again := s.outbox(sale)
			if err := s.orders.Settle(t.Context(), append(again, late)); err != nil {
				t.Fatal(err)
			}
			if got := s.stands(late.ID); got != "rejected: "+OutOfStock {
				t.Errorf("the order is %q", got)
			}
			if n := s.number(`SELECT COUNT(*) FROM coupon_claims WHERE order_id = ? AND uid = 'ann'`, first); n != 2 {
				t.Errorf("two units are issued, there are %d claims", n)
			}
			if n := s.number(`SELECT COUNT(*) FROM coupon_claims`); n != 2 {
				t.Errorf("there are %d claims, want 2", n)
			}
		})
	}
}

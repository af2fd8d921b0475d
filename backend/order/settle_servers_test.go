//go:build servers

package order

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/ledger"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/netfault"
	"floodgate.internal/shared/wire"
)

// InnoDB shows a commit before it is on disk: an order that somebody else has put into MySQL just now is synced before it is
// acknowledged and retired, and an order that ended just now before its units are given to others.
//
// Rows B3, D9: nothing accepted is lost.
func TestWhatOthersCommittedIsDurableBeforeItCounts(t *testing.T) {
	t.Attr("row", "B3 D9")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 10})
	id := s.press(sale, "alice", 1, "")
	batch := s.outbox(sale)
	changes := func() int64 { return s.number(`SELECT n FROM durable`) }
	steps := []struct {
		name           string
		others, itself func() error
	}{
		{"a delivery of an order that is there", func() error { return s.orders.Settle(t.Context(), batch) }, func() error { return s.orders.Settle(t.Context(), batch) }},
		{"an intent", func() error {
			return store.InTx(t.Context(), s.db, func(tx *sql.Tx) error {
				_, _, err := s.orders.transition(t.Context(), tx, id, s.orders.now(), change{to: wire.Cancelled, kind: ledger.Cancel})
				return err
			})
		}, func() error { _, err := s.orders.intents.Run(t.Context()); return err }},
		{"a cancellation of an order that is cancelled", func() error { return nil }, func() error { _, err := s.orders.Cancel(t.Context(), "alice", id); return err }},
	}
	for _, step := range steps {
		before := changes()
		synced := backendtest.Unsynced(t, s.db, func() {
			if err := step.others(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
		})
		if n := changes(); n != before {
			t.Errorf("before %s: a commit of its own is synced once more", step.name)
		}
		if err := step.itself(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !synced() || changes() != before+1 {
			t.Errorf("%s: what it rests on is synced: %t, by %d commits, want one", step.name, synced(), changes()-before)
		}
	}
	s.balanced(sale)
}

func TestABatchOfManySalesIsOneTransaction(t *testing.T) {
	s := newShop(t)
	goods, two := s.sale(backendtest.SaleOptions{Stock: 50, Price: 250, PayWithin: 90 * time.Second}), s.sale(backendtest.SaleOptions{Stock: 20, Limit: 2})
	coupon := s.sale(backendtest.SaleOptions{Kind: wire.Coupon, Stock: 20, Price: 1})
	var batch []queued.Entry
	for i := range 20 {
		uid := fmt.Sprint("u", i)
		s.press(goods, uid, 1, "key-"+uid)
		s.press(coupon, uid, 1, "")
		if i < 10 {
			s.press(two, uid, 2, "")
		}
	}
	for _, sale := range s.sales {
		batch = append(batch, s.outbox(sale)...)
	}
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })

	one := backendtest.OpenMySQL(t, s.dsn, 1) // the only connection: its counters are those of Settle
	orders := newBook(one, s.redis, s.clk, backendtest.Log(t))
	counters := func() map[string]int64 {
		got := map[string]int64{}
		rows, err := one.QueryContext(t.Context(), `SHOW SESSION STATUS WHERE Variable_name IN ('Com_commit', 'Com_insert', 'Com_update', 'Com_rollback')`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var n int64
			if err := rows.Scan(&name, &n); err != nil {
				t.Fatal(err)
			}
			got[name] = n
		}
		return got
	}
	before := counters()
	if err := orders.Settle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	after := counters()
	for name, want := range map[string]int64{"Com_commit": 1, "Com_insert": 4, "Com_update": 3, "Com_rollback": 0} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("%s: got %d for a batch of 50 orders of 3 sales, want %d", name, got, want)
		}
	}
	if got := []int64{s.count(goods, wire.PendingPayment), s.count(coupon, wire.Issued), s.count(two, wire.PendingPayment)}; !slices.Equal(got, []int64{20, 20, 10}) {
		t.Errorf("got %v orders, want 20, 20, 10", got)
	}
	if n := s.number(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND amount = 250 AND idem_key = CONCAT('key-', uid)
		AND TIMESTAMPDIFF(SECOND, decided_at, pay_before) = 90 AND ABS(TIMESTAMPDIFF(SECOND, created_at, decided_at)) < 60`, goods); n != 20 {
		t.Errorf("got %d goods orders with the right amount, key and times, want 20", n)
	}
	if n := s.number(`SELECT COUNT(*) FROM orders WHERE sale_id = ? AND pay_before IS NULL`, coupon); n != 20 {
		t.Errorf("got %d coupons without a time to pay, want 20", n)
	}
	if n := s.number(`SELECT COUNT(*) FROM order_slots WHERE sale_id = ? AND slot = 2`, two); n != 10 {
		t.Errorf("got %d second slots, want 10", n)
	}
	if err := orders.Retire(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for _, sale := range s.sales {
		if left := s.outbox(sale); len(left) != 0 {
			t.Errorf("sale %d: %d entries are left in the outbox", sale, len(left))
		}
		backendtest.RedisBalanced(t, s.db, s.redis, sale)
	}
}

func TestOverlappingBatchesAtOnceInsertEachOrderOnce(t *testing.T) {
	s := newShop(t)
	sales := []int64{s.sale(backendtest.SaleOptions{Stock: 200}), s.sale(backendtest.SaleOptions{Stock: 200})}
	var all []queued.Entry
	for i := range 300 {
		s.press(sales[i%2], fmt.Sprint("u", i), 1, "")
	}
	for _, sale := range sales {
		all = append(all, s.outbox(sale)...)
	}
	var g errgroup.Group
	for c := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(c)))
		g.Go(func() error {
			for range 6 {
				batch := slices.Clone(all)
				random.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
				batch = batch[:50]
				batch = append(batch, batch[:5]...) // some of them twice
				if err := s.orders.Settle(t.Context(), batch); err != nil {
					return err
				}
			}
			return s.orders.Settle(t.Context(), all)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, sale := range sales {
		if got := s.count(sale, wire.PendingPayment); got != 150 {
			t.Errorf("sale %d: got %d orders, want 150", sale, got)
		}
		s.settle(sale)
		backendtest.RedisBalanced(t, s.db, s.redis, sale)
	}
}

// Rows A3, B5: checked again in the transaction; what fails the check ends in a row that says so.
func TestMySQLIsTheJudgeWhateverRedisSays(t *testing.T) {
	t.Attr("row", "A3 B5")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 10})
	var all []queued.Entry
	for i := range 40 { // nobody ever decremented anything in Redis
		all = append(all, forged(sale, fmt.Sprint("u", i), queued.Entry{}))
	}
	var g errgroup.Group
	for c := range 4 {
		g.Go(func() error {
			mine := slices.Clone(all[c*10 : c*10+10])
			mine = append(mine, all[(c*10+10)%40]) // and one of the next one's
			return s.orders.Settle(t.Context(), mine)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if live, rejected := s.count(sale, wire.PendingPayment), s.number(`SELECT COUNT(*) FROM orders WHERE status = 'rejected' AND reason = 'out_of_stock'`); live != 10 || rejected != 30 {
		t.Errorf("got %d orders and %d rejected for want of stock, want 10 and 30", live, rejected)
	}
	if n := s.number(`SELECT COUNT(DISTINCT order_id) FROM intents WHERE kind = 'release'`); n != 30 {
		t.Errorf("got release intents for %d orders, want 30: one for each that was rejected", n)
	}
	if n := s.number(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 0 {
		t.Errorf("%d intents are open, want none: nothing was to be given back", n)
	}
	if err := s.orders.Settle(t.Context(), all); err != nil || s.count(sale, wire.PendingPayment) != 10 {
		t.Errorf("again: got %v, %d orders; want nil, 10", err, s.count(sale, wire.PendingPayment))
	}
}

func TestAnOrderOfAnOlderEpochIsAdopted(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 2})
	held, lost, late := s.press(sale, "held", 1, "k"), s.press(sale, "lost", 1, ""), forged(sale, "late", queued.Entry{})
	old := s.outbox(sale)
	s.exec(`UPDATE sale_stock SET epoch = 2, token = 2 WHERE sale_id = ?`, sale)
	if err := s.orders.Settle(t.Context(), old); !errors.Is(err, reserve.ErrGateClosed) {
		t.Fatalf("while Redis is in the older epoch: got %v, want it held", err)
	}
	if got := s.stands(held) + s.stands(lost); got != "" {
		t.Fatalf("got %q, want no row of an older epoch", got)
	}
	// Redis comes back with one of the two; the other one's unit is free again.
	var keep []reserve.Held
	for _, e := range old {
		if e.ID == held {
			keep = append(keep, reserve.Held{ID: e.ID, UID: e.UID, Quantity: 1, Slots: e.Slots, Entry: e.Entry, At: e.At, Key: e.Key})
		}
	}
	s.reload(sale, keep, 1, false)
	if err := s.orders.Settle(t.Context(), append(slices.Clone(old), late)); err != nil {
		t.Fatal(err)
	}
	if err := s.orders.Retire(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if got := []string{s.stands(held), s.stands(lost), s.stands(late.ID)}; !slices.Equal(got, []string{"", "", "rejected: out_of_stock"}) {
		t.Errorf("after adoption: got %q, want nothing inserted but the rejection of the third for two units", got)
	}
	now := s.outbox(sale)
	if len(now) != 2 || now[0].Epoch != s.epoch(sale) || now[1].Epoch != s.epoch(sale) {
		t.Fatalf("got outbox %+v, want both orders under epoch %d", now, s.epoch(sale))
	}
	if err := s.orders.Settle(t.Context(), append(now, old...)); err != nil {
		t.Fatal(err)
	}
	if err := s.redis.Unlock(t.Context(), sale, s.number(`SELECT token FROM sale_stock WHERE sale_id = ?`, sale)); err != nil {
		t.Fatal(err)
	}
	s.settle(sale)
	if got := s.count(sale, wire.PendingPayment); got != 2 {
		t.Errorf("got %d orders, want 2", got)
	}
	if n, err := s.orders.intents.Run(t.Context()); n != 1 || err != nil {
		t.Errorf("got %d, %v; want the rejected order's intent done", n, err)
	}
	if _, err := s.orders.Cancel(t.Context(), "held", held); err != nil {
		t.Fatal(err)
	}
	if err := s.orders.Settle(t.Context(), old); err != nil { // delivered once more: MySQL has both, so nothing is adopted
		t.Fatal(err)
	}
	if left := s.outbox(sale); len(left) != 0 || s.stock(sale) != 1 {
		t.Errorf("after a late redelivery: got outbox %+v, stock %d; want none, 1", left, s.stock(sale))
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

func TestAnEpochThatRisesUnderABatchStopsIt(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{})
	s.press(sale, "a", 1, "")
	s.press(sale, "b", 1, "")
	batch := s.outbox(sale)
	stale, err := s.orders.facts(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE sale_stock SET epoch = 2 WHERE sale_id = ?`, sale)
	run := &settling{store: s.orders} // one that read the sale before
	if err := run.insert(t.Context(), batch, stale); err != nil || len(run.closed) != 2 || !errors.Is(run.why, reserve.ErrGateClosed) {
		t.Errorf("got %v, %d that wait; want both to wait for adoption", err, len(run.closed))
	}
	if n := s.number(`SELECT COUNT(*) FROM orders`); n != 0 {
		t.Errorf("got %d rows of an older epoch, want none", n)
	}
	run = &settling{store: s.orders}
	err = run.reject(t.Context(), batch[0], stale[sale], verdict{reason: OutOfStock, unless: 1})
	if err != nil || len(run.closed) != 1 || s.stands(batch[0].ID) != "" {
		t.Errorf("a rejection decided in the older epoch: got %v, %d that wait, order %q; want it settled anew", err, len(run.closed), s.stands(batch[0].ID))
	}
}

func TestAnOrderThatEndedAndWasAdoptedAllTheSameGivesItsUnitBack(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 1})
	id := s.press(sale, "u", 1, "")
	entry := s.outbox(sale)[0]
	s.settle(sale)
	if _, err := s.orders.Cancel(t.Context(), "u", id); err != nil {
		t.Fatal(err)
	}
	// A consumer that looked in MySQL before all this, and slept, adopts it now.
	if answers, err := s.redis.Adopt(t.Context(), []queued.Entry{entry}, map[int64]int64{sale: 1}); err != nil || answers[0] != lua.Adopted {
		t.Fatalf("got %s, %v", answers, err)
	}
	if got := s.stock(sale); got != 0 {
		t.Fatalf("got stock %d, want 0: the unit is stranded", got)
	}
	s.settle(sale)
	if got := s.stock(sale); got != 1 || s.stands(id) != "cancelled" {
		t.Errorf("got stock %d, order %s; want 1, cancelled", got, s.stands(id))
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

// While a sale is reconciled thousands of entries of orders that ended may come again: what they hold is written down at once, once.
func TestOrdersThatEndedAreReleasedLaterWhereTheGateIsClosed(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 9})
	var entries []queued.Entry
	for i := range 3 {
		uid := fmt.Sprint("u", i)
		id := s.press(sale, uid, 1, "")
		entries = append(entries, s.outbox(sale)...)
		s.settle(sale)
		if _, err := s.orders.Cancel(t.Context(), uid, id); err != nil {
			t.Fatal(err)
		}
	}
	if answers, err := s.redis.Adopt(t.Context(), entries, map[int64]int64{sale: 1}); err != nil || answers[2] != lua.Adopted {
		t.Fatalf("got %s, %v", answers, err)
	}
	if _, err := s.redis.Shut(t.Context(), sale, 1000); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.orders.Settle(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
		if n := s.number(`SELECT COUNT(*) FROM intents WHERE done_at IS NULL`); n != 3 {
			t.Errorf("%d intents are open, want 3", n)
		}
	}
}

// Rows A4, E7: MySQL keeps the limit by itself, whatever comes from upstream.
func TestLimitAndIdempotencyKeyAreDecidedByUniqueKeys(t *testing.T) {
	t.Attr("row", "A4 E7")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 10, Limit: 2})
	first := forged(sale, "u", queued.Entry{Quantity: 2, Slots: "1,2", Key: "k"})
	second := forged(sale, "u", queued.Entry{Slots: "2", Key: "other"})
	third := forged(sale, "u", queued.Entry{Slots: "3", Key: "k"})
	both := forged(sale, "u", queued.Entry{Slots: "1", Key: "k"})
	elsewhere := forged(sale, "v", queued.Entry{Slots: "1", Key: "k"})
	for range 2 { // the second time everything is decided
		if err := s.orders.Settle(t.Context(), []queued.Entry{first, second, third, both, elsewhere}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ id, want string }{
		{first.ID, "pending_payment"}, {second.ID, "rejected: limit"}, {third.ID, "rejected: duplicate_key"},
		{both.ID, "rejected: duplicate_key"}, {elsewhere.ID, "pending_payment"},
	} {
		if got := s.stands(c.id); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if n := s.number(`SELECT COUNT(*) FROM orders WHERE idem_key = 'other' AND status = 'rejected'`); n != 1 {
		t.Errorf("the rejected order's own key is not kept")
	}
}

// Row B5: the culprit alone is rejected, by name.
func TestOnePoisonInABatchKeepsNobodyElse(t *testing.T) {
	t.Attr("row", "B5")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 100})
	s.exec(`ALTER TABLE orders ADD CONSTRAINT poison CHECK (uid <> 'poison' OR status = 'rejected'), ADD CONSTRAINT deadly CHECK (uid <> 'deadly')`)
	var batch []queued.Entry
	for i := range 64 {
		uid := fmt.Sprint("u", i)
		switch i {
		case 17:
			uid = "poison"
		case 40:
			uid = "deadly"
		}
		s.press(sale, uid, 1, "")
	}
	batch = s.outbox(sale)
	nonsense := forged(sale, "w", queued.Entry{Slots: "1,1"})
	nowhere := forged(sale+1000, "w", queued.Entry{})
	unreadable := forged(sale, "w", queued.Entry{ID: "no order id"})
	batch = append(batch, nonsense, nowhere, unreadable)
	err := s.orders.Settle(t.Context(), batch)
	var poison *queued.PoisonError
	if !errors.As(err, &poison) || len(poison.Entries) != 2 {
		t.Fatalf("got %v, want a queued.PoisonError of two entries", err)
	}
	for _, e := range poison.Entries {
		if e.UID != "deadly" && e.ID != "no order id" {
			t.Errorf("%+v is among the poison", e)
		}
	}
	for _, e := range batch {
		want := map[string]string{"poison": "rejected: refused", "deadly": "", "w": "rejected: malformed"}[e.UID]
		switch {
		case e.ID == nowhere.ID:
			want = "rejected: unknown_sale"
		case e.ID == unreadable.ID:
			want = ""
		case want == "" && e.UID != "deadly":
			want = "pending_payment"
		}
		if got := s.stands(e.ID); got != want {
			t.Errorf("order of %s: got %q, want %q", e.UID, got, want)
		}
	}
	if got := s.stock(sale); got != 37 {
		t.Errorf("got stock %d in Redis, want 37: 62 sold, the poisoned one's unit is back, the deadly one's waits for its dead letter", got)
	}
}

func TestRejectOfADeadLetterDoesNotUndoAGoodDelivery(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{})
	s.press(sale, "a", 1, "ka")
	s.press(sale, "b", 1, "kb")
	batch := s.outbox(sale)
	if err := s.orders.Settle(t.Context(), batch[:1]); err != nil {
		t.Fatal(err)
	}
	for _, e := range batch {
		if err := s.orders.Reject(t.Context(), e, "poison"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.orders.Settle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if got := []string{s.stands(batch[0].ID), s.stands(batch[1].ID)}; !slices.Equal(got, []string{"pending_payment", "rejected: poison"}) {
		t.Errorf("got %q; want what was decided first", got)
	}
	s.settle(sale)
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

// Row B3: a COMMIT whose answer is lost loses no order, and makes none twice.
func TestALostCommitIsReadBack(t *testing.T) {
	t.Attr("row", "B3")
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 20})
	for i := range 20 {
		s.press(sale, fmt.Sprint("u", i), 1, "")
	}
	c, err := mysql.ParseDSN(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	cut := netfault.New(t, c.Addr)
	c.Addr = cut.Addr()
	orders := newBook(backendtest.OpenMySQL(t, c.FormatDSN(), 4), s.redis, s.clk, backendtest.Log(t))
	batch := s.outbox(sale)
	cut.LoseAnswerTo("\x03COMMIT")
	if err := orders.Settle(t.Context(), batch); err != nil && !errors.Is(err, store.ErrUnknown) {
		t.Fatalf("got %v, want nil or ErrUnknown", err)
	} else if err != nil { // not to be seen yet: hold and call again, as a consumer does
		if err := orders.Settle(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.count(sale, wire.PendingPayment); got != 20 {
		t.Errorf("got %d orders, want 20", got)
	}
	s.settle(sale)

	id := batch[0].ID
	cut.LoseAnswerTo("\x03COMMIT")
	o, err := orders.Pay(t.Context(), batch[0].UID, id)
	for errors.Is(err, store.ErrUnknown) {
		o, err = orders.Pay(t.Context(), batch[0].UID, id)
	}
	if err != nil || o.Status != wire.Paid {
		t.Errorf("a payment whose COMMIT was lost: got %+v, %v; want it paid", o, err)
	}
	backendtest.RedisBalanced(t, s.db, s.redis, sale)
}

func TestEverythingWorksWithOneConnection(t *testing.T) {
	s := newShop(t)
	sale := s.sale(backendtest.SaleOptions{Stock: 3, PayWithin: time.Minute})
	s.orders = newBook(backendtest.OpenMySQL(t, s.dsn, 1), s.redis, s.clk, backendtest.Log(t))
	paid, cancelled, expired := s.ordered(sale, "a"), s.ordered(sale, "b"), s.ordered(sale, "c")
	if err := s.orders.Settle(t.Context(), []queued.Entry{forged(sale, "d", queued.Entry{}), forged(sale, "d", queued.Entry{Epoch: 9}), forged(sale, "e", queued.Entry{Slots: "x"})}); !errors.Is(err, reserve.ErrGateClosed) && err != nil {
		t.Fatal(err)
	}
	if _, err := s.orders.Pay(t.Context(), "a", paid); err != nil {
		t.Fatal(err)
	}
	if _, err := s.orders.Cancel(t.Context(), "b", cancelled); err != nil {
		t.Fatal(err)
	}
	s.orders.clk = s.clockAhead(2 * time.Minute)
	if n, err := s.orders.Expire(t.Context()); n != 1 || err != nil {
		t.Errorf("expire: got %d, %v; want 1", n, err)
	}
	if _, err := s.orders.intents.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := []string{s.stands(paid), s.stands(cancelled), s.stands(expired)}; !slices.Equal(got, []string{"paid", "cancelled", "expired"}) {
		t.Errorf("got %q", got)
	}
}

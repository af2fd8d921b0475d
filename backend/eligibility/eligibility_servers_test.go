//go:build servers

package eligibility

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// office is where the lists are changed.
type office struct {
	t  *testing.T
	db *sql.DB
}

func newOffice(t *testing.T) *office { return &office{t, backendtest.MySQL(t)} }

func (o *office) in(f func(context.Context, *sql.Tx) (State, Changed, error)) (before State, done Changed, err error) {
	o.t.Helper()
	err = store.InTx(o.t.Context(), o.db, func(tx *sql.Tx) (err error) {
		before, done, err = f(o.t.Context(), tx)
		return err
	})
	return before, done, err
}

func (o *office) change(list int64, add, remove []string) Changed {
	o.t.Helper()
	_, done, err := o.in(func(ctx context.Context, tx *sql.Tx) (State, Changed, error) {
		return Change(ctx, tx, list, time.Now().UTC(), add, remove)
	})
	if err != nil {
		o.t.Fatalf("change list %d: %v", list, err)
	}
	return done
}

func (o *office) replace(list int64, uids ...string) Changed {
	o.t.Helper()
	_, done, err := o.in(func(ctx context.Context, tx *sql.Tx) (State, Changed, error) {
		return Replace(ctx, tx, list, time.Now().UTC(), uids)
	})
	if err != nil {
		o.t.Fatalf("replace list %d: %v", list, err)
	}
	return done
}

func (o *office) lift(list int64) Changed {
	o.t.Helper()
	_, done, err := o.in(func(ctx context.Context, tx *sql.Tx) (State, Changed, error) {
		return Lift(ctx, tx, list, time.Now().UTC())
	})
	if err != nil {
		o.t.Fatalf("lift list %d: %v", list, err)
	}
	return done
}

func (o *office) end(list int64) {
	o.t.Helper()
	if err := store.InTx(o.t.Context(), o.db, func(tx *sql.Tx) error { return End(o.t.Context(), tx, list) }); err != nil {
		o.t.Fatal(err)
	}
}

func (o *office) exec(query string, args ...any) {
	o.t.Helper()
	if _, err := o.db.ExecContext(o.t.Context(), query, args...); err != nil {
		o.t.Fatal(err)
	}
}

// process is another api process's memory.
func (o *office) process() *Lists {
	return New(Config{DB: o.db, Log: backendtest.Log(o.t), Register: prometheus.NewRegistry()})
}

func (o *office) fresh(l *Lists) {
	o.t.Helper()
	if err := l.Refresh(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

func some(from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf("u%06d", i))
	}
	return list
}

// Row D13: lists that change while the sale runs, as every process sees them.
func TestWhoMayBuy(t *testing.T) {
	t.Attr("row", "D13")
	o := newOffice(t)
	sale, other := backendtest.Sale(t, o.db, backendtest.SaleOptions{}), backendtest.Sale(t, o.db, backendtest.SaleOptions{})
	l := o.process()
	want := func(sale int64, uid string, want Refusal) {
		t.Helper()
		o.fresh(l)
		if got := l.Refuse(sale, uid); got != want {
			t.Errorf("uid %s in sale %d: got %q, want %q", uid, sale, got, want)
		}
	}
	if l.Ready() {
		t.Error("ready before anything was read")
	}
	want(sale, "ann", "")
	if !l.Ready() {
		t.Error("not ready after it was read")
	}
	if done := o.change(Bans, []string{"bob", "bob", "cyd"}, nil); !slices.Equal(done.Added, []string{"bob", "cyd"}) || done.Size != 2 || done.Version != 1 {
		t.Errorf("got %+v", done)
	}
	want(sale, "bob", Banned)
	want(other, "bob", Banned)
	want(sale, "ann", "")
	if done := o.change(Bans, []string{"bob"}, []string{"dan"}); len(done.Added)+len(done.Removed) != 0 || done.Version != 1 {
		t.Errorf("what changes nothing: got %+v", done)
	}
	if done := o.change(Bans, nil, []string{"bob"}); done.Size != 1 || !slices.Equal(done.Removed, []string{"bob"}) {
		t.Errorf("got %+v", done)
	}
	want(sale, "bob", "")

	if _, _, err := o.in(func(ctx context.Context, tx *sql.Tx) (State, Changed, error) {
		return Change(ctx, tx, sale, time.Now().UTC(), []string{"ann"}, nil)
	}); !errors.Is(err, ErrInactive) {
		t.Errorf("a sale without a list: got %v", err)
	}
	o.replace(sale, "ann", "cyd")
	want(sale, "ann", "")
	want(sale, "bob", NotListed)
	want(sale, "cyd", Banned) // a ban is stronger
	want(other, "bob", "")
	o.change(sale, []string{"bob"}, []string{"ann"})
	want(sale, "bob", "")
	want(sale, "ann", NotListed)
	o.replace(sale, "eve")
	want(sale, "eve", "")
	want(sale, "bob", NotListed)
	o.replace(sale)
	want(sale, "eve", NotListed) // nobody
	o.lift(sale)
	want(sale, "eve", "")
	if done := o.lift(sale); done.Version != 5 {
		t.Errorf("lifted again: got %+v", done)
	}
	o.replace(sale, "eve")
	want(sale, "ann", NotListed)

	// The list of an archived sale does not count any more.
	o.end(sale)
	o.end(other) // which has none
	want(sale, "ann", "")
	if n := l.uids(); n != 1 {
		t.Errorf("%d uids in memory, want the one ban", n)
	}
	s, uids, err := Page(t.Context(), o.db, sale, "", 10)
	if err != nil || s.Active || s.Size != 1 || !slices.Equal(uids, []string{"eve"}) {
		t.Errorf("got %+v, %v, %v; MySQL keeps it", s, uids, err)
	}
}

// Processes that read when they like know what MySQL has, whatever was done in between.
func TestProcessesFollowAnyChanges(t *testing.T) {
	o := newOffice(t)
	sale := backendtest.Sale(t, o.db, backendtest.SaleOptions{})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	processes := []*Lists{o.process(), o.process(), o.process()}
	domain := some(0, 12)
	pick := func() (out []string) {
		for _, uid := range domain {
			if random.IntN(3) == 0 {
				out = append(out, uid)
			}
		}
		return out
	}
	bans, only, active := map[string]bool{}, map[string]bool{}, false
	for range 150 {
		add, remove := pick(), pick()
		remove = slices.DeleteFunc(remove, func(uid string) bool { return slices.Contains(add, uid) })
		change := func(list int64, model map[string]bool) {
			done := o.change(list, add, remove)
			for _, uid := range add {
				model[uid] = true
			}
			for _, uid := range remove {
				delete(model, uid)
			}
			if int(done.Size) != len(model) {
				t.Fatalf("list %d has size %d, want %d", list, done.Size, len(model))
			}
		}
		switch n := random.IntN(10); {
		case n < 4:
			change(Bans, bans)
		case n < 7 && active:
			change(sale, only)
		case n < 9:
			o.replace(sale, add...)
			active = true
			clear(only)
			for _, uid := range add {
				only[uid] = true
			}
		default:
			o.lift(sale)
			active = false
			clear(only)
		}
		if random.IntN(4) == 0 {
			if _, err := Prune(t.Context(), o.db); err != nil {
				t.Fatal(err)
			}
		}
		for i, l := range processes {
			if random.IntN(i+1) > 0 {
				continue // this one looks later
			}
			o.fresh(l)
			for _, uid := range domain {
				want := Refusal("")
				switch {
				case bans[uid]:
					want = Banned
				case active && !only[uid]:
					want = NotListed
				}
				if got := l.Refuse(sale, uid); got != want {
					t.Fatalf("process %d, uid %s: got %q, want %q", i, uid, got, want)
				}
			}
		}
	}
	for n := 1; n > 0; {
		var err error
		if n, err = Prune(t.Context(), o.db); err != nil {
			t.Fatal(err)
		}
	}
	var stale int
	if err := o.db.QueryRow(`SELECT COUNT(*) FROM uid_list_members m JOIN uid_lists l ON l.list_id = m.list_id WHERE m.generation < l.generation`).Scan(&stale); err != nil || stale != 0 {
		t.Errorf("%d members of old generations are left, %v", stale, err)
	}
}

// A list that takes several pages to load, and changes that take several to follow.
func TestLargeListsAreReadInPages(t *testing.T) {
	o := newOffice(t)
	sale := backendtest.Sale(t, o.db, backendtest.SaleOptions{})
	early := o.process()
	o.replace(sale)
	o.fresh(early)
	const all = loadPage + 2*MaxChunk
	for chunk := range slices.Chunk(some(0, all), MaxChunk) {
		o.change(sale, chunk, nil)
	}
	o.change(sale, nil, some(5, 10))
	late := o.process()
	for name, l := range map[string]*Lists{"followed": early, "loaded": late} {
		o.fresh(l)
		if n := l.uids(); n != all-5 {
			t.Errorf("%s: %d uids, want %d", name, n, all-5)
		}
		for i, uid := range some(0, all) {
			if got := l.Refuse(sale, uid); (got == NotListed) != (i >= 5 && i < 10) {
				t.Fatalf("%s: uid %s: got %q", name, uid, got)
			}
		}
	}
	var pages []string
	for after := ""; ; after = pages[len(pages)-1] {
		_, uids, err := Page(t.Context(), o.db, sale, after, 3000)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, uids...)
		if len(uids) < 3000 {
			break
		}
	}
	if want := append(some(0, 5), some(10, all)...); !slices.Equal(pages, want) {
		t.Errorf("got %d uids in pages, want %d, ascending", len(pages), len(want))
	}
	for uid, want := range map[string]bool{"u000004": true, "u000005": false, "nobody": false} {
		if _, has, err := Has(t.Context(), o.db, sale, uid); has != want || err != nil {
			t.Errorf("uid %s: got %v, %v", uid, has, err)
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	o := newOffice(t)
	sale, other := backendtest.Sale(t, o.db, backendtest.SaleOptions{}), backendtest.Sale(t, o.db, backendtest.SaleOptions{})
	o.replace(sale, some(0, 2)...)
	o.replace(other, "x")
	full := func(list int64, add []string, all bool) {
		t.Helper()
		_, _, err := o.in(func(ctx context.Context, tx *sql.Tx) (State, Changed, error) {
			return Change(ctx, tx, list, time.Now().UTC(), add, nil)
		})
		var f *FullError
		if !errors.As(err, &f) || !errors.Is(err, ErrFull) || f.All != all {
			t.Errorf("got %v, want a full list", err)
		}
	}
	o.exec(`UPDATE uid_lists SET size = ? WHERE list_id = ?`, MaxList-1, sale)
	full(sale, some(10, 12), false)
	o.change(sale, some(10, 11), nil)
	full(sale, some(12, 13), false)
	if done := o.change(sale, nil, some(0, 1)); done.Size != MaxList-1 {
		t.Errorf("got %+v", done)
	}
	for range 2 {
		o.replace(backendtest.Sale(t, o.db, backendtest.SaleOptions{}), "x")
	}
	o.exec(`UPDATE uid_lists SET size = ? WHERE list_id NOT IN (?, ?)`, MaxList, sale, other) // of the bans and two sales
	full(other, []string{"y", "z"}, true)
	o.change(other, nil, []string{"x"})
	o.change(other, []string{"x"}, nil) // the last one that there is room for
	full(other, []string{"y"}, true)
	o.end(sale)
	o.change(other, []string{"y"}, nil)

	// Written by hand past all bounds: what a process knows stays.
	l := o.process()
	o.exec(`UPDATE uid_lists SET size = 1, active = TRUE`)
	o.fresh(l)
	o.exec(`UPDATE uid_lists SET size = ? WHERE list_id = ?`, MaxAll+1, other)
	if err := l.Refresh(t.Context()); err == nil || l.Refuse(other, "y") != "" || l.Refuse(other, "nobody") != NotListed {
		t.Errorf("got %v; the list that it knew is not in force", err)
	}
}

func TestRunIsWokenAndOutlivesMySQL(t *testing.T) {
	o := newOffice(t)
	sale := backendtest.Sale(t, o.db, backendtest.SaleOptions{})
	l := o.process()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, ok func() bool) {
		t.Helper()
		limit, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		look := time.NewTicker(5 * time.Millisecond)
		defer look.Stop()
		for !ok() {
			select {
			case <-limit.Done():
				t.Fatalf("never: %s", what)
			case <-look.C:
			}
		}
	}
	o.change(Bans, []string{"bob"}, nil)
	l.Wake()
	until("bob is banned", func() bool { return l.Refuse(sale, "bob") == Banned })
	o.exec(`RENAME TABLE uid_lists TO uid_lists_away`)
	until("a reading fails", func() bool { return testutil.ToFloat64(l.failures) > 0 })
	if l.Refuse(sale, "bob") != Banned || !l.Ready() {
		t.Error("what was known is forgotten")
	}
	o.exec(`RENAME TABLE uid_lists_away TO uid_lists`)
	o.change(Bans, nil, []string{"bob"})
	until("bob may buy again", func() bool { return l.Refuse(sale, "bob") == "" })
}

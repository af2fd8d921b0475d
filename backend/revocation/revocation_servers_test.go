//go:build servers

package revocation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func add(t *testing.T, db *sql.DB, s Subject, before, until time.Time) (old *Entry, e Entry, changed bool, err error) {
	t.Helper()
	err = store.InTx(t.Context(), db, func(tx *sql.Tx) (err error) {
		old, e, changed, err = Add(t.Context(), tx, s, before, until, now())
		return err
	})
	return old, e, changed, err
}

func remove(t *testing.T, db *sql.DB, s Subject) (e Entry, err error) {
	t.Helper()
	err = store.InTx(t.Context(), db, func(tx *sql.Tx) (err error) {
		e, err = Remove(t.Context(), tx, s)
		return err
	})
	return e, err
}

func newList(t *testing.T, db *sql.DB) *List {
	return New(Config{DB: db, Clock: new(clock.Clock), Keep: time.Hour, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
}

// subjects are those of an answer, "-" before one that was taken back.
func subjects(r wire.Revocations) string {
	var list []string
	for _, e := range r.Entries {
		s := e.JTI + e.UID
		if e.Gone {
			s = "-" + s
		}
		list = append(list, s)
	}
	return strings.Join(list, " ")
}

func TestAnEntryIsNeverWeakened(t *testing.T) {
	db := backendtest.MySQL(t)
	at := now()
	bob, until := Subject{UID: "bob"}, at.Add(time.Hour)
	if old, e, changed, err := add(t, db, bob, at, until); err != nil || old != nil || !changed || e.UID != "bob" || !e.Before.Equal(at) || !e.Until.Equal(until) {
		t.Fatalf("got %+v, %+v, %v, %v", old, e, changed, err)
	}
	if old, e, changed, err := add(t, db, bob, at.Add(-time.Minute), at.Add(time.Minute)); err != nil || changed || old == nil || !e.Before.Equal(at) || !e.Until.Equal(until) {
		t.Errorf("an earlier one: got %+v, %+v, %v, %v", old, e, changed, err)
	}
	if old, e, changed, err := add(t, db, bob, at.Add(time.Minute), until.Add(time.Minute)); err != nil || !changed || old == nil || !old.Before.Equal(at) || !e.Before.Equal(at.Add(time.Minute)) || !e.Until.Equal(until.Add(time.Minute)) {
		t.Errorf("a later one: got %+v, %+v, %v, %v", old, e, changed, err)
	}
	one := Subject{JTI: "bob"} // the jti bob is nobody's uid
	if old, e, changed, err := add(t, db, one, at, until); err != nil || old != nil || !changed || e.JTI != "bob" || e.UID != "" || e.Before != nil {
		t.Errorf("got %+v, %+v, %v, %v", old, e, changed, err)
	}
	if _, _, changed, err := add(t, db, one, at, until.Add(time.Hour)); err != nil || changed {
		t.Errorf("the same jti: got %v, %v", changed, err)
	}
	if e, err := remove(t, db, bob); err != nil || e.UID != "bob" {
		t.Errorf("got %+v, %v", e, err)
	}
	for _, s := range []Subject{bob, {UID: "nobody"}, {JTI: "nobody"}} {
		if _, err := remove(t, db, s); !errors.Is(err, ErrUnknown) {
			t.Errorf("%+v: got %v", s, err)
		}
		if list, err := Find(t.Context(), db, s, at); err != nil || len(list) != 0 {
			t.Errorf("%+v: got %+v, %v", s, list, err)
		}
	}
	// It comes back as it is asked for, and is not shorter than it was.
	if old, e, changed, err := add(t, db, bob, at.Add(-time.Minute), at.Add(time.Minute)); err != nil || old != nil || !changed || !e.Before.Equal(at.Add(-time.Minute)) || !e.Until.Equal(until.Add(time.Minute)) {
		t.Errorf("again: got %+v, %+v, %v, %v", old, e, changed, err)
	}
	list, err := Page(t.Context(), db, 1<<62, 10, at)
	if err != nil || len(list) != 2 || list[0].JTI != "bob" || list[1].UID != "bob" {
		t.Errorf("got %+v, %v", list, err)
	}
	if list, err := Page(t.Context(), db, list[0].ID, 10, at); err != nil || len(list) != 1 || list[0].UID != "bob" {
		t.Errorf("the next page: got %+v, %v", list, err)
	}
	if list, err := Page(t.Context(), db, 1<<62, 10, until.Add(time.Minute)); err != nil || len(list) != 0 {
		t.Errorf("after their time: got %+v, %v", list, err)
	}
}

// Whoever follows has what is in force, by pieces or whole, whatever was changed and taken back meanwhile.
func TestTheFeed(t *testing.T) {
	db := backendtest.MySQL(t)
	l, at := newList(t, db), now()
	if l.Ready() {
		t.Error("ready before it was read")
	}
	refresh := func() {
		t.Helper()
		if err := l.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	empty := l.Feed(t.Context(), -1, time.Hour)
	if !l.Ready() || !empty.Full || empty.Version != 0 || len(empty.Entries) != 0 || empty.KeepMS != time.Hour.Milliseconds() || empty.Now.IsZero() {
		t.Errorf("got %+v", empty)
	}
	add(t, db, Subject{UID: "bob"}, at, at.Add(time.Hour))
	add(t, db, Subject{JTI: "a"}, at, at.Add(time.Hour))
	refresh()
	both := l.Feed(t.Context(), 0, time.Hour)
	if both.Full || both.Version != 2 || len(both.Entries) != 2 {
		t.Errorf("got %+v", both)
	}
	for _, e := range both.Entries {
		if e.UID == "bob" && (!e.Before.Equal(at) || !e.Until.Equal(at.Add(time.Hour))) || e.JTI == "a" && !e.Before.IsZero() {
			t.Errorf("got %+v", e)
		}
	}
	remove(t, db, Subject{UID: "bob"})
	refresh()
	if got := l.Feed(t.Context(), 2, time.Hour); got.Full || subjects(got) != "-bob" {
		t.Errorf("what changed: got %+v", got)
	}
	if got := l.Feed(t.Context(), -1, time.Hour); !got.Full || subjects(got) != "a" {
		t.Errorf("the whole: got %+v", got)
	}
	if got := l.Feed(t.Context(), 99, time.Hour); !got.Full || got.Version != 3 {
		t.Errorf("a version to come: got %+v", got)
	}
	if got := l.Feed(t.Context(), 3, 0); got.Full || len(got.Entries) != 0 || got.Version != 3 {
		t.Errorf("no news: got %+v", got)
	}
	// Another process reads the same.
	other := newList(t, db)
	if err := other.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := other.Feed(t.Context(), 2, time.Hour); got.Full || subjects(got) != "-bob" {
		t.Errorf("another process: got %+v", got)
	}
	// MySQL was set back.
	if _, err := db.Exec(`DELETE FROM revocations WHERE version > 1`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`UPDATE revocation_versions SET version = 1`); err != nil {
		t.Fatal(err)
	}
	refresh()
	if got := l.Feed(t.Context(), 3, time.Hour); !got.Full || got.Version != 1 || len(got.Entries) != 0 {
		t.Errorf("after MySQL was set back: got %+v", got)
	}
}

// A change wakes whoever waits, in whichever process it was made, by the process's own look at MySQL.
func TestAChangeReachesWhoWaits(t *testing.T) {
	db := backendtest.MySQL(t)
	l := newList(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	for l.Feed(t.Context(), 0, 10*time.Millisecond); !l.Ready(); {
		l.Feed(t.Context(), 0, 10*time.Millisecond)
	}
	got := make(chan wire.Revocations, 1)
	go func() { got <- l.Feed(context.Background(), 0, time.Minute) }()
	at := now()
	if _, _, _, err := add(t, db, Subject{JTI: "a"}, at, at.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r := <-got; subjects(r) != "a" {
		t.Errorf("got %+v", r)
	}
	stopping, stop := context.WithCancel(context.Background())
	stop()
	if r := l.Feed(stopping, 1, time.Minute); len(r.Entries) != 0 {
		t.Errorf("while the server stops: got %+v", r)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheListIsBoundedAndPruned(t *testing.T) {
	db := backendtest.MySQL(t)
	at := now()
	until := at.Add(time.Hour)
	const rows = 5000
	for n := 0; n < wire.MaxRevocations; n += rows {
		values := make([]string, rows)
		for i := range values {
			values[i] = fmt.Sprintf("('jti', 'j%d', NOW(3), ?, FALSE, %d, NOW(3))", n+i, n+i+1)
		}
		args := make([]any, rows)
		for i := range args {
			args[i] = until
		}
		if _, err := db.Exec(`INSERT INTO revocations (kind, subject, before_at, until_at, gone, version, made_at) VALUES `+strings.Join(values, ", "), args...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(`UPDATE revocation_versions SET version = ?`, wire.MaxRevocations); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := add(t, db, Subject{JTI: "one more"}, at, until); !errors.Is(err, ErrFull) {
		t.Errorf("one more: got %v", err)
	}
	if _, err := remove(t, db, Subject{JTI: "j7"}); err != nil {
		t.Error(err)
	}
	if _, _, changed, err := add(t, db, Subject{JTI: "j7"}, at, until); err != nil || !changed {
		t.Errorf("one that is there: got %v, %v", changed, err)
	}
	l := newList(t, db)
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.Feed(t.Context(), -1, 0); len(got.Entries) != wire.MaxRevocations {
		t.Errorf("%d entries", len(got.Entries))
	}
	if got := l.Feed(t.Context(), wire.MaxRevocations, 0); len(got.Entries) != 1 {
		t.Errorf("%d entries have changed", len(got.Entries))
	}
	if n, err := Prune(t.Context(), db, until.Add(pruneAfter)); err != nil || n != 0 {
		t.Errorf("before their time: %d pruned, %v", n, err)
	}
	pruned := 0
	for {
		n, err := Prune(t.Context(), db, until.Add(pruneAfter+time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if pruned += n; n == 0 {
			break
		}
	}
	if pruned != wire.MaxRevocations {
		t.Errorf("%d pruned", pruned)
	}
	if _, _, _, err := add(t, db, Subject{JTI: "one more"}, at, until); err != nil {
		t.Errorf("after the prune: %v", err)
	}
}

// Changes that are made at once get versions in the order in which they are committed: a follower misses none.
func TestManyChangesAtOnce(t *testing.T) {
	db := backendtest.MySQL(t)
	l, at := newList(t, db), now()
	const each, makers = 10, 8
	errs := make(chan error, makers)
	for m := range makers {
		go func() {
			var err error
			for i := range each {
				err = errors.Join(err, store.InTx(context.Background(), db, func(tx *sql.Tx) error {
					_, _, _, err := Add(context.Background(), tx, Subject{UID: fmt.Sprintf("u%d-%d", m, i)}, at, at.Add(time.Hour), at)
					return err
				}))
			}
			errs <- err
		}()
	}
	have, version := map[string]bool{}, int64(0)
	for done := 0; len(have) < each*makers; {
		select {
		case err := <-errs:
			if err != nil {
				t.Fatal(err)
			}
			done++
		default:
		}
		finished := done == makers
		if err := l.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := l.Feed(t.Context(), version, 0)
		for _, e := range got.Entries {
			have[e.UID] = true
		}
		if version = got.Version; finished {
			break
		}
	}
	if len(have) != each*makers || version != each*makers {
		t.Errorf("a follower has %d of %d, version %d", len(have), each*makers, version)
	}
}

//go:build servers

package lock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/store"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for, and never decides it; hours is a lease whose end no test sees.
const (
	patience = time.Minute
	hours    = 5 * time.Hour
)

func newLocks(t *testing.T) *Locks {
	s := backendtest.Redis(t).Client()
	return New(s, prometheus.NewRegistry())
}

// take acquires, which must succeed.
func take(t *testing.T, l *Locks, name string, owner Owner, lease, wait time.Duration) *Hold {
	t.Helper()
	h, err := l.Acquire(t.Context(), name, owner, lease, wait)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func release(t *testing.T, h *Hold) {
	t.Helper()
	if err := h.Release(); err != nil {
		t.Error(err)
	}
}

// refused asks without waiting, which must be refused, and returns the lease that is left.
func refused(t *testing.T, l *Locks, name string) time.Duration {
	t.Helper()
	_, err := l.Acquire(t.Context(), name, NewOwner(), hours, 0)
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("got %v, want it refused", err)
	}
	return held.Left
}

// until asks again and again whether something has come about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it never came about: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// ended waits for the end of a hold and returns why it ended.
func ended(t *testing.T, h *Hold) error {
	t.Helper()
	select {
	case <-h.Context().Done():
		return context.Cause(h.Context())
	case <-time.After(patience):
		t.Fatal("the hold does not end")
		return nil
	}
}

func pttl(t *testing.T, l *Locks, key string) time.Duration {
	t.Helper()
	ms, err := l.client.Do(t.Context(), l.client.B().Pttl().Key(key).Build()).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

func forget(t *testing.T, l *Locks, keys ...string) {
	t.Helper()
	if err := l.client.Do(t.Context(), l.client.B().Del().Key(keys...).Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

// Rows A5 and A6: one owner at a time; who is refused learns the lease that is left; nobody frees another's lock.
func TestALockIsExclusive(t *testing.T) {
	t.Attr("row", "A5 A6")
	a, b := newLocks(t), (*Locks)(nil)
	b = New(a.client, prometheus.NewRegistry()) // another process
	h := take(t, a, "door", NewOwner(), hours, 0)
	if left := refused(t, b, "door"); left > hours || left < hours-time.Hour {
		t.Errorf("got a lease of %v left, want about %v", left, hours)
	}
	other := take(t, b, "window", NewOwner(), hours, 0) // another lock
	forget(t, b, b.holder("window"))
	thief := take(t, b, "window", NewOwner(), hours, 0)
	if err := other.Release(); !errors.Is(err, ErrNotOwner) {
		t.Errorf("released by who lost it: got %v, want %v", err, ErrNotOwner)
	}
	if left := refused(t, a, "window"); left <= 0 {
		t.Errorf("the lock that is another's now has %v left", left)
	}
	release(t, thief)
	release(t, h)
	if err := ended(t, h); !errors.Is(err, ErrReleased) {
		t.Errorf("the context of a released hold: got %v", err)
	}
	next := take(t, b, "door", NewOwner(), hours, 0)
	if next.Fence() <= h.Fence() {
		t.Errorf("got fence %d after %d", next.Fence(), h.Fence())
	}
	release(t, next)
	if got := testutil.ToFloat64(b.refused); got != 1 {
		t.Errorf("counted %v refusals of the second process, want 1", got)
	}
}

// Row A6: the owner takes the lock again within the hold; the last release frees it; each hold is released once.
func TestALockIsReentrant(t *testing.T) {
	t.Attr("row", "A6")
	l := newLocks(t)
	owner := NewOwner()
	outer := take(t, l, "door", owner, hours, 0)
	inner := take(t, l, "door", owner, time.Second, patience) // also where it would wait
	if inner.Fence() != outer.Fence() {
		t.Errorf("got fence %d within a hold of fence %d", inner.Fence(), outer.Fence())
	}
	release(t, inner)
	if err := inner.Release(); !errors.Is(err, ErrNotOwner) {
		t.Errorf("released twice: got %v, want %v", err, ErrNotOwner)
	}
	if left := refused(t, l, "door"); left < hours-time.Hour {
		t.Errorf("after the inner hold of a second %v are left, want the lease of the outer one", left)
	}
	if err := outer.Context().Err(); err != nil {
		t.Errorf("the outer hold ended with the inner one: %v", err)
	}
	release(t, outer)
	release(t, take(t, l, "door", NewOwner(), hours, 0))
}

// Row A7: the watchdog renews the lease while the holder lives, and stops with its context or its release.
func TestTheWatchdogRenewsWhileTheHolderLives(t *testing.T) {
	t.Attr("row", "A7")
	l := newLocks(t)
	ctx, die := context.WithCancel(t.Context())
	defer die()
	h, err := l.Acquire(ctx, "door", NewOwner(), 6*time.Second, 0)
	if err != nil {
		t.Fatal(err)
	}
	renewed, last := 0, pttl(t, l, l.holder("door"))
	until(t, "the lease is renewed four times: it has ended by then, had it not been", func() bool {
		now := pttl(t, l, l.holder("door"))
		if now < 0 {
			t.Fatalf("the lock ended though its holder lives, after %d renewals: %v", renewed, context.Cause(h.Context()))
		}
		if now > last {
			renewed++
		}
		last = now
		return renewed == 4
	})
	die()
	if err := ended(t, h); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the holder's own end", err)
	}
	<-h.watched
	until(t, "the lease ends", func() bool { return pttl(t, l, l.holder("door")) < 0 })
	if err := h.Release(); !errors.Is(err, ErrNotOwner) {
		t.Errorf("released after its lease: got %v, want %v", err, ErrNotOwner)
	}
	h = take(t, l, "door", NewOwner(), 30*time.Millisecond, 0)
	release(t, h)
	<-h.watched // or Release would not have returned
}

// Row A7: a holder whose lock is no longer its own is told, be it by Redis or for want of an answer.
func TestTheHolderIsToldThatTheLockIsLost(t *testing.T) {
	t.Attr("row", "A7")
	t.Run("another has it", func(t *testing.T) {
		l := newLocks(t)
		h := take(t, l, "door", NewOwner(), 3*time.Second, 0)
		forget(t, l, l.holder("door"))
		thief := take(t, l, "door", NewOwner(), hours, 0)
		if err := ended(t, h); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want %v", err, ErrLost)
		}
		if got := testutil.ToFloat64(l.lost); got != 1 {
			t.Errorf("counted %v lost locks, want 1", got)
		}
		release(t, thief)
	})
	t.Run("redis does not answer", func(t *testing.T) {
		direct := backendtest.Redis(t).Client()
		s, err := redis.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: direct.Prefix()})
		if err != nil {
			t.Fatal(err)
		}
		l := New(s, prometheus.NewRegistry())
		h := take(t, l, "door", NewOwner(), 3*time.Second, 0)
		s.Close()
		if err := ended(t, h); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want %v", err, ErrLost)
		}
		if now := time.Now(); now.Before(h.until) {
			t.Errorf("told %v before the lease ended", h.until.Sub(now))
		}
		if err := h.Release(); err == nil {
			t.Error("released without Redis")
		}
	})
}

// Who waits is woken by the release, long before the lease ends; in the order in which they came.
func TestWaitersAreWokenInTheirOrder(t *testing.T) {
	l := newLocks(t)
	h := take(t, l, "door", NewOwner(), hours, 0)
	const n = 8
	order := make(chan int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			w, err := l.Acquire(t.Context(), "door", NewOwner(), hours, patience)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			order <- i
			release(t, w)
		})
		until(t, "the next one waits", func() bool { return l.waiters.standing(l.holder("door")) == i+1 })
	}
	until(t, "they hear", func() bool { return l.waiters.subscribed() })
	release(t, h)
	wg.Wait()
	for i := range n {
		if got := <-order; got != i {
			t.Errorf("waiter %d was served as number %d", got, i)
		}
	}
	if l.waiters.standing(l.holder("door")) != 0 || l.waiters.subscribed() {
		t.Error("somebody still waits, or is subscribed")
	}
}

// standing is how many wait for a lock and are in its queue.
func (w *waiters) standing(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.queues[key]; p != nil {
		return p.users
	}
	return 0
}

func (w *waiters) subscribed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subscriber == nil {
		return false
	}
	select {
	case <-w.subscriber.gone:
		return false
	case <-w.subscriber.ready:
		return true
	default:
		return false
	}
}

// A wait ends with its time, or with its context, and leaves the queue whole.
func TestAWaitIsBounded(t *testing.T) {
	l := newLocks(t)
	h := take(t, l, "door", NewOwner(), hours, 0)
	var held *HeldError
	if _, err := l.Acquire(t.Context(), "door", NewOwner(), hours, 20*time.Millisecond); !errors.As(err, &held) || held.Left < hours-time.Hour {
		t.Errorf("got %v, want it refused with the lease that is left", err)
	}
	var wg sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	for i := range 3 { // the first of them waits for Redis, the others for the first
		wg.Go(func() {
			if _, err := l.Acquire(ctx, "door", NewOwner(), hours, hours); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's end", err)
			}
		})
		until(t, "it waits", func() bool { return l.waiters.standing(l.holder("door")) == i+1 })
	}
	wg.Go(func() { release(t, take(t, l, "door", NewOwner(), hours, hours)) })
	until(t, "the last one waits", func() bool { return l.waiters.standing(l.holder("door")) == 4 })
	leave()
	until(t, "the three have left", func() bool { return l.waiters.standing(l.holder("door")) == 1 })
	release(t, h)
	wg.Wait()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Acquire(gone, "door", NewOwner(), hours, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: got %v", err)
	}
	release(t, take(t, l, "door", NewOwner(), hours, 0)) // it had not been taken
}

// No wake-up is lost when what tells of it is: the connection on which it is heard ends, and is made anew.
func TestAWaitOutlivesItsConnection(t *testing.T) {
	l := newServer(t).locks() // on which every such connection is this test's
	h := take(t, l, "door", NewOwner(), hours, 0)
	got := make(chan error, 1)
	go func() {
		w, err := l.Acquire(t.Context(), "door", NewOwner(), hours, patience)
		if err == nil {
			err = w.Release()
		}
		got <- err
	}()
	until(t, "it hears", func() bool { return l.waiters.subscribed() })
	l.waiters.mu.Lock()
	first := l.waiters.subscriber
	l.waiters.mu.Unlock()
	killed, err := l.client.Do(t.Context(), l.client.B().Arbitrary("CLIENT", "KILL", "TYPE", "pubsub").Build()).AsInt64()
	if err != nil || killed == 0 {
		t.Fatalf("ended %d connections: %v", killed, err)
	}
	<-first.gone
	release(t, h)
	if err := <-got; err != nil {
		t.Errorf("got %v", err)
	}
}

// A row that is read and written back under the lock by many goroutines loses no increment; the fences rise.
func TestManyGoroutinesExcludeEachOther(t *testing.T) {
	l := newLocks(t)
	const n, rounds = 40, 5
	counter := l.prefix + "counter"
	var wg sync.WaitGroup
	var mu sync.Mutex // guards fences; their order is the lock's
	var fences []int64
	for range n {
		wg.Go(func() {
			for range rounds {
				h, err := l.Acquire(t.Context(), "counter", NewOwner(), 10*time.Second, patience)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				fences = append(fences, h.Fence())
				mu.Unlock()
				if err := addOne(t.Context(), l.client, counter); err != nil {
					t.Error(err)
				}
				release(t, h)
			}
		})
	}
	wg.Wait()
	if got, err := read(t.Context(), l.client, counter); err != nil || got != n*rounds {
		t.Errorf("counted %d, %v; want %d", got, err, n*rounds)
	}
	for i := 1; i < len(fences); i++ {
		if fences[i] <= fences[i-1] {
			t.Fatalf("fence %d came after %d", fences[i], fences[i-1])
		}
	}
}

func read(ctx context.Context, c rueidis.Client, key string) (int64, error) {
	n, err := c.Do(ctx, c.B().Get().Key(key).Build()).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return n, err
}

// addOne reads and writes back, so that two at once lose one.
func addOne(ctx context.Context, c rueidis.Client, key string) error {
	n, err := read(ctx, c, key)
	if err != nil {
		return err
	}
	return c.Do(ctx, c.B().Set().Key(key).Value(strconv.FormatInt(n+1, 10)).Build()).Error()
}

// protected makes a table of one row that is written under a lock.
func protected(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db := backendtest.OpenMySQL(t, dsn, 2)
	for _, s := range []string{`CREATE TABLE protected (id BIGINT PRIMARY KEY, fence BIGINT NOT NULL, value VARCHAR(20) NOT NULL)`,
		`INSERT INTO protected VALUES (1, 0, 'nobody')`} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// write writes value under a fence.
func write(ctx context.Context, db *sql.DB, fence int64, value string) error {
	return store.InTx(ctx, db, func(tx *sql.Tx) error {
		if err := Guard(ctx, tx, "protected", 1, fence); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE protected SET value = ? WHERE id = 1`, value)
		return err
	})
}

func wantRow(t *testing.T, db *sql.DB, want string) {
	t.Helper()
	var got string
	if err := db.QueryRowContext(t.Context(), `SELECT CONCAT(value, ' ', fence) FROM protected WHERE id = 1`).Scan(&got); err != nil || got != want {
		t.Errorf("the row is %q, %v; want %q", got, err, want)
	}
}

// Row A7: what is written under a lock is written in the order of the grants, and refused to who comes late.
func TestTheGuardedRowRefusesAnOlderFence(t *testing.T) {
	t.Attr("row", "A7")
	db := protected(t, backendtest.MySQLDSN(t))
	for _, w := range []struct {
		fence int64
		value string
		err   error
		row   string
	}{
		{10, "ann", nil, "ann 10"}, {10, "ann again", nil, "ann again 10"}, {10, "ann again", nil, "ann again 10"},
		{9, "late", ErrFenced, "ann again 10"}, {12, "bob", nil, "bob 12"}, {10, "ann", ErrFenced, "bob 12"},
	} {
		if err := write(t.Context(), db, w.fence, w.value); !errors.Is(err, w.err) || err != nil && w.err == nil {
			t.Errorf("write %s under fence %d: got %v, want %v", w.value, w.fence, err, w.err)
		}
		wantRow(t, db, w.row)
	}
	err := store.InTx(t.Context(), db, func(tx *sql.Tx) error { return Guard(t.Context(), tx, "protected", 2, 20) })
	if !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a row that is not there: got %v", err)
	}
	// Until the transaction of an older fence ends, a newer one waits, and then it writes over what the older one wrote.
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := Guard(t.Context(), tx, "protected", 1, 13); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- write(t.Context(), db, 14, "newer") }()
	if _, err := tx.ExecContext(t.Context(), `UPDATE protected SET value = 'older' WHERE id = 1`); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tx.Commit(), <-done); err != nil {
		t.Fatal(err)
	}
	wantRow(t, db, fmt.Sprint("newer ", 14))
}

//go:build servers

package lua_test

import (
	"context"
	"crypto/rand"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// mutex is one lock of a test.
type mutex struct {
	*sale
	holder, fence string
}

func newMutex(t *testing.T) *mutex {
	t.Helper()
	base := "t" + rand.Text() + ":{lock:door}:"
	m := &mutex{newSale(t), base + "holder", base + "fence"}
	t.Cleanup(func() { m.forget(m.holder, m.fence) })
	return m
}

func (m *mutex) forget(keys ...string) {
	m.t.Helper()
	if err := m.c.Do(context.Background(), m.c.B().Del().Key(keys...).Build()).Error(); err != nil {
		m.t.Error(err)
	}
}

// lock returns the answer, its word aside, as numbers.
func (m *mutex) lock(owner string, lease time.Duration) (word lua.Answer, numbers []int64) {
	m.t.Helper()
	words := m.call(lua.LockTake, keys(m.holder, m.fence), owner, n(lease.Milliseconds()))
	for _, w := range words[1:] {
		i, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			m.t.Fatalf("lock answered %q", words)
		}
		numbers = append(numbers, i)
	}
	return words.Answer(), numbers
}

// granted takes a hold, which must be given, and returns its fence.
func (m *mutex) granted(owner string, lease time.Duration, holds int64) (fence int64) {
	m.t.Helper()
	word, v := m.lock(owner, lease)
	if word != lua.Granted || len(v) != 2 || v[1] != holds {
		m.t.Fatalf("got %s %v, want granted with %d holds", word, v, holds)
	}
	return v[0]
}

func (m *mutex) renew(owner string, lease time.Duration) lua.Reply {
	m.t.Helper()
	return m.call(lua.LockRenew, keys(m.holder, m.fence), owner, n(lease.Milliseconds()))
}

func (m *mutex) unlock(owner string) lua.Reply {
	m.t.Helper()
	return m.call(lua.LockRelease, keys(m.holder), owner)
}

// left is for how long a key will be there; negative if it is not, or for ever.
func (m *mutex) left(key string) time.Duration {
	m.t.Helper()
	ms, err := m.c.Do(m.t.Context(), m.c.B().Pttl().Key(key).Build()).AsInt64()
	if err != nil {
		m.t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// leaseLeft asserts how much of a lease is left, of a test that has gone on for at most an hour.
func (m *mutex) leaseLeft(lease time.Duration) {
	m.t.Helper()
	if got := m.left(m.holder); got > lease || got < lease-time.Hour {
		m.t.Errorf("got a lease of %v, want %v", got, lease)
	}
	if got := m.left(m.fence); got < lease+23*time.Hour {
		m.t.Errorf("the fence is kept for %v, want a day longer than the lease of %v", got, lease)
	}
}

// Row A5: one owner, who alone can give the lock back.
func TestALockIsOneOwners(t *testing.T) {
	t.Attr("row", "A5")
	m := newMutex(t)
	m.granted("ann", 10*time.Hour, 1)
	m.leaseLeft(10 * time.Hour)
	if word, v := m.lock("bob", time.Hour); word != lua.Held || v[0] > (10*time.Hour).Milliseconds() || v[0] < (9*time.Hour).Milliseconds() {
		t.Errorf("got %s %v, want held and the ten hours that are left", word, v)
	}
	want(t, m.unlock("bob"), lua.NotOwner)
	want(t, m.renew("bob", 100*time.Hour), lua.NotOwner)
	m.leaseLeft(10 * time.Hour)
	want(t, m.unlock("ann"), lua.Freed)
	want(t, m.unlock("ann"), lua.NotOwner)
	want(t, m.renew("ann", time.Hour), lua.NotOwner)
	m.granted("bob", time.Hour, 1)
}

// Row A6: the holds of one owner are counted, and the last one that is given back frees the lock.
func TestHoldsAreCounted(t *testing.T) {
	t.Attr("row", "A6")
	m := newMutex(t)
	fence := m.granted("ann", 10*time.Hour, 1)
	if again := m.granted("ann", time.Hour, 2); again != fence {
		t.Errorf("got fence %d for a hold within a hold, want the same: %d", again, fence)
	}
	m.leaseLeft(10 * time.Hour) // not shorter
	m.granted("ann", 20*time.Hour, 3)
	m.leaseLeft(20 * time.Hour)
	want(t, m.unlock("ann"), lua.Kept, "2")
	want(t, m.unlock("ann"), lua.Kept, "1")
	if word, _ := m.lock("bob", time.Hour); word != lua.Held {
		t.Errorf("got %s, want held", word)
	}
	want(t, m.unlock("ann"), lua.Freed)
	if got := m.left(m.holder); got >= 0 {
		t.Errorf("the holder's key is there for %v", got)
	}
}

// Row A7: a renewal makes the lease begin anew, and never makes it shorter.
func TestRenew(t *testing.T) {
	t.Attr("row", "A7")
	m := newMutex(t)
	m.granted("ann", 5*time.Hour, 1)
	want(t, m.renew("ann", 10*time.Hour), lua.Renewed)
	m.leaseLeft(10 * time.Hour)
	want(t, m.renew("ann", time.Hour), lua.Renewed)
	m.leaseLeft(10 * time.Hour)
	m.forget(m.holder) // the lease has ended
	want(t, m.renew("ann", time.Hour), lua.NotOwner)
	if got := m.left(m.holder); got >= 0 {
		t.Errorf("a renewal made the lock, for %v", got)
	}
}

// Row A7: each grant has a higher fence than every one before, whatever became of the lock, and of Redis.
func TestTheFenceOnlyRises(t *testing.T) {
	t.Attr("row", "A7")
	m := newMutex(t)
	last := m.now() - 1
	rises := func(owner string) {
		t.Helper()
		fence := m.granted(owner, time.Hour, 1)
		if fence <= last {
			t.Errorf("got fence %d after %d", fence, last)
		}
		last = fence
	}
	for range 5 { // within a millisecond, too
		rises("ann")
		want(t, m.unlock("ann"), lua.Freed)
	}
	rises("ann")
	m.forget(m.holder) // the lease has ended
	rises("bob")
	m.forget(m.holder, m.fence) // Redis was emptied, a moment later
	for m.now() <= last {
	}
	rises("ann")
	want(t, m.unlock("ann"), lua.Freed)
	ahead := last + 1_000_000_000 // and where the clock was set back
	if err := m.c.Do(t.Context(), m.c.B().Set().Key(m.fence).Value(n(ahead)).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	last = ahead
	rises("bob")
	if last != ahead+1 {
		t.Errorf("got fence %d, want %d", last, ahead+1)
	}
}

// Whoever waits is told when the lock is free, and not before.
func TestTheLastUnlockTellsWhoWaits(t *testing.T) {
	m := newMutex(t)
	heard := make(chan string, 10)
	client, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	err = client.Dedicated(func(c rueidis.DedicatedClient) error {
		c.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(msg rueidis.PubSubMessage) { heard <- msg.Channel + " " + msg.Message }})
		if err := c.Do(t.Context(), c.B().Subscribe().Channel(m.holder, m.fence).Build()).Error(); err != nil {
			return err
		}
		m.granted("ann", time.Hour, 1)
		m.granted("ann", time.Hour, 2)
		want(t, m.unlock("bob"), lua.NotOwner)
		want(t, m.unlock("ann"), lua.Kept, "1")
		if err := m.c.Do(t.Context(), m.c.B().Publish().Channel(m.fence).Message("now").Build()).Error(); err != nil {
			return err
		}
		want(t, m.unlock("ann"), lua.Freed)
		if first, second := <-heard, <-heard; first != m.fence+" now" || second != m.holder+" freed" {
			t.Errorf("heard %q, then %q", first, second)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A Redis that died while it wrote a lock down may come back with the first half of it: a holder whose lease never ends.
func TestALockWithoutALeaseIsNobodys(t *testing.T) {
	m := newMutex(t)
	before := m.granted("dead", time.Hour, 1)
	if err := m.c.Do(t.Context(), m.c.B().Persist().Key(m.holder).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if fence := m.granted("next", time.Hour, 1); fence <= before {
		t.Errorf("got fence %d after %d", fence, before)
	}
	if word, _ := m.lock("dead", time.Hour); word != lua.Held {
		t.Errorf("whoever had it got %s, want held", word)
	}
	if left, err := m.c.Do(t.Context(), m.c.B().Pttl().Key(m.holder).Build()).AsInt64(); err != nil || left < 1 {
		t.Errorf("its lease ends in %d ms, %v", left, err)
	}
}

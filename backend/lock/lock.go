// Package lock is a lock on Redis, shared by any number of processes. It is exclusive and re-entrant, has a lease that a watchdog
// renews and a fencing token, and notifies those who wait.
//
// No correctness may depend on it. A holder that was stopped for longer than its lease still acts as if it had the lock, and
// Redis may lose it. So use it only to save work. A write that must not come late checks the fencing token: see Guard.
// (M. Kleppmann, "How to do distributed locking", 2016.)
package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
)

var (
	// ErrLost: the lease ended, or Redis lost the lock. Another owner may have it. It is the cause of the end of a Hold's context.
	ErrLost = errors.New("the lock was lost")
	// ErrNotOwner: there is no such hold to give back.
	ErrNotOwner = errors.New("the lock is not held by this owner")
	// ErrReleased is the cause of the end of a released Hold's context.
	ErrReleased = errors.New("the lock was released")
)

// HeldError: another owner has the lock.
type HeldError struct {
	Name string
	Left time.Duration // of the holder's lease, which the holder may renew
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lock %s is held by another owner; %v are left of its lease", e.Name, e.Left)
}

// Owner is who holds a lock. Go has no thread ids, so pass it on to whatever may take the lock again within the hold.
type Owner string

// NewOwner makes a unique owner: 130 random bits.
func NewOwner() Owner { return Owner(rand.Text()) }

// Locks are the locks in one Redis under one key prefix. They are safe for concurrent use.
type Locks struct {
	client  *redis.Client
	prefix  string
	waiters waiters

	granted, refused, lost prometheus.Counter
	waiting                prometheus.Gauge
}

// New makes the locks of a Redis, or of a Redis Cluster.
func New(client *redis.Client, reg prometheus.Registerer) *Locks {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	l := &Locks{client: client, prefix: client.Prefix(),
		granted: counter("backend_lock_grants_total", "Locks that were taken, holds within a hold included."),
		refused: counter("backend_lock_refusals_total", "Locks that were not taken, for another owner had them until the wait was over."),
		lost:    counter("backend_lock_lost_total", "Locks whose holder was told that it may no longer have them."),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_lock_waiting", Help: "Goroutines that wait for a lock."})}
	l.waiters = newWaiters(client)
	reg.MustRegister(l.granted, l.refused, l.lost, l.waiting)
	return l
}

func holderKey(prefix, name string) string { return prefix + "{lock:" + name + "}:holder" }

func (l *Locks) holder(name string) string { return holderKey(l.prefix, name) }
func (l *Locks) fence(name string) string  { return l.prefix + "{lock:" + name + "}:fence" }

// Acquire takes a lock for owner, or one more hold if owner has it, and keeps it until it is released or ctx ends.
//
// While another owner has it, Acquire waits at most for wait (0: not at all), and then returns a *HeldError. The wait ends
// when the holder releases the lock, or when the holder's lease ends. Goroutines of one process are served in the order in
// which they came. Between processes it is a race.
//
// The lease is how long the lock outlives a holder that dies. It must be at least a millisecond, and long enough for two calls
// of Redis within a third of it. Any other error is Redis's, or ctx's.
func (l *Locks) Acquire(ctx context.Context, name string, owner Owner, lease, wait time.Duration) (*Hold, error) {
	if name == "" || strings.ContainsAny(name, "{}") || owner == "" || lease < time.Millisecond {
		panic(fmt.Sprintf("BUG: lock %q, owner %q, lease %v: a name has no braces, an owner is not empty, a lease is at least 1 ms", name, owner, lease))
	}
	h := &Hold{l: l, name: name, owner: owner, lease: lease}
	err := h.take(ctx) // also if others wait: the owner may have it
	var held *HeldError
	if wait > 0 && errors.As(err, &held) {
		err = h.wait(ctx, wait, held)
	}
	if errors.As(err, &held) {
		l.refused.Inc()
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Hold is one hold of a lock. Release gives it back.
type Hold struct {
	l     *Locks
	name  string
	owner Owner
	lease time.Duration
	fence int64

	ctx     context.Context
	end     context.CancelCauseFunc
	until   time.Time     // the lock is certainly held until then; used by the watchdog
	watched chan struct{} // closed when the watchdog has ended

	released atomic.Bool
}

// Fence is the fencing token. It is higher than that of every earlier hold of this lock, except enclosing ones, which share it. It
// rises even if Redis was emptied, unless Redis's clock went back by more than it was away.
func (h *Hold) Fence() int64 { return h.fence }

// Context ends when the hold is released, when the context of Acquire ends (then nobody renews the lease), or when the lock may be
// lost: then its cause is ErrLost. Use it for whatever is done under the lock.
func (h *Hold) Context() context.Context { return h.ctx }

// take asks Redis once. The call goes on when ctx ends, for an unnoticed grant would keep everybody out for a lease.
func (h *Hold) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("lock %s: %w", h.name, err)
	}
	asked := time.Now()
	reply, err := h.l.client.Call(context.WithoutCancel(ctx), lua.LockTake, []string{h.l.holder(h.name), h.l.fence(h.name)}, string(h.owner), millis(h.lease))
	if err != nil {
		return fmt.Errorf("lock %s: %w", h.name, err)
	}
	switch reply.Answer() {
	case lua.Held:
		return &HeldError{h.name, time.Duration(reply.Int(1)) * time.Millisecond}
	case lua.Granted:
	default:
		panic(fmt.Sprintf("BUG: lock_take.lua answered %q", reply))
	}
	h.l.granted.Inc()
	h.fence = reply.Int(1)
	h.ctx, h.end = context.WithCancelCause(ctx)
	h.until, h.watched = asked.Add(h.lease), make(chan struct{})
	go h.watch()
	return nil
}

// wait takes the lock as soon as it is free, within limit.
func (h *Hold) wait(ctx context.Context, limit time.Duration, held *HeldError) error {
	l := h.l
	l.waiting.Inc()
	defer l.waiting.Dec()
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	over := func() error { // what the end of short means
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for lock %s: %w", h.name, err)
		}
		return held
	}
	queue := l.waiters.enter(l.holder(h.name))
	defer queue.leave()
	if queue.turn.Acquire(short, 1) != nil {
		return over()
	}
	defer queue.turn.Release(1)
	for {
		sub := queue.listen()
		select {
		case <-sub.ready:
		case <-short.Done():
			return over()
		}
		if sub.err != nil {
			return fmt.Errorf("wait for lock %s: %w", h.name, sub.err)
		}
		// From here on no message is missed, so take asks again only after one.
		for gone := false; !gone; {
			if short.Err() != nil {
				return over()
			}
			if err := h.take(ctx); !errors.As(err, &held) {
				return err
			}
			lease := time.NewTimer(max(held.Left, time.Millisecond))
			select {
			case <-queue.freed:
			case <-lease.C: // without a message: the holder died, or has renewed it
			case <-short.Done():
			case <-sub.gone:
				gone = true
			}
			lease.Stop()
		}
	}
}

// watch renews the lease until the hold ends, or ends the hold when the lease ended.
func (h *Hold) watch() {
	defer close(h.watched)
	pause := h.lease / 3
	for {
		timer := time.NewTimer(min(pause, time.Until(h.until)))
		select {
		case <-timer.C:
		case <-h.ctx.Done():
			timer.Stop()
		}
		if h.ctx.Err() != nil {
			return
		}
		if !time.Now().Before(h.until) {
			h.lose()
			return
		}
		ctx, cancel := context.WithDeadline(h.ctx, h.until)
		asked := time.Now()
		reply, err := h.l.client.Call(ctx, lua.LockRenew, []string{h.l.holder(h.name), h.l.fence(h.name)}, string(h.owner), millis(h.lease))
		cancel()
		switch {
		case err != nil: // it may or may not have been renewed
			pause = h.lease / 12
		case reply.Answer() == lua.Renewed:
			h.until, pause = asked.Add(h.lease), h.lease/3
		case h.ctx.Err() == nil:
			h.lose()
			return
		}
	}
}

func (h *Hold) lose() {
	h.l.lost.Inc()
	h.end(fmt.Errorf("lock %s, fence %d: %w", h.name, h.fence, ErrLost))
}

// Release gives the hold back, and with the last one the lock, also if the context has ended. ErrNotOwner: the lease had ended, or
// the hold was released before. After any other error the lock may be held until its lease ends, but no longer.
func (h *Hold) Release() error {
	h.end(ErrReleased)
	<-h.watched
	if h.released.Swap(true) {
		return fmt.Errorf("release lock %s: %w", h.name, ErrNotOwner)
	}
	reply, err := h.l.client.Call(context.Background(), lua.LockRelease, []string{h.l.holder(h.name)}, string(h.owner))
	if err != nil {
		return fmt.Errorf("release lock %s: %w", h.name, err)
	}
	if reply.Answer() == lua.NotOwner {
		return fmt.Errorf("release lock %s: %w", h.name, ErrNotOwner)
	}
	return nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Package eligibility is who may buy: a list of banned uids, and for some sales a list of the only uids that may buy in
// it. Operators change the lists while a sale runs. See docs/limits.md.
//
// The lists are in MySQL. Every api process holds those that count in memory. Four times a second it asks which have a
// newer version, and then what has changed: a change counts everywhere within a second. A process whose MySQL is away
// continues with the lists that it has, until it accepts no orders at all (orders.max_outage).
package eligibility

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/follow"
)

const (
	lookEvery = 250 * time.Millisecond
	queryTime = 30 * time.Second
	loadPage  = 10_000 // uids that one query reads of a list that is new to the process
	newsPage  = 5000   // changes that one query reads; more than two chunks, so that it gets on
)

// Refusal is why somebody may not buy; "" if they may.
type Refusal string

// The refusals.
const (
	Banned    Refusal = "banned"
	NotListed Refusal = "not_listed"
)

// Lists are the lists in memory. It is safe for concurrent use.
type Lists struct {
	*follow.Follower
	db    *sql.DB
	ready atomic.Bool

	mu    sync.RWMutex // guards rolls and what they hold
	rolls map[int64]*roll

	failures prometheus.Counter
}

// roll is one list, as the first 128 bits of its uids' SHA-256: no pointers, and a size that does not depend on the uid.
type roll struct {
	generation, version int64
	uids                map[key]struct{}
}

type key [16]byte

func keyOf(uid string) key {
	sum := sha256.Sum256([]byte(uid))
	return key(sum[:16])
}

// Config is what Lists need.
type Config struct {
	DB       *sql.DB
	Log      *slog.Logger
	Register prometheus.Registerer
}

// New makes Lists and registers their metrics. They are empty before Run or Refresh.
func New(c Config) *Lists {
	l := &Lists{db: c.DB, rolls: map[int64]*roll{},
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_lists_failures_total", Help: "Readings of the lists of uids that failed."})}
	c.Register.MustRegister(l.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_lists_uids",
		Help: "Uids in memory, of all lists of who may buy."}, func() float64 { return float64(l.uids()) }))
	l.Follower = follow.New(follow.Config{What: "the list of who may buy", Every: lookEvery, Read: l.read, Log: c.Log, Failures: l.failures})
	return l
}

func (l *Lists) uids() (n int) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, r := range l.rolls {
		n += len(r.uids)
	}
	return n
}

// Ready reports whether the lists were read once. Before that nobody may buy.
func (l *Lists) Ready() bool { return l.ready.Load() }

// Refuse returns why this uid may not buy in this sale or, for Bans, anywhere.
func (l *Lists) Refuse(sale int64, uid string) Refusal {
	l.mu.RLock()
	defer l.mu.RUnlock()
	bans, only := l.rolls[Bans], l.rolls[sale]
	if (bans == nil || len(bans.uids) == 0) && only == nil {
		return ""
	}
	k := keyOf(uid)
	if bans != nil {
		if _, ok := bans.uids[k]; ok {
			return Banned
		}
	}
	if only != nil && sale != Bans {
		if _, ok := only.uids[k]; !ok {
			return NotListed
		}
	}
	return ""
}

// read reads what is new, however much.
func (l *Lists) read(ctx context.Context) error {
	heads, err := heads(ctx, l.db)
	if err != nil {
		return err
	}
	var all int64
	for _, h := range heads {
		all += h.Size
	}
	if all > MaxAll { // somebody wrote them by hand
		return fmt.Errorf("the lists have %d uids, more than the %d that a process holds: they stay as they were", all, MaxAll)
	}
	for id, head := range heads {
		have := l.roll(id)
		switch {
		case have == nil || have.generation != head.generation:
			err = l.load(ctx, id, head)
		case have.version < head.Version:
			err = l.follow(ctx, id, have, head)
		}
		if err != nil {
			return fmt.Errorf("list %d: %w", id, err)
		}
	}
	l.mu.Lock()
	for id := range l.rolls {
		if _, ok := heads[id]; !ok {
			delete(l.rolls, id)
		}
	}
	l.mu.Unlock()
	l.ready.Store(true)
	return nil
}

// roll returns a list as this process has it. Only the holder of the slot changes it.
func (l *Lists) roll(id int64) *roll {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.rolls[id]
}

// load reads a whole list beside the one in force, and then puts it in force. A change meanwhile is in it or not. It has
// a version newer than the head's, so it is read at the next turn.
func (l *Lists) load(ctx context.Context, id int64, head State) error {
	fresh := &roll{generation: head.generation, version: head.Version, uids: make(map[key]struct{}, head.Size)}
	for after, more := "", true; more; {
		n := 0
		err := each(ctx, l.db, func(rows *sql.Rows) error {
			err := rows.Scan(&after)
			fresh.uids[keyOf(after)] = struct{}{}
			n++
			return err
		}, fmt.Sprintf(`SELECT uid FROM uid_list_members WHERE list_id = ? AND generation = ? AND uid > ? AND listed ORDER BY uid LIMIT %d`, loadPage),
			id, head.generation, after)
		if err != nil {
			return err
		}
		more = n == loadPage
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rolls[id] = fresh
	return nil
}

// follow reads what has changed since the version that this process has. A full page may end within a version, so its
// last version is read again.
func (l *Lists) follow(ctx context.Context, id int64, have *roll, head State) error {
	type news struct {
		uid     string
		listed  bool
		version int64
	}
	for have.version < head.Version {
		var page []news
		err := each(ctx, l.db, func(rows *sql.Rows) error {
			var n news
			err := rows.Scan(&n.uid, &n.listed, &n.version)
			page = append(page, n)
			return err
		}, fmt.Sprintf(`SELECT uid, listed, version FROM uid_list_members WHERE list_id = ? AND generation = ? AND version > ? ORDER BY version, uid LIMIT %d`, newsPage),
			id, have.generation, have.version)
		if err != nil {
			return err
		}
		known := head.Version
		if len(page) == newsPage {
			known = page[len(page)-1].version - 1
		}
		l.mu.Lock()
		for _, n := range page {
			if n.listed {
				have.uids[keyOf(n.uid)] = struct{}{}
			} else {
				delete(have.uids, keyOf(n.uid))
			}
		}
		have.version = known
		l.mu.Unlock()
	}
	return nil
}

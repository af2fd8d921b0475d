// Package revocation is the list of revoked tokens: one by its jti, or a uid's that were issued before a time. Operators change it
// by the admin API, and gateways follow it. See docs/tokens.md.
//
// The list is in MySQL. Every api process holds it in memory. Four times a second it asks whether there is a newer version, and
// then what has changed; gateways are told at once. A process whose MySQL is away continues with the list that it has.
package revocation

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/follow"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

const (
	lookEvery = 250 * time.Millisecond
	queryTime = 30 * time.Second
	page      = 5000 // rows of one query
)

// List is the list in memory. It is safe for concurrent use.
type List struct {
	*follow.Follower
	Config

	mu      sync.Mutex // guards what follows
	ready   bool
	version int64
	entries map[Subject]held
	news    chan struct{} // closed, and replaced, when version changes
}

// held is an entry in memory, also one that was taken back, until its time is up.
type held struct {
	wire.Revocation
	version int64
}

// Config is what a List needs.
type Config struct {
	DB       *sql.DB
	Clock    *clock.Clock
	Keep     time.Duration // for how long a revocation is kept
	Log      *slog.Logger
	Register prometheus.Registerer
}

// New makes a List and registers its metrics. It is empty, and not ready, before Run or Refresh.
func New(c Config) *List {
	l := &List{Config: c, entries: map[Subject]held{}, news: make(chan struct{})}
	failures := prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_revocations_failures_total", Help: "Readings of the list of revoked tokens that failed."})
	l.Follower = follow.New(follow.Config{What: "the list of revoked tokens", Every: lookEvery, Read: l.read, Log: c.Log, Failures: failures})
	c.Register.MustRegister(failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_revocations",
		Help: "Revocations in memory, with those that were taken back and have not expired."}, func() float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(len(l.entries))
	}))
	return l
}

// Ready reports whether the list was read once.
func (l *List) Ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

// read reads what is new.
func (l *List) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	var head int64
	if err := l.DB.QueryRowContext(ctx, `SELECT version FROM revocation_versions WHERE only_row = 1`).Scan(&head); err != nil {
		return fmt.Errorf("read the version of the revocations: %w", err)
	}
	l.mu.Lock()
	known, ready := l.version, l.ready
	l.mu.Unlock()
	if ready && head == known {
		return nil
	}
	whole := !ready || head < known // MySQL was set back
	if whole {
		known = 0
	}
	changed := map[Subject]held{}
	for more := true; more; {
		n := 0
		err := store.Each(ctx, l.DB, func(rows *sql.Rows) error {
			e, gone, version, err := scan(rows)
			if err != nil {
				return err
			}
			h := held{wire.Revocation{JTI: e.JTI, UID: e.UID, Until: e.Until, Gone: gone}, version}
			if e.Before != nil {
				h.Before = *e.Before
			}
			changed[Subject{e.JTI, e.UID}] = h
			known = max(known, version)
			n++
			return nil
		}, `SELECT `+columns+` FROM revocations WHERE version > ? ORDER BY version LIMIT ?`, known, page)
		if err != nil {
			return fmt.Errorf("read the revocations: %w", err)
		}
		more = n == page
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if whole {
		l.entries = changed
	} else {
		for s, h := range changed {
			l.entries[s] = h
		}
	}
	now := l.Clock.Now()
	for s, h := range l.entries {
		if h.Until.Add(pruneAfter).Before(now) {
			delete(l.entries, s)
		}
	}
	l.version, l.ready = max(known, head), true
	close(l.news)
	l.news = make(chan struct{})
	return nil
}

// Feed answers a gateway that has the list of version since (below 0: none): at once when there is news, else when there is, or
// after wait with nothing but the time. The list must be ready.
func (l *List) Feed(ctx context.Context, since int64, wait time.Duration) wire.Revocations {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		answer, news := l.after(since)
		if !answer.Full && answer.Version == since {
			select {
			case <-news:
				continue
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		answer.Now = wire.At(l.Clock.Now())
		return answer
	}
}

// after is what has changed since, or everything where since is none of this list's versions, and what to wait for.
func (l *List) after(since int64) (answer wire.Revocations, news <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer = wire.Revocations{Version: l.version, Full: since < 0 || since > l.version, KeepMS: l.Keep.Milliseconds(), Entries: []wire.Revocation{}}
	if !answer.Full && since == l.version {
		return answer, l.news
	}
	for _, h := range l.entries {
		if answer.Full && !h.Gone || !answer.Full && h.version > since {
			answer.Entries = append(answer.Entries, h.Revocation)
		}
	}
	return answer, l.news
}

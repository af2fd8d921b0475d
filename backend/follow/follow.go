// Package follow keeps what a process holds in memory of MySQL up to date.
package follow

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Follower needs.
type Config struct {
	What     string                          // for the log and errors: "the list of revoked tokens"
	Every    time.Duration                   // between two readings
	Read     func(ctx context.Context) error // reads what is new; it is called by one goroutine at a time
	Log      *slog.Logger
	Failures prometheus.Counter // readings that failed
}

// Follower reads again and again. It is safe for concurrent use; make it with New, and Run it once.
type Follower struct {
	config Config
	slot   chan struct{} // of one: its holder reads
	wake   chan struct{} // of one: Run reads at once; never closed
}

// New makes a Follower, which has read nothing.
func New(c Config) *Follower {
	return &Follower{config: c, slot: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// Run reads until ctx ends, and then returns nil. What cannot be read stays as it was, and is read again at the next turn; the log says
// so once.
func (f *Follower) Run(ctx context.Context) error {
	c := f.config
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	failing := false
	for {
		err := f.Refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			c.Failures.Inc()
			if !failing {
				c.Log.Warn(c.What+" cannot be read, and stays as it was", "error", err)
			}
			failing = true
		case failing:
			c.Log.Info(c.What + " is read again")
			failing = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-f.wake:
		}
	}
}

// Wake makes Run read at once, after a change.
func (f *Follower) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Refresh reads once, now. Only ctx bounds how long it waits for another reading.
func (f *Follower) Refresh(ctx context.Context) error {
	select {
	case f.slot <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for another reading of %s: %w", f.config.What, ctx.Err())
	}
	defer func() { <-f.slot }()
	return f.config.Read(ctx)
}

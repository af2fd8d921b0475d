package salegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	"floodgate.internal/shared/backoff"
	"floodgate.internal/shared/wire"
)

// Source is the backends that have the feed.
type Source interface {
	// Backends is how many there are; it may change.
	Backends() int
	// Feed asks one of them for target, signed, and returns the body of a 200. It ends after timeout or when ctx is done.
	Feed(ctx context.Context, backend int, target string, timeout time.Duration) ([]byte, error)
}

const (
	// Pauses after all backends have failed; each is drawn between a half and the whole.
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second

	answerTime = 2 * time.Second // for the backend to answer, beyond the wait it was asked for

	// wholeEvery is how often the whole feed of the next backend is requested although nothing is missing, which ends any
	// error between here and one backend, or in it (anti-entropy).
	wholeEvery = time.Minute
)

// Follow keeps the gate fresh until ctx is done. It follows one backend at a time by long polls, and goes on to the next when
// one fails and each minute. It calls changed with the ids of sales that changed, from its own goroutine.
func (g *Gate) Follow(ctx context.Context, src Source, log *slog.Logger, changed func(ids []int64)) {
	backend := rand.IntN(max(1, src.Backends()))
	pause, failures := backoff.Backoff{First: firstPause, Most: maxPause}, 0
	lost := false
	whole := true // request the whole feed
	var wholeAt time.Time
	for ctx.Err() == nil {
		if !whole && time.Since(wholeAt) >= wholeEvery {
			whole = true
			backend = (backend + 1) % max(1, src.Backends())
		}
		f, err := g.poll(ctx, src, backend, whole, lost)
		if err == nil {
			ids, fits := g.apply(f)
			switch {
			case fits:
				g.news.Store(max(1, int64(time.Since(g.epoch))))
				if f.Full {
					wholeAt = time.Now()
				}
				if len(ids) > 0 {
					changed(ids)
				}
			case whole:
				err = errors.New("the backend sends a part of the feed although the whole was requested")
			}
			if !fits {
				g.metrics.resyncs.Inc()
				log.Info("the feed does not follow from what is known: asking for all of it", "instance", f.Instance, "version", f.Version)
			}
			whole = !fits
		}
		if err == nil {
			if lost {
				log.Info("the feed is back", "backend", backend)
			}
			lost, failures = false, 0
			pause.Reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		g.metrics.errors.Inc()
		if !lost {
			log.Warn("the feed is lost", "backend", backend, "error", err)
			lost = true
		}
		backend = (backend + 1) % max(1, src.Backends())
		if failures++; failures < src.Backends() {
			continue // the next backend at once, but all of them only after a pause
		}
		failures = 0
		pause.Wait(ctx, nil)
	}
}

// poll asks once for the whole feed, or for what is new. It waits for news, unless the feed was lost; the wait is so short
// that a silent feed does not become stale.
func (g *Gate) poll(ctx context.Context, src Source, backend int, whole, lost bool) (*wire.Feed, error) {
	s := g.snapshot.Load()
	wait := min(g.StaleAfter()/2, wire.MaxWait)
	q := url.Values{}
	if whole || lost {
		wait = 0
	}
	if !whole {
		q.Set("instance", s.instance)
		q.Set("since", strconv.FormatUint(s.version, 10))
		q.Set("wait_ms", strconv.FormatInt(wait.Milliseconds(), 10))
	}
	target := wire.FeedPath
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	asked := time.Now()
	body, err := src.Feed(ctx, backend, target, wait+answerTime)
	if err != nil {
		return nil, err
	}
	var f wire.Feed
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, fmt.Errorf("read the feed: %w", err)
	}
	if f.Instance == "" || f.Now.IsZero() {
		return nil, fmt.Errorf("read the feed: it has no instance or no time")
	}
	// The backend writes the time just before it answers, so the time is as old as the answer took. If this process was
	// suspended meanwhile, the time is worth nothing.
	if time.Since(asked) < wait+answerTime {
		g.clk.Set(f.Now.Time, time.Now())
	}
	return &f, nil
}

package identity

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

// Source is the backends that have the list of revoked tokens.
type Source interface {
	// Backends is how many there are; it may change.
	Backends() int
	// Feed asks one of them for target, signed, and returns the body of a 200. It ends after timeout or when ctx is done.
	Feed(ctx context.Context, backend int, target string, timeout time.Duration) ([]byte, error)
}

const (
	listWait   = 10 * time.Second // of one long poll
	answerTime = 2 * time.Second  // for the backend to answer, beyond that
	// quietTime is how long the list may be without an answer before that is said.
	quietTime = listWait + 5*time.Second
	// wholeEvery is how often the whole list of the next backend is requested although nothing is missing, which ends any error
	// between here and one backend, or in it.
	wholeEvery = 10 * time.Minute
)

// Follow keeps the list as the backends have it, until ctx is done. It follows one backend at a time by long polls, and goes on
// to the next when one fails. Without an answer the list stays as it was.
func (r *Revoked) Follow(ctx context.Context, src Source, log *slog.Logger) {
	backend := rand.IntN(max(1, src.Backends()))
	pause := backoff.Backoff{First: 100 * time.Millisecond, Most: 2 * time.Second}
	version, whole, lost, failures := int64(0), true, false, 0
	var wholeAt time.Time
	for ctx.Err() == nil {
		if time.Since(wholeAt) >= wholeEvery && !whole {
			whole = true
			backend = (backend + 1) % max(1, src.Backends())
		}
		list, err := r.poll(ctx, src, backend, version, whole || lost, whole)
		if err == nil && whole && !list.Full {
			err = errors.New("the backend sends a part of the list although the whole was requested")
		}
		if err == nil {
			if !list.Full && list.Version < version { // MySQL was set back
				whole = true
				continue
			}
			r.Apply(list.Entries, list.Full, list.Now.Time)
			if version, whole = list.Version, false; list.Full {
				wholeAt = time.Now()
			}
			r.keep.Store(list.KeepMS)
			now := time.Now()
			r.heard.Store(&now)
			if lost {
				log.Info("the list of revoked tokens is back", "backend", backend)
			}
			lost, failures = false, 0
			pause.Reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if !lost {
			log.Warn("the list of revoked tokens is lost; it stays as it was", "backend", backend, "error", err)
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

// poll asks once: for the whole list, or for what has changed since version, at once or after a wait for it.
func (r *Revoked) poll(ctx context.Context, src Source, backend int, version int64, atOnce, whole bool) (*wire.Revocations, error) {
	wait := listWait
	if atOnce {
		wait = 0
	}
	target := wire.RevocationsPath
	if !whole {
		q := url.Values{"since": {strconv.FormatInt(version, 10)}, "wait_ms": {strconv.FormatInt(wait.Milliseconds(), 10)}}
		target += "?" + q.Encode()
	}
	body, err := src.Feed(ctx, backend, target, wait+answerTime)
	if err != nil {
		return nil, err
	}
	var list wire.Revocations
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("read the list of revoked tokens: %w", err)
	}
	if list.Now.IsZero() || list.KeepMS <= 0 || len(list.Entries) > 2*wire.MaxRevocations {
		return nil, errors.New("read the list of revoked tokens: no such list")
	}
	return &list, nil
}

// Heard is when a backend last sent the list, or that nothing has changed; the zero time: never.
func (r *Revoked) Heard() time.Time {
	if at := r.heard.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Quiet reports whether there was an answer once, and none for too long.
func (r *Revoked) Quiet() bool { return !r.Heard().IsZero() && time.Since(r.Heard()) > quietTime }

// Keep is for how long the backends keep a revocation; 0: they have not said so yet.
func (r *Revoked) Keep() time.Duration { return time.Duration(r.keep.Load()) * time.Millisecond }

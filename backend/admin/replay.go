package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/deadletter"
)

const (
	replayMost    = 100             // dead letters of one request
	replayReserve = 5 * time.Second // of a request's time, for marking them
)

// replayDeadLetters processes the orders of open dead letters anew, the oldest first, one after the other. It stops at the first that
// cannot be processed, which stays open; so no later order overtakes it. Replayed alone, that one is out of the way. Asked again, also
// after an answer that was lost, it goes on.
func (a *Admin) replayDeadLetters(r *request) (*answer, error) {
	key, err := r.idempotencyKey()
	if err != nil {
		return nil, err
	}
	var in adminapi.Replay
	if len(r.body) > 0 {
		if err := r.decode(&in); err != nil {
			return nil, err
		}
	}
	var id, limit int64 = 0, replayMost
	if err := first(between("sale_id", in.SaleID, 1, 1<<63-1, &id), between("limit", in.Limit, 1, replayMost, &limit)); err != nil {
		return nil, err
	}
	if key != "" {
		if done, err := a.repeat(r.Context(), r, key); !errors.Is(err, sql.ErrNoRows) {
			return done, err
		}
	}
	ids, open, err := a.DeadLetters.Oldest(r.Context(), id, limit)
	if err != nil {
		return nil, err
	}
	v := adminapi.ReplayDone{Replayed: []adminapi.ReplayedLetter{}, Left: open}
	for _, id := range ids {
		if until, ok := r.Context().Deadline(); ok && time.Until(until) < replayReserve {
			break
		}
		done, err := a.DeadLetters.Replay(r.Context(), id)
		if errors.Is(err, deadletter.ErrNotFound) {
			continue // too old
		}
		if err != nil {
			a.Log.Warn("admin: a dead letter could not be replayed", "request_id", r.id, "dead_letter", id, "error", err)
			v.Stopped = &adminapi.ReplayedLetter{ID: id, Result: "failed", Detail: "a store does not answer as it should: try again"}
			break
		}
		letter := adminapi.ReplayedLetter{ID: id, OrderID: done.OrderID, Result: done.Result, Detail: done.Detail}
		if done.Result == deadletter.Refused || done.Result == deadletter.Unreadable {
			v.Stopped = &letter
			break
		}
		v.Replayed = append(v.Replayed, letter)
	}
	v.Left -= int64(len(v.Replayed))
	if len(v.Replayed) == 0 {
		return &answer{status: http.StatusOK, value: v}, nil
	}
	target := "all dead letters"
	if id > 0 {
		target = fmt.Sprintf("dead letters of sale %d", id)
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		for _, l := range v.Replayed {
			if _, _, err := a.DeadLetters.Mark(ctx, tx, l.ID); err != nil {
				return change.Change{}, err
			}
		}
		return change.Change{Action: "dead-letter.replay", Target: target, Before: map[string]int64{"open": open}, After: v}, nil
	})
}

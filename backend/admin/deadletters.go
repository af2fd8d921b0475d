package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/shared/problem"
)

// letterPage is how many dead letters one page has, at most: each may carry 64 KiB.
const letterPage = 100

func (a *Admin) listDeadLetters(r *request) (*answer, error) {
	open := false
	if q := r.URL.Query(); q.Has("open") {
		var err error
		if open, err = strconv.ParseBool(q.Get("open")); err != nil {
			return nil, problem.Invalid("open", "true leaves out what was replayed")
		}
	}
	below, limit, err := r.page(letterPage, "open")
	if err != nil {
		return nil, err
	}
	list, err := a.DeadLetters.List(r.Context(), below, limit+1, open)
	if err != nil {
		return nil, err
	}
	var next string
	if int64(len(list)) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].ID, 10)
	}
	return &answer{status: http.StatusOK, value: adminapi.DeadLetters{DeadLetters: list, Page: adminapi.Page{Next: next}}}, nil
}

func (a *Admin) getDeadLetter(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "dead letter")
	if err != nil {
		return nil, err
	}
	l, err := a.DeadLetters.Get(r.Context(), id)
	if errors.Is(err, deadletter.ErrNotFound) {
		return nil, noLetter(id)
	}
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: l}, nil
}

func noLetter(id int64) *problem.Problem {
	return problem.New(problem.NotFound, fmt.Sprintf("there is no dead letter %d", id))
}

// replayDeadLetter processes a dead letter's order anew, and says what came of it. Asked again it changes nothing: MySQL
// has decided by then. The audit log has what changed.
func (a *Admin) replayDeadLetter(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "dead letter")
	if err != nil {
		return nil, err
	}
	key, err := r.idempotencyKey()
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	if key != "" {
		if done, err := a.repeat(r.Context(), r, key); !errors.Is(err, sql.ErrNoRows) {
			return done, err
		}
	}
	before, err := a.DeadLetters.Get(r.Context(), id)
	if errors.Is(err, deadletter.ErrNotFound) {
		return nil, noLetter(id)
	}
	if err != nil {
		return nil, err
	}
	replayed, err := a.DeadLetters.Replay(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		first, at, err := a.DeadLetters.Mark(ctx, tx, id)
		if err != nil {
			return change.Change{}, err
		}
		replayed.ReplayedAt = &at
		replayed.Message = summary(replayed.Message) // it has a bound in the audit log
		return change.Change{Action: "dead-letter.replay", Target: "dead letter " + strconv.FormatInt(id, 10),
			Before: summary(before), After: replayed, Nothing: !first && replayed.Status == before.Status}, nil
	})
}

// summary is a letter without its payload.
func summary(l deadletter.Message) deadletter.Message {
	l.Payload = ""
	return l
}

package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/event"
	"floodgate.internal/shared/problem"
)

// listEvents answers what the shop's endpoints were told, or are still to be.
func (a *Admin) listEvents(r *request) (*answer, error) {
	const most = 200
	below, limit, err := r.page(most, "endpoint", "state")
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := event.Filter{Endpoint: q.Get("endpoint"), State: event.State(q.Get("state"))}
	if q.Has("endpoint") && !event.ValidName(f.Endpoint) {
		return nil, problem.Invalid("endpoint", fmt.Sprintf("%q is no endpoint's name: 1 to 32 of [a-z0-9-]", short(f.Endpoint)))
	}
	if q.Has("state") && !slices.Contains(event.States, f.State) {
		return nil, problem.Invalid("state", fmt.Sprintf("%q is none of %v", short(string(f.State)), event.States))
	}
	list, err := event.List(r.Context(), a.DB, f, below, limit+1)
	if err != nil {
		return nil, err
	}
	var next string
	if int64(len(list)) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].ID, 10)
	}
	return &answer{status: http.StatusOK, value: adminapi.Events{Events: list, Page: adminapi.Page{Next: next}}}, nil
}

// replayEvent makes an event be delivered anew. One that is being delivered stays as it is.
func (a *Admin) replayEvent(r *request) (*answer, error) {
	id, err := r.pathID(problem.NotFound, "event")
	if err := first(err, r.noBody()); err != nil {
		return nil, err
	}
	return a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, after, err := event.Replay(ctx, tx, a.Changes.Now(), id)
		if errors.Is(err, event.ErrNotFound) {
			return change.Change{}, problem.New(problem.NotFound, fmt.Sprintf("there is no event %d, or it was delivered long ago", id))
		}
		if err != nil {
			return change.Change{}, err
		}
		same := before.State == after.State && before.Attempts == after.Attempts && after.NextAt != nil && before.NextAt.Equal(after.NextAt.Time)
		return change.Change{Action: "event.replay", Target: "event " + strconv.FormatInt(id, 10), Before: before, After: after, Nothing: same}, nil
	})
}

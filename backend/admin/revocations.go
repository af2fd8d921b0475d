package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Revocations end tokens before they expire. Gateways take them over within a second.

// subject reads a jti or a uid, one of them.
func subject(jti, uid *string) (s revocation.Subject, err error) {
	switch {
	case (jti == nil) == (uid == nil):
		return s, problem.Invalid("jti", "give the jti of a token, or the uid whose tokens are meant")
	case jti != nil && !wire.ValidJTI(*jti):
		return s, misfit("jti", *jti)
	case uid != nil && !wire.ValidUID(*uid):
		return s, misfit("uid", *uid)
	case jti != nil:
		s.JTI = *jti
	default:
		s.UID = *uid
	}
	return s, nil
}

func (a *Admin) changeRevocations(r *request, f func(ctx context.Context, tx *sql.Tx) (change.Change, error)) (*answer, error) {
	done, err := a.change(r, f)
	switch {
	case errors.Is(err, revocation.ErrUnknown):
		return nil, problem.New(problem.NotFound, "there is no such revocation, or its time is up")
	case errors.Is(err, revocation.ErrFull):
		p := problem.New(problem.Overloaded, fmt.Sprintf("the list has %d entries, which is all that it takes: entries go when every token that they hit has expired; for more, take the key that signed the tokens out of the gateways' configuration",
			wire.MaxRevocations))
		p.RetryAfter = time.Minute
		return nil, p
	}
	if err == nil && a.Revocations != nil {
		a.Revocations.Wake()
	}
	return done, err
}

// revoke adds an entry. One that is there is never weakened.
func (a *Admin) revoke(r *request) (*answer, error) {
	var in adminapi.NewRevocation
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	s, err := subject(in.JTI, in.UID)
	if err != nil {
		return nil, err
	}
	if s.JTI != "" && in.Before != nil {
		return nil, problem.Invalid("before", "it goes with a uid; a jti is one token")
	}
	at := a.Changes.Now()
	before := at
	if err := moment("before", in.Before, &before); err != nil {
		return nil, err
	}
	if before.After(at) {
		return nil, problem.Invalid("before", fmt.Sprintf("%q is to come: tokens that are issued until then would be revoked, too; leave it out for now", *in.Before))
	}
	return a.changeRevocations(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		old, e, changed, err := revocation.Add(ctx, tx, s, before, at.Add(a.KeepRevocations), at)
		c := change.Change{Action: "revocation.add", Target: "revocations", After: e, Nothing: !changed}
		if old != nil {
			c.Before = old
		}
		return c, err
	})
}

// unrevoke takes an entry back: tokens that have not expired are good again.
func (a *Admin) unrevoke(r *request) (*answer, error) {
	var in adminapi.OldRevocation
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	s, err := subject(in.JTI, in.UID)
	if err != nil {
		return nil, err
	}
	return a.changeRevocations(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		e, err := revocation.Remove(ctx, tx, s)
		gone := e
		gone.Gone = true
		return change.Change{Action: "revocation.remove", Target: "revocations", Before: e, After: gone}, err
	})
}

// listRevocations answers with a page of the list, the newest first, or, with ?jti= or ?uid=, with that entry alone.
func (a *Admin) listRevocations(r *request) (*answer, error) {
	const most = 1000
	below, limit, err := r.page(most, "jti", "uid")
	if err != nil {
		return nil, err
	}
	var list []revocation.Entry
	var next string
	if q := r.URL.Query(); q.Has("jti") || q.Has("uid") {
		var jti, uid *string
		if q.Has("jti") {
			jti = new(q.Get("jti"))
		}
		if q.Has("uid") {
			uid = new(q.Get("uid"))
		}
		s, err := subject(jti, uid)
		if err != nil {
			return nil, err
		}
		if list, err = revocation.Find(r.Context(), a.DB, s, a.Changes.Now()); err != nil {
			return nil, err
		}
	} else {
		if list, err = revocation.Page(r.Context(), a.DB, below, limit+1, a.Changes.Now()); err != nil {
			return nil, err
		}
		if int64(len(list)) > limit {
			list = list[:limit]
			next = strconv.FormatInt(list[limit-1].ID, 10)
		}
	}
	return &answer{status: http.StatusOK, value: adminapi.Revocations{Revocations: list, Page: adminapi.Page{Next: next}}}, nil
}

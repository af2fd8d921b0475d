package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// uidPage is how many uids one page of a list has, at most.
const uidPage = 1000

// uids checks a member that is a list of uids; each that is none is named by its place.
func uids(field string, list *[]string) ([]string, error) {
	if list == nil {
		return nil, nil
	}
	for i, uid := range *list {
		if !wire.ValidUID(uid) {
			return nil, problem.Invalid(fmt.Sprintf("%s/%d", field, i), fmt.Sprintf("%q is no uid: it is 1 to %d of [A-Za-z0-9._-]", short(uid), wire.MaxUID))
		}
	}
	if n := len(*list); n > eligibility.MaxChunk {
		return nil, problem.Invalid(field, fmt.Sprintf("%d uids are more than the %d that one request takes: send them in several", n, eligibility.MaxChunk))
	}
	return *list, nil
}

// difference reads {"add":[...],"remove":[...]}.
func (r *request) difference() (add, remove []string, err error) {
	var in adminapi.ListChange
	if err := r.decode(&in); err != nil {
		return nil, nil, err
	}
	add, err1 := uids("add", in.Add)
	remove, err2 := uids("remove", in.Remove)
	if err := first(err1, err2); err != nil {
		return nil, nil, err
	}
	if len(add)+len(remove) == 0 {
		return nil, nil, problem.Invalid("add", "nothing is asked for: give uids to add, to remove, or both")
	}
	if n := len(add) + len(remove); n > eligibility.MaxChunk {
		return nil, nil, problem.Invalid("remove", fmt.Sprintf("%d uids together are more than the %d that one request takes: send them in several", n, eligibility.MaxChunk))
	}
	for i, uid := range remove {
		if slices.Contains(add, uid) {
			return nil, nil, problem.Invalid(fmt.Sprintf("remove/%d", i), fmt.Sprintf("%q is in add too: decide", uid))
		}
	}
	return add, remove, nil
}

// changeList runs a change of a list. What is wrong with it is a problem; what changes nothing is not logged.
func (a *Admin) changeList(r *request, action, target string, f func(ctx context.Context, tx *sql.Tx) (before eligibility.State, done eligibility.Changed, err error)) (*answer, error) {
	done, err := a.change(r, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, done, err := f(ctx, tx)
		return change.Change{Action: action, Target: target, Before: before, After: done, Nothing: done.State == before}, err
	})
	switch {
	case errors.Is(err, eligibility.ErrInactive):
		return nil, problem.New(problem.SaleStateConflict, target+" has no list: anybody may buy; PUT one first")
	case errors.Is(err, eligibility.ErrFull):
		var full *eligibility.FullError
		errors.As(err, &full)
		p := problem.New(problem.Overloaded, full.Error())
		p.RetryAfter = time.Minute
		return nil, p
	}
	if err == nil && a.Lists != nil {
		a.Lists.Wake()
	}
	return done, err
}

// getList answers with a page of a list by ascending uid, or, with ?uid=, with that one alone if it is on the list.
func (a *Admin) getList(r *request, list int64) (*answer, error) {
	q := r.URL.Query()
	for name := range q {
		if !slices.Contains([]string{"cursor", "limit", "uid"}, name) {
			return nil, problem.Invalid(short(name), "unknown parameter: there are cursor, limit, uid")
		}
	}
	limit := int64(uidPage)
	if q.Has("limit") {
		n, ok := wire.ParseID(q.Get("limit"))
		if !ok || n > uidPage {
			return nil, problem.Invalid("limit", fmt.Sprintf("%s is not from 1 to %d", short(q.Get("limit")), uidPage))
		}
		limit = n
	}
	for _, name := range []string{"cursor", "uid"} {
		if q.Has(name) && !wire.ValidUID(q.Get(name)) {
			return nil, problem.Invalid(name, fmt.Sprintf("%q is no uid: it is 1 to %d of [A-Za-z0-9._-]", short(q.Get(name)), wire.MaxUID))
		}
	}
	var s eligibility.State
	var page []string
	var next string
	var err error
	if q.Has("uid") {
		var has bool
		s, has, err = eligibility.Has(r.Context(), a.DB, list, q.Get("uid"))
		if page = []string{}; has {
			page = append(page, q.Get("uid"))
		}
	} else {
		s, page, err = eligibility.Page(r.Context(), a.DB, list, q.Get("cursor"), limit+1)
		if int64(len(page)) > limit {
			page = page[:limit]
			next = page[limit-1]
		}
	}
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, value: adminapi.List{State: s, UIDs: page, Page: adminapi.Page{Next: next}}}, nil
}

// Bans are of everybody, for every sale. Orders that a banned uid has stand.

func (a *Admin) getBans(r *request) (*answer, error) { return a.getList(r, eligibility.Bans) }

func (a *Admin) changeBans(r *request) (*answer, error) {
	add, remove, err := r.difference()
	if err != nil {
		return nil, err
	}
	return a.changeList(r, "bans.change", "bans", func(ctx context.Context, tx *sql.Tx) (eligibility.State, eligibility.Changed, error) {
		return eligibility.Change(ctx, tx, eligibility.Bans, a.Changes.Now(), add, remove)
	})
}

// changeSaleList is changeList of a sale's list. The sale must not be closed, and is not while it runs.
func (a *Admin) changeSaleList(r *request, action string, f func(ctx context.Context, tx *sql.Tx, sale int64) (eligibility.State, eligibility.Changed, error)) (*answer, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err != nil {
		return nil, err
	}
	return a.changeList(r, action, change.Sale(id), func(ctx context.Context, tx *sql.Tx) (before eligibility.State, done eligibility.Changed, err error) {
		s, err := sale.Lock(ctx, tx, id)
		if err == nil {
			err = s.Open()
		}
		if err != nil {
			return before, done, err
		}
		return f(ctx, tx, id)
	})
}

// listedSale is the sale of the path.
func (a *Admin) listedSale(r *request) (int64, error) {
	id, err := r.pathID(problem.SaleNotFound, "sale")
	if err == nil {
		_, err = sale.Get(r.Context(), a.DB, id)
	}
	return id, err
}

func (a *Admin) getEligible(r *request) (*answer, error) {
	id, err := a.listedSale(r)
	if err != nil {
		return nil, err
	}
	return a.getList(r, id)
}

// changeEligible adds uids to a sale's list and takes some off it.
func (a *Admin) changeEligible(r *request) (*answer, error) {
	add, remove, err := r.difference()
	if err != nil {
		return nil, err
	}
	return a.changeSaleList(r, "eligibility.change", func(ctx context.Context, tx *sql.Tx, id int64) (eligibility.State, eligibility.Changed, error) {
		return eligibility.Change(ctx, tx, id, a.Changes.Now(), add, remove)
	})
}

// setEligible makes the uids of the request a sale's whole list: from then on only they may buy. A longer list is begun
// with its first uids and grows by changes; do that before the sale starts, or add and remove what differs.
func (a *Admin) setEligible(r *request) (*answer, error) {
	var in adminapi.NewList
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	list, err := uids("uids", in.UIDs)
	if err := first(needed("uids", in.UIDs), err); err != nil {
		return nil, err
	}
	return a.changeSaleList(r, "eligibility.set", func(ctx context.Context, tx *sql.Tx, id int64) (eligibility.State, eligibility.Changed, error) {
		return eligibility.Replace(ctx, tx, id, a.Changes.Now(), list)
	})
}

// liftEligible ends a sale's list: anybody may buy.
func (a *Admin) liftEligible(r *request) (*answer, error) {
	if err := r.noBody(); err != nil {
		return nil, err
	}
	return a.changeSaleList(r, "eligibility.lift", func(ctx context.Context, tx *sql.Tx, id int64) (eligibility.State, eligibility.Changed, error) {
		return eligibility.Lift(ctx, tx, id, a.Changes.Now())
	})
}

// concentration reports from which networks this process took a sale's orders.
func (a *Admin) concentration(r *request) (*answer, error) {
	id, err := a.listedSale(r)
	if err != nil {
		return nil, err
	}
	if len(r.URL.RawQuery) > 0 {
		return nil, problem.Invalid(short(strings.SplitN(r.URL.RawQuery, "=", 2)[0]), "this takes no parameters")
	}
	if a.Origins == nil {
		return nil, problem.New(problem.NotFound, "this process takes no orders: ask the admin listener of each process with the role api, they count what they took")
	}
	c := a.Origins.Of(id)
	return &answer{status: http.StatusOK, value: adminapi.Concentration{SaleID: id, Since: wire.At(c.Since), Orders: c.Orders, Networks: c.Networks}}, nil
}

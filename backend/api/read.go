package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/order"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// pageSize is how many orders or coupons one answer lists.
const pageSize = 50

// json makes v the body.
func (r *request) json(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an answer that does not marshal: " + err.Error())
	}
	r.Response.Header.SetContentType("application/json")
	r.Response.SetBodyRaw(b)
}

// errFull: as many requests wait as may.
var errFull = errors.New("too many requests are waiting")

// private answers with what is nobody else's business.
func (r *request) private(v any) string {
	r.Response.Header.Set("Cache-Control", "no-store")
	r.json(v)
	return resultOK
}

// page answers with what anyone may keep for a second. tagged is v without the time of the answer, so that the tag
// changes only with what matters.
func (r *request) page(v, tagged any) string {
	b, err := json.Marshal(tagged)
	if err != nil {
		panic("BUG: an answer that does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(b)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	r.Response.Header.Set("ETag", "W/"+tag)
	r.Response.Header.Set("Cache-Control", "public, max-age=1")
	if tagMatches(string(r.Request.Header.Peek("If-None-Match")), tag) {
		r.Response.SetStatusCode(304)
		return resultNotModified
	}
	r.json(v)
	return resultOK
}

// tagMatches compares weakly, as If-None-Match does.
func tagMatches(header, tag string) bool {
	for _, t := range strings.Split(header, ",") {
		if t = strings.TrimSpace(t); t == "*" || strings.TrimPrefix(t, "W/") == tag {
			return true
		}
	}
	return false
}

func (s *Server) getTime(r *request) string {
	return r.private(wire.Now{Now: wire.At(s.Clock.Now())})
}

func (s *Server) getSales(r *request) string {
	if err := s.Catalog.Ready(); err != nil {
		return r.refuse(overloaded("the sales are being read"))
	}
	list := s.Catalog.List()
	tagged := make([]wire.Sale, len(list))
	copy(tagged, list)
	for i := range tagged {
		tagged[i].Now = wire.Time{}
	}
	return r.page(wire.SaleList{Sales: list}, tagged)
}

func (s *Server) getSale(r *request) string {
	id, p := r.saleID()
	if p != nil {
		return r.refuse(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	if _, p := s.sale(ctx, id); p != nil && p.Code != problem.SaleEnded {
		return r.refuse(p)
	}
	sale, ok := s.Catalog.Public(id)
	if !ok && s.Catalog.Ready() != nil { // it was looked up, and nothing else of it is known yet
		return r.refuse(overloaded("the sales are being read"))
	}
	if !ok { // it has just left the catalog, or was archived long ago
		return r.refuse(noSuchSale())
	}
	tagged := sale
	tagged.Now = wire.Time{}
	return r.page(sale, tagged)
}

// getHealth is what gateways check.
func (s *Server) getHealth(r *request) string {
	if s.stopping.Err() != nil {
		return r.refuse(overloaded("the backend is draining"))
	}
	if err := s.Catalog.Ready(); err != nil {
		return r.refuse(overloaded("the sales are being read"))
	}
	return r.private(struct{}{})
}

// getFeed is the long poll of gateways.
func (s *Server) getFeed(r *request) string {
	wait, p := r.query.wait()
	if p != nil {
		return r.refuse(p)
	}
	instance := r.query["instance"]
	if instance != "" && !wire.ValidUID(instance) {
		return r.refuse(problem.Invalid("instance", "it must be what the last answer had"))
	}
	var since uint64
	if v, ok := r.query["since"]; ok {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return r.refuse(problem.Invalid("since", "it must be the version that the last answer had"))
		}
		since = n
	}
	if err := s.Catalog.Ready(); err != nil {
		return r.refuse(overloaded("the sales are being read"))
	}
	unpark, ok := s.park()
	if !ok {
		return r.refuse(overloaded("too many requests are waiting"))
	}
	answer := s.Catalog.Feed(s.stopping, instance, since, wait)
	unpark()
	return r.private(answer)
}

func (s *Server) getOrder(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	wait, p := r.query.wait()
	if p != nil {
		return r.refuse(p)
	}
	id, p := r.orderID()
	if p != nil {
		return r.refuse(p)
	}
	o, err := s.awaitOrder(uid, id, wait)
	if errors.Is(err, errFull) {
		return r.refuse(overloaded("too many requests are waiting"))
	}
	if err != nil {
		return r.refuse(s.readFailed(err, r))
	}
	if o.Status == wire.Queued {
		o.QueueLag = s.Catalog.Lag(o.SaleID).Milliseconds()
	}
	return r.private(o)
}

// awaitOrder reads an order, after waiting for it to leave queued if there is a wait. A shutdown ends the wait, and the
// order is answered as it stands.
func (s *Server) awaitOrder(uid, id string, wait time.Duration) (wire.Order, error) {
	if wait > 0 {
		unpark, ok := s.park()
		if !ok {
			return wire.Order{}, errFull
		}
		defer unpark()
		ctx, cancel := context.WithTimeout(s.stopping, wait+workTimeout)
		defer cancel()
		o, err := s.Reader.Order(ctx, uid, id, wait)
		if s.stopping.Err() == nil || err == nil {
			return o, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	return s.Reader.Order(ctx, uid, id, 0)
}

func (s *Server) getOrders(r *request) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	var sale int64
	if v, ok := r.query["sale_id"]; ok {
		if sale, ok = wire.ParseID(v); !ok {
			return r.refuse(problem.Invalid("sale_id", "it must be a positive whole number"))
		}
	}
	cursor := r.query["cursor"]
	if cursor != "" && !wire.ValidIdempotencyKey(cursor) {
		return r.refuse(problem.Invalid("cursor", "it must be the next of an earlier answer"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	list, err := s.Reader.List(ctx, uid, sale, s.Catalog.Live(), cursor, pageSize)
	if err != nil {
		return r.refuse(s.readFailed(err, r))
	}
	return r.private(list)
}

// readFailed maps the errors of reads.
func (s *Server) readFailed(err error, r *request) *problem.Problem {
	switch {
	case errors.Is(err, order.ErrNotFound):
		return noSuchOrder()
	case errors.Is(err, order.ErrCursor):
		return problem.Invalid("cursor", "it must be the next of an earlier answer")
	default:
		s.sparse.warn("api: orders could not be read", r.ids(), "error", err)
		return overloaded("orders cannot be read at the moment")
	}
}

func (s *Server) postPayment(r *request) string {
	if s.Payer == nil {
		return r.refuse(problem.New(problem.Forbidden, "this system has no test payments: orders are paid through its payment provider"))
	}
	return s.change(r, s.Payer.Pay)
}

func (s *Server) postCancellation(r *request) string { return s.change(r, s.Orders.Cancel) }

// change pays or cancels an order.
func (s *Server) change(r *request, do func(ctx context.Context, uid, orderID string) (wire.Order, error)) string {
	uid, p := r.user()
	if p != nil {
		return r.refuse(p)
	}
	id, p := r.orderID()
	if p != nil {
		return r.refuse(p)
	}
	if p := r.noBody(); p != nil {
		return r.refuse(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	o, err := do(ctx, uid, id)
	var state *order.StateError
	switch {
	case err == nil:
		return r.private(o)
	case errors.Is(err, order.ErrNotFound):
		return r.refuse(noSuchOrder())
	case errors.As(err, &state):
		return r.refuse(problem.New(problem.OrderStateConflict, fmt.Sprintf("the order is %s: %s", state.Order.Status, state.Detail)))
	default:
		s.sparse.warn("api: an order could not be changed", "route", r.route.name, r.ids(), "error", err)
		return r.refuse(unknownOutcome("the change may or may not have been made: ask again, it is made once; or read the order"))
	}
}

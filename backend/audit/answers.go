package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Answer is one line of a client-side log of answers to orders.
type Answer struct {
	UID     string       `json:"uid"`
	Sale    int64        `json:"sale"`
	Key     string       `json:"key"`      // Idempotency-Key, or ""
	Status  int          `json:"status"`   // of HTTP; 0: no answer came
	OrderID string       `json:"order_id"` // of a 202, or of an ALREADY_ORDERED
	Code    problem.Code `json:"code"`     // of a problem; may be left out
	// Line is where it stands in the log.
	Line int `json:"-"`
}

func (a Answer) accepted() bool { return a.Status == http.StatusAccepted }

// unknown: the request may have been carried out. A 503 that does not say that nothing was done is unknown.
func (a Answer) unknown() bool {
	return a.Status == 0 || a.Status >= 500 && a.Code != problem.Overloaded
}

// maxLine bounds a line of the log.
const maxLine = 64 << 10

// ReadAnswers reads a log of answers, a JSON object a line. sale_id and idempotency_key may stand for sale and key. It
// skips other members and empty lines.
func ReadAnswers(r io.Reader) ([]Answer, error) {
	all := []Answer{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4096), maxLine)
	n := 0
	for lines.Scan() {
		n++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		var named struct { // other names for the same
			Answer
			SaleID         int64  `json:"sale_id"`
			IdempotencyKey string `json:"idempotency_key"`
		}
		if err := json.Unmarshal(text, &named); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		a := named.Answer
		a.Line, a.Sale, a.Key = n, cmp.Or(a.Sale, named.SaleID), cmp.Or(a.Key, named.IdempotencyKey)
		if a.UID == "" || a.Sale < 1 {
			return nil, fmt.Errorf("line %d: it needs uid and sale", n)
		}
		all = append(all, a)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return all, nil
}

// Answered is the comparison of a log of answers with the stores.
type Answered struct {
	Balanced bool `json:"balanced"` // nothing in it contradicts the stores
	Lines    int  `json:"lines"`
	Accepted int  `json:"accepted"` // 202s
	Refused  int  `json:"refused"`
	Unknown  int  `json:"unknown"`  // no answer, or one that leaves open whether there is an order
	Promised int  `json:"promised"` // different orders of the 202s
	Queued   int  `json:"queued"`   // of them, not in MySQL yet
	Lost     int  `json:"lost"`     // of them, nowhere, or queued longer than the bound
	// Rejected orders of the 202s, by reason.
	Rejected map[string]int `json:"rejected"`
	Findings []Finding      `json:"findings"`
}

// The rules that a log must keep, as findings name them.
const (
	eqPromise = "every 202 is an order in MySQL"
	eqWant    = "no promised order is rejected for want of stock"
	eqRefusal = "a refused request has no order"
	eqKey     = "one Idempotency-Key is one order"
	eqOwner   = "an order is one buyer's"
	eqNamed   = "a 202 names an order of its sale"
)

// Answers compares a log with the stores. Every 202 is in MySQL, or queued for less than the bound, and not rejected for
// want of stock. A refused request has no order. The same key has one order. It is safe on live sales. A sale that MySQL
// does not have is a finding.
func (a *Auditor) Answers(ctx context.Context, log []Answer) (Answered, error) {
	bySale := map[int64][]Answer{}
	for _, line := range log {
		bySale[line.Sale] = append(bySale[line.Sale], line)
	}
	r := Answered{Lines: len(log), Rejected: map[string]int{}, Findings: []Finding{}}
	for _, sale := range slices.Sorted(maps.Keys(bySale)) {
		now, snap, m, err := a.still(ctx, sale)
		if err != nil {
			return r, fmt.Errorf("answers of sale %d: %w", sale, err)
		}
		h := holding{r: &r, sale: sale, now: now, bound: a.bound, outbox: entries(snap.Outbox), orders: m.orders}
		h.hold(bySale[sale])
	}
	slices.SortStableFunc(r.Findings, func(f, g Finding) int { return f.Line - g.Line })
	r.Findings = bounded(r.Findings)
	r.Balanced = len(r.Findings) == 0
	return r, nil
}

// still reads a sale, Redis before MySQL, for orders move from the one to the other. While a reconciler has the gate
// closed an order may be in the broker alone, until a consumer has adopted it: still waits for that. If MySQL does not
// have the sale m is empty.
func (a *Auditor) still(ctx context.Context, sale int64) (now time.Time, snap reserve.Snapshot, m saleRows, err error) {
	for round := 1; ; round++ {
		if now, err = a.redis.Client().Now(ctx); err != nil {
			return now, snap, m, err
		}
		if snap, err = a.redis.Snapshot(ctx, sale); err != nil {
			return now, snap, m, err
		}
		m, err = read(ctx, a.db, sale)
		if errors.Is(err, ErrUnknownSale) {
			return now, snap, saleRows{}, nil
		}
		if err != nil || m.archived || open(snap.State) || round >= closedRounds {
			return now, snap, m, err
		}
		select {
		case <-ctx.Done():
			return now, snap, m, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// holding is one sale's part of a log.
type holding struct {
	r      *Answered
	sale   int64
	now    time.Time
	bound  time.Duration
	outbox map[string]queued.Entry
	orders map[string]order
}

func (h *holding) find(line Answer, equation, orderID, fix, detail string, args ...any) {
	h.r.Findings = append(h.r.Findings, Finding{Equation: equation, OrderID: orderID, Line: line.Line, Fix: fix,
		Detail: fmt.Sprintf("uid %s, sale %d, status %d: ", line.UID, line.Sale, line.Status) + fmt.Sprintf(detail, args...)})
}

type request struct{ uid, key string }

func (h *holding) hold(log []Answer) {
	promised := map[string]Answer{} // order -> its first line
	keys := map[request]Answer{}
	told := map[string]bool{}      // orders that an answer named
	open := map[string]int{}       // requests of a buyer of unknown outcome
	refused := map[string]Answer{} // a buyer's first refusal
	for _, line := range log {
		switch {
		case line.accepted():
			h.r.Accepted++
			told[line.OrderID] = true
			h.key(keys, line)
			if first, ok := promised[line.OrderID]; ok {
				if first.UID != line.UID {
					h.find(line, eqOwner, line.OrderID, "two buyers were told of one order: stop the sale and see the gateway's log for both requests", "line %d gave the order to uid %s", first.Line, first.UID)
				}
				continue
			}
			promised[line.OrderID] = line
			h.promise(line)
		case line.unknown():
			h.r.Unknown++
			open[line.UID]++
		default:
			h.r.Refused++
			if line.OrderID != "" { // ALREADY_ORDERED: a lost answer is no lost order
				told[line.OrderID] = true
				h.key(keys, line)
				if uid, ok := h.owner(line.OrderID); ok && uid != line.UID {
					h.find(line, eqOwner, line.OrderID, "a buyer was told of another's order", "the order is uid %s's", uid)
				}
			}
			if _, ok := refused[line.UID]; !ok {
				refused[line.UID] = line
			}
		}
	}
	h.r.Promised += len(promised)
	h.refusals(log, keys, told, open, refused)
}

// key: the orders that a buyer's requests under one key got are one.
func (h *holding) key(keys map[request]Answer, line Answer) {
	if line.Key == "" || line.Code == problem.AlreadyOrdered {
		return
	}
	k := request{line.UID, line.Key}
	first, ok := keys[k]
	if !ok {
		keys[k] = line
		return
	}
	if first.OrderID != line.OrderID {
		h.find(line, eqKey, line.OrderID, "a repeat made an order of its own: cancel one of the two", "the key %q got order %s on line %d", line.Key, first.OrderID, first.Line)
	}
}

func (h *holding) owner(id string) (string, bool) {
	if o, ok := h.orders[id]; ok {
		return o.uid, true
	}
	e, ok := h.outbox[id]
	return e.UID, ok
}

// promise: the order of a 202 is where it must be.
func (h *holding) promise(line Answer) {
	if sale, ok := wire.SaleOfOrder(line.OrderID); !ok || sale != line.Sale {
		h.find(line, eqNamed, line.OrderID, "the log is damaged, or the answer came from elsewhere", "%q is no order id of the sale", line.OrderID)
		return
	}
	o, settled := h.orders[line.OrderID]
	e, queued := h.outbox[line.OrderID]
	switch {
	case settled && o.uid != line.UID:
		h.find(line, eqOwner, line.OrderID, "a buyer was told of another's order", "the order is uid %s's", o.uid)
	case settled && o.status == wire.Rejected:
		h.r.Rejected[o.reason]++
		if o.reason == "out_of_stock" {
			h.find(line, eqWant, line.OrderID, "the promise was broken: Redis lost what it had acknowledged (is it appendfsync always?); tell the buyer", "the order is rejected: %s", o.reason)
		}
	case settled:
	case queued && e.UID != line.UID:
		h.find(line, eqOwner, line.OrderID, "a buyer was told of another's order", "the order is uid %s's", e.UID)
	case queued:
		h.r.Queued++
		if age := h.now.UnixMilli() - e.At; age > h.bound.Milliseconds() {
			h.r.Lost++
			h.find(line, eqPromise, line.OrderID, "it is not lost: see backend queue for what keeps it", "queued for %.1f s, the bound is %s", float64(age)/1000, h.bound)
		}
	default:
		h.r.Lost++
		h.find(line, eqPromise, line.OrderID, "the order is lost: tell the buyer, and audit the sale for where its units are", "the order is neither in MySQL nor in the outbox")
	}
}

// refusals: a buyer who was only refused has no order, under the key of the request or without one. For each request of
// unknown outcome one unnamed order is allowed. An offer to the standby line answers no request.
func (h *holding) refusals(log []Answer, keys map[request]Answer, told map[string]bool, open map[string]int, refused map[string]Answer) {
	byKey, untold := map[request]string{}, map[string][]string{}
	note := func(id, uid, key string) {
		if wire.IsOffer(id, key) { // nobody asked for it
			return
		}
		if key != "" {
			byKey[request{uid, key}] = id
		}
		if _, ok := refused[uid]; ok && !told[id] {
			untold[uid] = append(untold[uid], id)
		}
	}
	for id, o := range h.orders {
		note(id, o.uid, o.key)
	}
	for id, e := range h.outbox {
		if _, ok := h.orders[id]; !ok {
			note(id, e.UID, e.Key)
		}
	}
	unknown := map[request]bool{}
	for _, line := range log {
		if line.Key != "" && line.unknown() {
			unknown[request{line.UID, line.Key}] = true
		}
	}
	const fix = "the buyer was refused and has an order: tell them, or cancel it"
	found := map[string]bool{}
	for _, line := range log {
		k := request{line.UID, line.Key}
		if line.Key == "" || line.accepted() || line.unknown() || line.OrderID != "" || unknown[k] {
			continue
		}
		id, has := byKey[k]
		if _, later := keys[k]; has && !later && !found[id] {
			found[id] = true
			h.find(line, eqRefusal, id, fix, "the request's key %q has an order", line.Key)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(untold)) {
		ids := slices.DeleteFunc(untold[uid], func(id string) bool { return found[id] })
		if len(ids) > open[uid] {
			slices.Sort(ids)
			h.find(refused[uid], eqRefusal, ids[0], fix, "the buyer holds %s, of which no answer told, and the outcome of %d requests is unknown", strings.Join(ids, ", "), open[uid])
		}
	}
}

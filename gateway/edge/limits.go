package edge

import (
	"net/netip"
	"time"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// client is the address that the request counts for: the connection's, or the one that a trusted proxy names. There is none
// where a listener in memory has none.
func (x *exchange) client() netip.Addr {
	if !x.from.IsValid() {
		x.from = x.addr.addr
		if x.set.Trusted.Contains(x.from) {
			x.from = network.Client(x.from, x.set.Trusted, x.ctx.Request.Header.PeekAll("X-Forwarded-For"))
		}
	}
	return x.from
}

// takeAddress draws on the address's buckets, where it has any.
func (x *exchange) takeAddress(buckets *limit.Buckets[[16]byte], rule *limit.Rule) limit.Decision {
	a := x.client()
	if !a.IsValid() || x.set.Exempt.Contains(a) {
		return limit.Decision{OK: true}
	}
	return x.noted(buckets.Take(network.Key(a), rule, x.now))
}

// takeUser draws on the user's buckets, where they have any.
func (x *exchange) takeUser(buckets *limit.Buckets[string], rule *limit.Rule, uid string) limit.Decision {
	if _, exempt := x.set.ExemptUsers[uid]; exempt {
		return limit.Decision{OK: true}
	}
	return x.noted(buckets.Take(uid, rule, x.now))
}

// noted notes when the next request would find a token: whatever this one is refused by, it is told no earlier time to come back.
func (x *exchange) noted(d limit.Decision) limit.Decision {
	x.wait = max(x.wait, d.Wait)
	return d
}

// network is the network that the client's address is in: backends count where orders come from, and need to know no more.
func (x *exchange) network() string {
	a := x.client()
	if !a.IsValid() {
		return ""
	}
	return wire.Network(a)
}

// overLimit is what a request is told that a rule refused.
var overLimit = func() (l [rules]*salegate.Refusal) {
	for by, detail := range map[rule]string{
		ruleIP:      "too many requests from your address; nothing was done",
		ruleWebhook: "too many deliveries from your address; nothing was done, deliver it again",
		ruleOrder:   "one order at a time; nothing was done",
		rulePayment: "too many changes of your orders; nothing was done",
		ruleRead:    "too many requests; nothing was done",
		ruleGlobal:  "too many orders are coming in; nothing was done",
	} {
		l[by] = salegate.Prepare(problem.New(problem.RateLimited, detail))
	}
	return l
}()

// The other refusals that are made in advance.
var (
	bannedNetwork  = salegate.Prepare(problem.New(problem.Forbidden, "requests from this network are not taken; nothing was done"))
	bannedUser     = salegate.Prepare(problem.New(problem.Forbidden, "this account may not buy here; orders that it has stand"))
	notEligible    = salegate.Prepare(problem.New(problem.Forbidden, "ordering here is for invited accounts only, and this one is not on the list; orders that it has stand"))
	crowded        = salegate.Prepare(problem.New(problem.Overloaded, "too many orders are waiting; nothing was done"))
	busy           = salegate.Prepare(problem.New(problem.Overloaded, "the shop is busy; nothing was done"))
	deliveriesFull = salegate.Prepare(problem.New(problem.Overloaded, "too many deliveries at once; nothing was done"))
)

// admit answers 429 where the decision of a rule is one.
func (x *exchange) admit(by rule, d limit.Decision) bool {
	if d.OK {
		return true
	}
	seconds := max(1, d.Seconds())
	h := &x.ctx.Response.Header
	h.Set("RateLimit-Policy", d.Rule.Policy())
	x.body = d.Rule.AppendExhausted(x.body[:0], d.Law, seconds)
	h.SetBytesV("RateLimit", x.body)
	x.prepared(by, overLimit[by], time.Duration(seconds)*time.Second)
	return false
}

// takeOwn draws on the user's buckets for everything but orders, or answers 429.
func (x *exchange) takeOwn(uid string) bool {
	switch x.route {
	case routePay, routeCancel, routeUse:
		return x.admit(rulePayment, x.takeUser(x.s.payments, x.set.Payment, uid))
	}
	return x.admit(ruleRead, x.takeUser(x.s.reads, x.set.Read, uid))
}

// takeOrder is what follows on the decision of the user's buckets for orders: it draws on the bucket of all, or answers 429 or 503.
func (x *exchange) takeOrder(d limit.Decision) bool {
	if !d.OK { // who comes back meets the bucket of all next
		x.wait = max(x.wait, x.s.global.Wait(x.set.Global, x.set.Patience, x.now))
	}
	return x.admit(ruleOrder, d) && x.takeGlobal()
}

// takeGlobal draws on the bucket of all orders, for which an order may wait; or it answers 429, or 503 where too many wait. It
// comes after the user's own buckets, so that nobody takes more than their share of it.
func (x *exchange) takeGlobal() bool {
	d := x.noted(x.s.global.Take(x.set.Global, x.set.Patience, x.now))
	if d.Crowded {
		x.prepared(ruleGlobal, crowded, time.Duration(max(1, d.Seconds()))*time.Second)
		x.rule = verdict.Crowd
		return false
	}
	return x.admit(ruleGlobal, d)
}

// room reports that there is a place at the backends for a request of this class, and for this sale, 0 for none, or answers 503.
func (x *exchange) room(class upstream.Class, sale int64) bool {
	if x.s.Pool.Full(class, sale) {
		x.busy()
		return false
	}
	return true
}

// busy answers 503 where all places at the backends are taken.
func (x *exchange) busy() { x.prepared(ruleInFlight, busy, time.Second+jitter(time.Second)) }

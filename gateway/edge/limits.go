package edge

import (
	"time"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// network is the network of the client's address, all that backends are told of it.
func (x *exchange) network() string {
	a := x.client()
	if !a.IsValid() {
		return ""
	}
	return wire.Network(a)
}

// takeAddress draws on the address's buckets, where it has any: on the generous ones where the request's token is one that was
// found good before. So users behind one address do not use up what strangers there have, nor do strangers bar users, and still
// nobody has more signatures checked than the strict buckets let through.
func (x *exchange) takeAddress() (rule, limit.Decision) {
	switch {
	case x.op.limit == ruleWebhook:
		return x.takeAddressBy(ruleWebhook)
	case x.knowsUser():
		return x.takeAddressBy(ruleIPUsers)
	default:
		return x.takeAddressBy(ruleIP)
	}
}

// takeAddressBy draws on the address's buckets of one rule.
func (x *exchange) takeAddressBy(by rule) (rule, limit.Decision) {
	a := x.client()
	if !a.IsValid() || x.set.Exempt.Contains(a) {
		return by, limit.Decision{OK: true}
	}
	table, law := x.s.ips, x.set.IP
	switch by {
	case ruleWebhook:
		table, law = x.s.webhooks, x.set.Webhook
	case ruleIPUsers:
		table, law = x.s.ipUsers, x.set.IPUsers
	}
	return by, x.noteWait(table.Take(x.s.key(a), law, x.now))
}

// knowsUser finds the user of a token that was found good before.
func (x *exchange) knowsUser() bool {
	token, _ := x.token()
	x.known, x.isKnown = x.set.Verifier.Remembered(token)
	return x.isKnown
}

// verified is the user of a token of the request's header or cookie. The next attempt with one that was not known before draws on the
// address's generous buckets.
func (x *exchange) verified(token []byte) (identity.User, error) {
	if x.isKnown {
		return x.known, nil
	}
	user, err := x.set.Verifier.Verify(token)
	if a := x.client(); err == nil && a.IsValid() && !x.set.Exempt.Contains(a) {
		x.wait = max(x.wait, x.s.ipUsers.Wait(x.s.key(a), x.set.IPUsers, x.now))
	}
	return user, err
}

// takeUser draws on the user's buckets for this operation, where they have any.
func (x *exchange) takeUser(uid string) limit.Decision {
	set := x.userSettings(uid)
	if _, exempt := set.ExemptUsers[uid]; exempt {
		return limit.Decision{OK: true}
	}
	switch x.op.limit {
	case ruleOrder:
		return x.noteWait(x.s.orders.Take(uid, set.Order, x.now))
	case rulePayment:
		return x.noteWait(x.s.payments.Take(uid, set.Payment, x.now))
	default:
		return x.noteWait(x.s.reads.Take(uid, set.Read, x.now))
	}
}

// noteWait keeps the longest wait of all buckets asked: no refusal of this request names an earlier time to come back.
func (x *exchange) noteWait(d limit.Decision) limit.Decision {
	x.wait = max(x.wait, d.Wait)
	return d
}

// noteGlobalWait is noteWait of the bucket of all orders, which the next attempt meets.
func (x *exchange) noteGlobalWait() {
	x.wait = max(x.wait, x.s.global.Wait(x.set.Global, x.set.GlobalWait, x.now))
}

// admitAddress draws on the address's buckets, or answers 429.
func (x *exchange) admitAddress() bool { return x.admit(x.takeAddress()) }

// admitUser draws on the user's buckets for this operation, or answers 429.
func (x *exchange) admitUser(uid string) bool { return x.admit(x.op.limit, x.takeUser(uid)) }

// admit answers 429 where the decision is a refusal.
func (x *exchange) admit(by rule, d limit.Decision) bool {
	if d.OK {
		return true
	}
	after := d.AtLeastASecond()
	h := &x.ctx.Response.Header
	h.Set("RateLimit-Policy", d.Rule.Policy())
	x.body = d.Rule.AppendExhausted(x.body[:0], d.Law, int(after/time.Second))
	h.SetBytesV("RateLimit", x.body)
	x.rejectPrepared(by, overLimit[by], after)
	return false
}

// admitOrder goes on from the decision of the user's buckets for orders: it draws on the bucket of all orders, for which
// an order may wait, or answers 429, or 503 where too many wait. The user's own buckets come first, so that nobody takes
// more than their share of it.
func (x *exchange) admitOrder(d limit.Decision) bool {
	if !d.OK {
		x.noteGlobalWait()
	}
	if !x.admit(ruleOrder, d) {
		return false
	}
	d = x.noteWait(x.s.global.Take(x.set.Global, x.set.GlobalWait, x.now))
	if d.TooManyWaiting {
		x.rejectPrepared(ruleGlobal, ordersWaiting, d.AtLeastASecond())
		x.verdict = verdict.TooManyWaiting
		return false
	}
	return x.admit(ruleGlobal, d)
}

// room reports whether the backends have a place for this operation, and for this sale's orders (0: of no sale), or
// answers 503.
func (x *exchange) room(sale int64) bool {
	if x.s.Backends.Full(x.op.class, sale) {
		x.rejectFull()
		return false
	}
	return true
}

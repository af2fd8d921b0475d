package edge

import (
	"bytes"
	"cmp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

var (
	orderRoute, _            = match([]byte(orderPath))
	orderPrefix, orderEnd, _ = bytes.Cut([]byte(orderPath), []byte("{sale_id}"))
	post                     = []byte("POST ")
)

// orderedSale is the part of a canonical path that orderPath leaves open, as match returns it, in half the time.
func orderedSale(path []byte) (id []byte, ok bool) {
	id, begins := bytes.CutPrefix(path, orderPrefix)
	id, ends := bytes.CutSuffix(id, orderEnd)
	return id, begins && ends && len(id) > 0 && bytes.IndexByte(id, '/') < 0
}

// fastPath refuses an order before the HTTP parser sees it, for less than parsing it costs. It knows the two refusals of
// most of a sale's requests: the sale gate's, where the gate is certain, and that of the user's own buckets, where their token
// was verified before. b is one whole request, whose head the headFilter has checked. The answer has the bytes that the slow
// path would write; it is valid until the connection's next request.
//
// It returns nil where the request must take the slow path: whatever might be answered in another way there, must be logged,
// or ends the connection. Then it has taken no token.
func (s *Server) fastPath(c *conn, b []byte) (answer []byte) {
	defer func() {
		if r := recover(); r != nil { // the slow path then tells the client
			s.Log.Error("a request broke the fast path", "panic", r, "stack", string(debug.Stack()))
			answer = nil
		}
	}()
	h := &c.heads.last
	target, ok := bytes.CutPrefix(h.line, post)
	if !ok || !h.plainHost || h.unusual || h.bodyLen > int64(s.HTTP.MaxBody) || s.draining.Load() {
		return nil
	}
	target = target[:len(target)-len(http11)]
	path, _, ok := split(target)
	if !ok {
		return nil
	}
	id, ok := orderedSale(path)
	head, body := b[:len(b)-int(h.bodyLen)], b[len(b)-int(h.bodyLen):]
	if !ok || !printable(head) {
		return nil
	}
	set, now := s.settings.Load(), s.Now()
	sale, _ := wire.ParseID(id)
	v := s.Gate.Order(sale, now)
	byUser := v.Refusal == nil
	if set.NoFastPath || v.MayProbe() || byUser && v.Sale == nil {
		return nil
	}
	if set.CORS.allows(h.origin) || c.last(set, now) {
		return nil
	}
	from := c.addr
	claimed := h.claims()
	if claimed && set.Trusted.Contains(from) {
		if len(h.forwarded) > 0 && len(h.elements) > 0 { // which may contradict each other
			return nil
		}
		from, claimed = network.ClientForwarded(network.Client(from, set.Trusted, h.forwarded), set.Trusted, h.elements), false
	}
	if !set.BannedNetworks.Empty() && set.BannedNetworks.Contains(from) {
		return nil
	}
	x := &c.exchange
	*x = exchange{s: s, set: set, now: now, conn: c, addr: from, op: orderRoute.post, body: x.body}
	var d limit.Decision
	if byUser {
		if d, ok = x.userHasNoToken(h, body, v.Sale.PerUserLimit); !ok {
			return nil
		}
	}
	status := fasthttp.StatusTooManyRequests
	if !byUser {
		status = v.Refusal.Status
	}
	if x.toBeLogged(status) || s.Tracer != nil && x.toBeTraced(h) {
		return nil
	}
	if byUser {
		if _, d := x.takeAddressBy(ruleIPUsers); !d.OK { // nothing was taken, and the slow path refuses for it
			return nil
		}
	}
	if claimed {
		s.untrusted(c.addr)
	}
	x.setID(h.id)
	if byUser {
		answer = x.fastLimited(sale, d)
	} else {
		answer = x.fastRefusal(ruleGate, v.Refusal, v.RetryAfter, nil)
	}
	if from.IsValid() {
		s.topAddrs.Add(s.key(from), true, now)
	}
	if idle := cmp.Or(s.HTTP.IdleTimeout, s.HTTP.ReadTimeout); idle > 0 {
		c.read.want = now.Add(idle)
	}
	if s.HTTP.WriteTimeout > 0 {
		c.write.want = now.Add(s.HTTP.WriteTimeout)
	}
	return answer
}

// userHasNoToken finds the user of an order for an open sale. It reports whether only their own buckets refuse it, and that decision.
func (x *exchange) userHasNoToken(h *head, body []byte, perUser int) (limit.Decision, bool) {
	user, ok := x.set.Verifier.Remembered(bearerToken(h.authorization))
	if !ok || !x.set.mayOrder(user.UID) || h.hasKey && !wire.ValidIdempotencyKey(h.key) || len(body) > 0 && !jsonMedia(h.contentType) {
		return limit.Decision{}, false
	}
	set := x.userSettings(user.UID)
	if _, exempt := set.ExemptUsers[user.UID]; exempt {
		return limit.Decision{}, false
	}
	if _, _, err := wire.ParseOrderRequest(body, perUser); err != nil {
		return limit.Decision{}, false
	}
	x.uid = user.UID
	return x.s.orders.Refuses(user.UID, set.Order, x.now)
}

// fastLimited is the refusal by the user's own buckets.
func (x *exchange) fastLimited(sale int64, d limit.Decision) []byte {
	x.noteWait(d)
	x.noteGlobalWait()
	answer := x.fastRefusal(ruleOrder, overLimit[ruleOrder], d.AtLeastASecond(), &d)
	x.s.topUIDs.Add(x.uid, true, x.now)
	x.recordPress(sale)
	return answer
}

// fastRefusal is a refusal as fasthttp would write it, with the fields of the limit that refuses, if one does.
func (x *exchange) fastRefusal(by rule, r *problem.Prepared, after time.Duration, over *limit.Decision) []byte {
	x.refusedBy(by)
	x.result = resultOf(r.Code)
	x.s.metrics.requests[orderRoute.label][x.result].Inc()
	x.observe(orderRoute.label, r.Status)
	x.countCanary(r.Status)
	b := append(x.body[:0], "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(r.Status), 10), ' ')
	b = append(b, fasthttp.StatusMessage(r.Status)...)
	b = append(append(b, "\r\nDate: "...), x.s.dateAt(x.now)...)
	b = append(b, "\r\nContent-Type: "+problem.ContentType+"\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(r.Len(x.id)), 10)
	if over != nil {
		b = append(append(b, "\r\nRatelimit-Policy: "...), over.Rule.Policy()...)
		b = over.Rule.AppendExhausted(append(b, "\r\nRatelimit: "...), over.Law, int(over.AtLeastASecond()/time.Second))
	}
	b = append(b, "\r\nCache-Control: no-store"...)
	if after > 0 {
		b = append(append(b, "\r\nRetry-After: "...), x.retryAfter(max(after, x.wait))...)
	}
	b = append(append(b, "\r\nX-Request-Id: "...), x.id...)
	b = append(b, "\r\nX-Content-Type-Options: nosniff\r\n\r\n"...)
	x.body = r.AppendBody(b, x.id)
	return x.body
}

// date is the Date header of one second.
type date struct {
	second int64
	text   []byte
}

func (s *Server) dateAt(now time.Time) []byte {
	d := s.date.Load()
	if second := now.Unix(); d == nil || d.second != second {
		d = &date{second, fasthttp.AppendHTTPDate(nil, now)}
		s.date.Store(d)
	}
	return d.text
}

// printable reports whether a head, which ends with an empty line, has nothing but visible ASCII, spaces and line ends.
func printable(head []byte) bool {
	for i, c := range head {
		if c < ' ' || c > '~' {
			if c == '\r' && head[i+1] == '\n' || c == '\n' {
				continue
			}
			return false
		}
	}
	return true
}

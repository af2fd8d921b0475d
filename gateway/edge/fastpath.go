package edge

import (
	"bytes"
	"cmp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/salegate"
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

// fastPath refuses an order before the HTTP parser sees it, where the sale gate is certain: most of a sale's requests, for
// less than parsing them costs. b is one whole request, whose head the headFilter has checked. The answer has the bytes
// that the slow path would write; it is valid until the connection's next request.
//
// It returns nil where the request must take the slow path: whatever might be answered in another way there, must be
// logged, or ends the connection.
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
	if !ok || !printable(b[:len(b)-int(h.bodyLen)]) {
		return nil
	}
	now := s.Now()
	sale, _ := wire.ParseID(id)
	v := s.Gate.Order(sale, now)
	if v.Refusal == nil || v.MayProbe() {
		return nil
	}
	set := s.settings.Load()
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
	if set.sample() {
		c.sampled = true
		return nil
	}
	if claimed {
		s.untrusted(c.addr)
	}
	x := &c.exchange
	*x = exchange{s: s, body: x.body}
	x.setID(h.id)
	s.metrics.refusals[ruleGate].Inc()
	s.metrics.requests[orderRoute.label][resultOf(v.Refusal.Code)].Inc()
	if from.IsValid() {
		s.topAddrs.Add(s.key(from), true, now)
	}
	if idle := cmp.Or(s.HTTP.IdleTimeout, s.HTTP.ReadTimeout); idle > 0 {
		c.read.want = now.Add(idle)
	}
	if s.HTTP.WriteTimeout > 0 {
		c.write.want = now.Add(s.HTTP.WriteTimeout)
	}
	return x.response(v.Refusal, v.RetryAfter, s.dateAt(now))
}

// response is a refusal as fasthttp would write it.
func (x *exchange) response(r *salegate.Refusal, after time.Duration, date []byte) []byte {
	b := append(x.body[:0], "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(r.Status), 10), ' ')
	b = append(b, fasthttp.StatusMessage(r.Status)...)
	b = append(append(b, "\r\nDate: "...), date...)
	b = append(b, "\r\nContent-Type: "+problem.ContentType+"\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(r.Len(x.id)), 10)
	b = append(b, "\r\nCache-Control: no-store"...)
	if after > 0 {
		b = append(append(b, "\r\nRetry-After: "...), x.retryAfter(after)...)
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

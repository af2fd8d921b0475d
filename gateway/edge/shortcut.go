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
)

// shortcut answers an order that the sale gate is sure to refuse, where all of it, and nothing else, is in b: most of a sale's
// requests, for less than it costs to parse them. The screen has seen the head. It returns the answer's bytes, the same as the
// long way's and valid until the connection's next request; or nil: then the request takes the long way. So does whatever
// could be answered in another way there: the request that is to be logged, one that a parser might refuse, one after which
// the connection ends.
func (s *Server) shortcut(c *conn, b []byte) (answer []byte) {
	defer func() {
		if r := recover(); r != nil { // the long way says so to the client
			s.Log.Error("a request broke the shortcut", "panic", r, "stack", string(debug.Stack()))
			answer = nil
		}
	}()
	h := &c.screen.last
	target, ok := bytes.CutPrefix(h.line, post)
	if !ok || !h.host || h.odd || h.body > int64(s.limits.MaxBody) || s.draining.Load() {
		return nil
	}
	target = target[:len(target)-len(http11)]
	path, _, ok := split(target)
	if !ok {
		return nil
	}
	r, sale, _ := match(path)
	if r != routeOrder || !plain(b[:len(b)-int(h.body)]) {
		return nil
	}
	now := s.Now()
	v := s.Gate.Order(sale, now)
	if v.Refusal == nil || v.Doubtful() {
		return nil
	}
	set := s.settings.Load()
	from := c.addr
	if set.Trusted.Contains(from) {
		from = network.Client(from, set.Trusted, h.forwarded)
	}
	if !set.BannedNetworks.Empty() && set.BannedNetworks.Contains(from) {
		return nil
	}
	if set.chosen() {
		c.chosen = true
		return nil
	}
	x := &c.exchange
	*x = exchange{s: s, body: x.body}
	x.name(h.id)
	s.metrics.refusals[ruleGate].Inc()
	s.metrics.requests[routeOrder][resultOf(v.Refusal.Code)].Inc()
	if from.IsValid() {
		s.addrs.Add(network.Key(from), true, now)
	}
	if idle := cmp.Or(s.limits.IdleTimeout, s.limits.ReadTimeout); idle > 0 {
		c.read.want = now.Add(idle)
	}
	if s.limits.WriteTimeout > 0 {
		c.write.want = now.Add(s.limits.WriteTimeout)
	}
	return x.whole(v.Refusal, v.RetryAfter, s.dateAt(now))
}

// whole is a refusal as fasthttp would write it.
func (x *exchange) whole(r *salegate.Refusal, after time.Duration, date []byte) []byte {
	b := append(x.body[:0], "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(r.Status), 10), ' ')
	b = append(b, fasthttp.StatusMessage(r.Status)...)
	b = append(append(b, "\r\nDate: "...), date...)
	b = append(b, "\r\nContent-Type: "+problem.ContentType+"\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(r.Len(x.id)), 10)
	b = append(b, "\r\nCache-Control: no-store"...)
	if after > 0 {
		b = append(append(b, "\r\nRetry-After: "...), x.retry(after)...)
	}
	b = append(append(b, "\r\nX-Request-Id: "...), x.id...)
	b = append(b, "\r\nX-Content-Type-Options: nosniff\r\n\r\n"...)
	x.body = r.AppendBody(b, x.id)
	return x.body
}

// date is the Date field of a second.
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

var post = []byte("POST ")

// plain reports that a head has nothing but visible ASCII characters, spaces and the ends of its lines.
func plain(head []byte) bool {
	for i, c := range head {
		if c < ' ' || c > '~' {
			if c == '\r' && head[i+1] == '\n' || c == '\n' { // the head ends with an empty line
				continue
			}
			return false
		}
	}
	return true
}

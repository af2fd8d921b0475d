package edge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/topk"
	"floodgate.internal/shared/wire"
)

// maxLogged bounds the requests that are logged, in lines a second; what is beyond it is not logged.
const maxLogged = 100

// note counts whose request it was, and logs one in so many.
func (x *exchange) note() {
	refused := x.ctx.Response.StatusCode() >= 400
	if a := x.client(); a.IsValid() {
		x.s.addrs.Add(network.Key(a), refused, x.now)
	}
	if x.uid != "" {
		x.s.uids.Add(x.uid, refused, x.now)
	}
	if x.logged() {
		x.log()
	}
}

// chosen draws whether a request is to be logged.
func (s *Settings) chosen() bool {
	return s.LogEvery == 1 || s.LogEvery > 1 && rand.IntN(s.LogEvery) == 0
}

// access is whether the request is logged.
type access byte

const (
	accessUndecided access = iota
	accessLogged
	accessNotLogged
)

// logged decides, once, whether the request is logged.
func (x *exchange) logged() bool {
	if x.access == accessUndecided {
		x.access = accessNotLogged
		if (x.addr.chosen || x.set.chosen()) && x.s.accesses.Allow() {
			x.access = accessLogged
		}
		x.addr.chosen = false
	}
	return x.access == accessLogged
}

// log is the request's line. It has no token, no query and no body: only what was judged, and how.
func (x *exchange) log() {
	h := &x.ctx.Request.Header
	attrs := []slog.Attr{
		slog.String("request_id", string(x.id)), slog.String("method", string(h.Method())), slog.String("route", routeNames[x.route]),
		slog.Int("status", x.ctx.Response.StatusCode()), slog.String("result", resultNames[x.result]),
		slog.Duration("took", x.s.Now().Sub(x.now)), slog.Int("bytes", len(x.ctx.Response.Body())),
	}
	if x.by < rules {
		attrs = append(attrs, slog.String("rule", ruleNames[x.by]))
	}
	if x.uid != "" {
		attrs = append(attrs, slog.String("uid", x.uid))
	}
	if from := x.network(); from != "" {
		attrs = append(attrs, slog.String("network", from))
	}
	trace := wire.TraceID(x.trace)
	if trace == "" { // it was not sent on
		trace = wire.TraceID([]byte(x.givenTrace()))
	}
	if trace != "" {
		attrs = append(attrs, slog.String("trace_id", trace))
	}
	x.s.Log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
}

// Noisiest is the n uids and the n addresses that asked most since the beginning of the last whole minute.
func (s *Server) Noisiest(n int) (since time.Time, uids, addrs []topk.Client) {
	now := s.Now()
	_, byUID := s.uids.Top(n, now)
	since, byAddr := s.addrs.Top(n, now)
	name := func(key [16]byte) string {
		a := netip.AddrFrom16(key).Unmap()
		if a.Is6() {
			return netip.PrefixFrom(a, 64).String()
		}
		return a.String()
	}
	return since, clients(byUID, func(uid string) string { return uid }), clients(byAddr, name)
}

func clients[K comparable](all []topk.Entry[K], name func(K) string) []topk.Client {
	list := make([]topk.Client, 0, len(all))
	for _, e := range all {
		list = append(list, topk.Client{Name: name(e.Key), Requests: e.Count, Over: e.Over, Refused: e.Marked})
	}
	return list
}

package edge

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"floodgate.internal/shared/wire"
)

// maxAccessLogs bounds the requests that are logged, in lines a second. Those beyond it are not logged.
const maxAccessLogs = 100

// sample draws whether a request is to be logged.
func (s *Settings) sample() bool {
	return s.LogEvery == 1 || s.LogEvery > 1 && rand.IntN(s.LogEvery) == 0
}

// sampled is whether a request is logged.
type sampled byte

const (
	undecided sampled = iota
	logged
	notLogged
)

// isSampled decides, once, whether the request is logged.
func (x *exchange) isSampled() bool {
	if x.sampled == undecided {
		x.sampled = notLogged
		if (x.conn.sampled || x.set.sample()) && x.s.accessLogs.Allow() {
			x.sampled = logged
		}
		x.conn.sampled = false
	}
	return x.sampled == logged
}

// log writes the request's line. It has no token, no query and no body.
func (x *exchange) log() {
	h := &x.ctx.Request.Header
	attrs := []slog.Attr{
		slog.String("request_id", string(x.id)), slog.String("method", string(h.Method())), slog.String("route", x.route.name()),
		slog.Int("status", x.ctx.Response.StatusCode()), slog.String("result", resultNames[x.result]),
		slog.Duration("took", x.s.Now().Sub(x.now)), slog.Int("bytes", len(x.ctx.Response.Body())),
	}
	if x.rule < rules {
		attrs = append(attrs, slog.String("rule", ruleNames[x.rule]))
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

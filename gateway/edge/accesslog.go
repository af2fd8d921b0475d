package edge

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// LogSettings is which requests get a line in the log: every failed one, some of the refused ones, and some of all.
type LogSettings struct {
	Every        int    // one request in so many; 0: none
	RefusedEvery int    // one answer in so many that is 401, 403 or 429; 0: none
	Max          int    // lines of each kind a second
	Key          []byte // of the hash that stands for an address
}

// lineKind is why a request gets a line. Each kind has a bound of its own, so that none takes the lines of another.
type lineKind byte

const (
	noLine lineKind = iota
	sampledLine
	refusedLine
	failedLine
	lineKinds
)

var lineNames = [lineKinds]string{"", "sampled", "refused", "failed"}

func oneIn(every int) bool { return every == 1 || every > 1 && rand.IntN(every) == 0 }

// budget admits lines up to a number a second. It takes no lock.
type budget struct {
	used    atomic.Int64 // the second, and how many lines it has had
	dropped prometheus.Counter
	gap     atomic.Bool // some were dropped since the last line that said so
}

func (b *budget) drop() {
	b.dropped.Inc()
	b.gap.Store(true)
}

const budgetBits = 24 // of the lines in a second

// take takes a line of the second of now, or counts it as dropped.
func (b *budget) take(now time.Time, most int) bool {
	for second := now.Unix(); ; {
		old := b.used.Load()
		if !left(old, second, most) {
			b.drop()
			return false
		}
		next := old + 1
		if old>>budgetBits != second {
			next = second<<budgetBits + 1
		}
		if b.used.CompareAndSwap(old, next) {
			return true
		}
	}
}

// available reports whether take would take a line now, and counts it as dropped if not.
func (b *budget) available(now time.Time, most int) bool {
	if left(b.used.Load(), now.Unix(), most) {
		return true
	}
	b.drop()
	return false
}

func left(used, second int64, most int) bool {
	return most > 0 && (used>>budgetBits != second || used&(1<<budgetBits-1) < int64(most))
}

func newBudgets(reg prometheus.Registerer) *[lineKinds]budget {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_access_log_dropped_total",
		Help: "Requests that were to be logged and were not, for log.access_max: sampled ones, refused ones (401, 403, 429), failed ones (5xx)."}, []string{"kind"})
	reg.MustRegister(v)
	b := &[lineKinds]budget{}
	for kind := sampledLine; kind < lineKinds; kind++ {
		b[kind].dropped = v.WithLabelValues(lineNames[kind])
	}
	return b
}

// ofStatus is the kind of line that an answer's status calls for.
func (l *LogSettings) ofStatus(status int) lineKind {
	switch {
	case status >= 500:
		return failedLine
	case (status == fasthttp.StatusUnauthorized || status == fasthttp.StatusForbidden || status == fasthttp.StatusTooManyRequests) && oneIn(l.RefusedEvery):
		return refusedLine
	}
	return noLine
}

// toBeLogged reports whether a refusal on the fast path must take the slow path, because it is to be logged.
func (x *exchange) toBeLogged(status int) bool {
	l := &x.set.Log
	if oneIn(l.Every) {
		x.conn.line = sampledLine
		return true
	}
	kind := l.ofStatus(status)
	if kind == noLine || !x.s.lines[kind].available(x.now, l.Max) {
		return false
	}
	x.conn.line = kind
	return true
}

// sampled is whether a request is in the sample of all.
type sampled byte

const (
	undecided sampled = iota
	inSample
	notInSample
)

// isSampled decides, once, whether the request is logged as one of the sample of all.
func (x *exchange) isSampled() bool {
	if x.sampled == undecided {
		x.sampled = notInSample
		if (x.conn.line == sampledLine || oneIn(x.set.Log.Every)) && x.s.lines[sampledLine].take(x.now, x.set.Log.Max) {
			x.sampled = inSample
		}
	}
	return x.sampled == inSample
}

// isLogged decides whether an answered request gets a line.
func (x *exchange) isLogged() bool {
	drawn := x.conn.line
	sampled := x.isSampled()
	x.conn.line = noLine
	if sampled {
		return true
	}
	kind := x.set.Log.ofStatus(x.ctx.Response.StatusCode())
	if kind == noLine && drawn == refusedLine {
		kind = drawn
	}
	return kind != noLine && x.s.lines[kind].take(x.now, x.set.Log.Max)
}

// maxPath is how much of a path a line has, in bytes.
const maxPath = 256

// log writes the request's line, which says that it is one of a sample (every), and that lines before it were dropped (gap): a replay
// needs all. It has no token, no query and no body; the path only where it is one of ours; and of the address
// its network and a keyed hash, by which lines of one address can be told.
func (x *exchange) log() {
	h := &x.ctx.Request.Header
	took := x.s.Now().Sub(x.now)
	attrs := []slog.Attr{
		slog.String("request_id", string(x.id)), slog.String("method", string(h.Method())), slog.String("route", x.route.name()),
		slog.Int("status", x.ctx.Response.StatusCode()), slog.String("result", resultNames[x.result]),
		slog.Duration("took", took), slog.Int("bytes", len(x.ctx.Response.Body())),
	}
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	if x.rule < rules {
		add("rule", ruleNames[x.rule])
	}
	uid := x.uid
	if x.isKnown {
		uid = x.known.UID // also where the address's bucket refused the request
	}
	add("uid", uid)
	add("network", x.network())
	add("trace_id", x.traceID())
	add("code", string(codeOf(x.result)))
	if x.op != nil {
		add("path", string(x.path[:min(len(x.path), maxPath)]))
		if sale, ok := wire.ParseID(x.param); ok && strings.Contains(x.op.path, "{sale_id}") {
			attrs = append(attrs, slog.Int64("sale", sale))
		}
	}
	add("addr", x.set.Log.hash(x.client(), x.s.IPv6Prefix))
	if x.asked > 0 {
		attrs = append(attrs, slog.Duration("upstream_took", x.asked))
	}
	attrs = append(attrs, slog.Int("every", x.set.Log.Every))
	if x.isKnown { // it drew on the address's buckets for users
		attrs = append(attrs, slog.Bool("known", true))
	}
	if x.s.lines[sampledLine].gap.Load() && x.s.lines[sampledLine].gap.Swap(false) {
		attrs = append(attrs, slog.Bool("gap", true))
	}
	x.s.Log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
}

// traceID is the trace that the request was sent on with, or else the client's.
func (x *exchange) traceID() string {
	if trace := wire.TraceID(x.trace); trace != "" {
		return trace
	}
	return wire.TraceID([]byte(x.givenTrace()))
}

// hash stands for an address in the log: HMAC-SHA256 of what its bucket goes by. Nobody without the key finds the address by trying all.
func (l *LogSettings) hash(a netip.Addr, bits int) string {
	if !a.IsValid() {
		return ""
	}
	key := network.Key(a, bits)
	mac := hmac.New(sha256.New, l.Key)
	mac.Write(key[:])
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// codeOf is the problem's code of a result, "" for none.
func codeOf(r result) problem.Code {
	if r < firstCode {
		return ""
	}
	return codes[r-firstCode]
}

package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// peer is an HTTP server that stands where a backend stands: it checks signatures, keeps a feed and notes what it is sent.
type peer struct {
	t        testing.TB
	addr     string
	verifier *signing.Verifier
	skew     time.Duration // of its clock, which is the system's

	mu       sync.Mutex // guards what follows
	server   *fasthttp.Server
	done     chan struct{}
	instance string
	version  uint64
	sales    map[int64]wire.Sale
	changed  map[int64]uint64 // version of the last change
	news     chan struct{}    // closed at the next change
	silent   bool             // the feed does not answer
	calls    []call
	batches  []verdict.Batch                        // that were handed over and taken
	records  func() int                             // the status of the next batch; nil: taken
	answer   func(ctx *fasthttp.RequestCtx, c call) // nil: 202 for orders
	onPage   func(ctx *fasthttp.RequestCtx)
	conns    map[net.Conn]struct{}
	report   wire.GatewayReport // the last

	revoked []wire.Revocation // the changes of the list of revoked tokens; the version is how many
	keepMS  int64             // what it says of how long entries are kept
}

// call is a request that came with a good signature.
type call struct {
	Method, Target, UID, Key, Body, RequestID, Header string
}

const (
	testKeyID  = "dev-gw"
	testSecret = "dev-signing-secret-for-tests-only-0001"
)

// peerOf is a peer that is not started.
func peerOf(t testing.TB) *peer {
	return &peer{
		t: t, verifier: signing.NewVerifier(signing.Key{ID: testKeyID, Secret: testSecret}), skew: -time.Hour,
		instance: "one", sales: map[int64]wire.Sale{}, changed: map[int64]uint64{}, news: make(chan struct{}),
	}
}

func newPeer(t testing.TB) *peer {
	p := peerOf(t)
	free, err := ports.Free(1) // it may be stopped, and started again at the same address
	if err != nil {
		t.Fatal(err)
	}
	p.start(fmt.Sprintf("127.0.0.1:%d", free[0]))
	t.Cleanup(p.stop)
	return p
}

func (p *peer) start(addr string) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.addr = ln.Addr().String()
	server := &fasthttp.Server{Handler: p.handle, ConnState: p.track, Logger: silentLog{}}
	done := make(chan struct{})
	p.mu.Lock()
	p.server, p.done, p.conns = server, done, map[net.Conn]struct{}{}
	p.mu.Unlock()
	go func() {
		defer close(done)
		server.Serve(ln)
	}()
}

type silentLog struct{}

func (silentLog) Printf(string, ...any) {}

func (p *peer) track(c net.Conn, s fasthttp.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == fasthttp.StateClosed {
		delete(p.conns, c)
	} else {
		p.conns[c] = struct{}{}
	}
}

// stop ends the peer as a kill does: connections are cut.
func (p *peer) stop() {
	p.mu.Lock()
	server, done, conns := p.server, p.done, slices.Collect(maps.Keys(p.conns))
	p.server = nil
	close(p.news)
	p.news = make(chan struct{})
	p.mu.Unlock()
	if server == nil {
		return
	}
	for _, c := range conns {
		c.Close()
	}
	server.Shutdown()
	<-done
}

func (p *peer) now() time.Time { return time.Now().Add(p.skew) }

// set changes a sale; the feed tells.
func (p *peer) set(id int64, change func(*wire.Sale)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.sales[id]
	if !ok {
		s = wire.Sale{ID: id, Kind: wire.Goods, Title: fmt.Sprint("Sale ", id), Price: 100, Currency: "EUR", State: wire.Open, PerUserLimit: 2,
			StartsAt: wire.At(p.now().Add(-time.Minute)), EndsAt: wire.At(p.now().Add(time.Hour))}
	}
	if change != nil {
		change(&s)
	}
	p.sales[id] = s
	p.bump(id)
}

func (p *peer) remove(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sales, id)
	p.bump(id)
}

func (p *peer) bump(id int64) {
	p.version++
	p.changed[id] = p.version
	close(p.news)
	p.news = make(chan struct{})
}

// on decides what orders and statuses are answered.
func (p *peer) on(answer func(ctx *fasthttp.RequestCtx, c call)) {
	p.mu.Lock()
	p.answer = answer
	p.mu.Unlock()
}

// got is the calls whose target begins with prefix.
func (p *peer) got(prefix string) []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	var some []call
	for _, c := range p.calls {
		if strings.HasPrefix(c.Target, prefix) {
			some = append(some, c)
		}
	}
	return some
}

func (p *peer) handle(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetBytesV(signing.HeaderNonce, ctx.Request.Header.Peek(signing.HeaderNonce))
	uid, err := p.verifier.Verify(&ctx.Request, p.now())
	if err != nil {
		ctx.Response.Header.Set(signing.HeaderTime, strconv.FormatInt(p.now().UnixMilli(), 10))
		ctx.SetStatusCode(401)
		return
	}
	h := &ctx.Request.Header
	c := call{string(h.Method()), string(h.RequestURI()), uid, string(h.Peek("Idempotency-Key")), string(ctx.Request.Body()), string(h.Peek("X-Request-Id")), string(h.Header())}
	path := string(ctx.Path())
	switch path {
	case wire.FeedPath:
		p.feed(ctx)
		return
	case wire.RevocationsPath:
		p.revocations(ctx)
		return
	case wire.HealthPath:
		return
	case wire.ReportPath:
		p.hear(ctx)
		return
	}
	if path == verdict.Path {
		p.take(ctx)
		return
	}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	answer, onPage := p.answer, p.onPage
	p.mu.Unlock()
	ctx.Response.Header.Set("X-Secret", "internal")
	ctx.Response.Header.Set("Set-Cookie", "internal=1")
	ctx.SetContentType("application/json")
	if c.Method == "GET" && strings.HasPrefix(path, "/v1/sales") && !strings.HasSuffix(path, "/standby") {
		if onPage != nil {
			onPage(ctx)
			return
		}
		p.page(ctx, path)
		return
	}
	if answer != nil {
		answer(ctx, c)
		return
	}
	accept(ctx)
}

// hear takes a report, as a backend does.
func (p *peer) hear(ctx *fasthttp.RequestCtx) {
	var r wire.GatewayReport
	if err := wire.DecodeStrict(ctx.Request.Body(), &r); err != nil || r.Check() != nil {
		p.t.Errorf("a report: %v, %v in %s", err, r.Check(), ctx.Request.Body())
	}
	p.mu.Lock()
	p.report = r
	p.mu.Unlock()
	ctx.SetStatusCode(204)
}

// take takes a batch of records, as a backend does: each once.
func (p *peer) take(ctx *fasthttp.RequestCtx) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b verdict.Batch
	if err := wire.DecodeStrict(ctx.Request.Body(), &b); err != nil || b.Check() != nil {
		p.t.Errorf("a batch of records: %v, %v in %s", err, b.Check(), ctx.Request.Body())
	}
	ctx.SetStatusCode(204)
	if p.records != nil {
		ctx.SetStatusCode(p.records())
	}
	if ctx.Response.StatusCode() == 204 && !slices.ContainsFunc(p.batches, func(o verdict.Batch) bool { return o.Gateway == b.Gateway && o.Seq >= b.Seq }) {
		p.batches = append(p.batches, b)
	}
}

// handed is the batches that were taken.
func (p *peer) handed() []verdict.Batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.batches)
}

// recorded is how often presses of a user met a rule in a sale: "uid rule" -> times.
func (p *peer) recorded(sale int64) map[string]int64 {
	sum := map[string]int64{}
	for _, b := range p.handed() {
		for _, r := range b.Records {
			if r.Sale == sale {
				sum[r.UID+" "+string(r.Rule)] += r.Count
			}
		}
	}
	return sum
}

func accept(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(202)
	ctx.SetContentType("application/json")
	ctx.Response.Header.Set("Location", "/v1/orders/x")
	ctx.SetBodyString(`{"order_id":"x","status":"queued","status_url":"/v1/orders/x"}`)
}

func (p *peer) page(ctx *fasthttp.RequestCtx, path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var v any
	tag := p.version
	if path == "/v1/sales" {
		list := wire.SaleList{Sales: slices.Collect(maps.Values(p.sales))}
		slices.SortFunc(list.Sales, func(a, b wire.Sale) int { return int(a.ID - b.ID) })
		v = list
	} else {
		id, _ := wire.ParseID(strings.TrimPrefix(path, "/v1/sales/"))
		s, ok := p.sales[id]
		if !ok {
			ctx.SetStatusCode(404)
			return
		}
		tag = p.changed[id]
		v = s
	}
	b, _ := json.Marshal(v)
	ctx.Response.Header.Set("ETag", fmt.Sprintf(`W/"%d"`, tag))
	ctx.SetBody(b)
}

func (p *peer) feed(ctx *fasthttp.RequestCtx) {
	args := ctx.QueryArgs()
	since, _ := strconv.ParseUint(string(args.Peek("since")), 10, 64)
	waitMS, _ := args.GetUint("wait_ms")
	timeout := time.NewTimer(time.Duration(max(0, waitMS)) * time.Millisecond)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		full := string(args.Peek("instance")) != p.instance
		f := wire.Feed{Instance: p.instance, Version: p.version, Full: full, Now: wire.At(p.now())}
		for id, v := range p.changed {
			s, ok := p.sales[id]
			switch {
			case ok && (full || v > since):
				f.Sales = append(f.Sales, s)
			case !ok && !full && v > since:
				f.Removed = append(f.Removed, id)
			}
		}
		news, silent, gone := p.news, p.silent, p.server == nil
		p.mu.Unlock()
		if silent || gone {
			ctx.SetStatusCode(503)
			return
		}
		if full || f.Version > since {
			b, _ := json.Marshal(f)
			ctx.SetBody(b)
			return
		}
		select {
		case <-news:
		case <-timeout.C:
			b, _ := json.Marshal(f)
			ctx.SetBody(b)
			return
		}
	}
}

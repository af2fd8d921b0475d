package backend

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"floodgate.internal/backend/admin"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/order"
	"floodgate.internal/shared/hosts"
	"floodgate.internal/shared/problem"
)

// operators answers the admin listener: health, readiness and metrics from the first moment on, and everything once the admin
// API is there.
type operators struct {
	log  *slog.Logger
	only http.Handler // checks the Host
	then atomic.Pointer[http.Handler]
	mux  *http.ServeMux
}

func newOperators(s *status, gatherer prometheus.Gatherer, log *slog.Logger, listen string, names []string) *operators {
	o := &operators{log: log, mux: http.NewServeMux()}
	o.only = hosts.Only(listen, func() []string { return names }, http.HandlerFunc(o.answer))
	answer := func(w http.ResponseWriter, code int, kind string, body []byte) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		if _, err := w.Write(body); err != nil {
			o.log.Debug("admin: a client left before its answer", "error", err)
		}
	}
	o.mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "application/json", []byte(`{"status":"healthy"}`))
	})
	o.mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(struct {
			Status  string   `json:"status"`
			Reasons []string `json:"reasons"`
		}{"not ready", []string{s.get()}})
		if err != nil {
			panic("BUG: " + err.Error())
		}
		answer(w, http.StatusServiceUnavailable, "application/json", body)
	})
	o.mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	o.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p := problem.New(problem.Overloaded, "the backend is not ready: "+s.get())
		w.Header().Set("Retry-After", "1")
		answer(w, p.Status, problem.ContentType, p.JSON(r.Header.Get("X-Request-Id")))
	})
	return o
}

// become gives the listener to the admin API.
func (o *operators) become(h http.Handler) { o.then.Store(&h) }

// ServeHTTP implements http.Handler.
func (o *operators) ServeHTTP(w http.ResponseWriter, r *http.Request) { o.only.ServeHTTP(w, r) }

func (o *operators) answer(w http.ResponseWriter, r *http.Request) {
	if h := o.then.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	o.mux.ServeHTTP(w, r)
}

func (o *operators) serve(ctx context.Context, ln net.Listener) error {
	return admin.Serve(ctx, ln, o, o.log)
}

// newAdmin makes the admin API, and what closes sales.
func (p *process) newAdmin() *admin.Admin {
	auditor := p.auditor()
	changes := &change.Maker{DB: p.db, Clock: p.clk, Intents: p.intents, Reconcile: p.reconciler.Sale, Changed: p.catalog.Refresh, Log: p.log}
	closes := closing.Config{DB: p.db, Redis: p.redis, Clock: p.clk, Audit: auditor, Maker: changes, Log: p.log, Register: p.reg}
	c := admin.Config{
		Operators: p.roster.list.Load, SessionKey: []byte(p.config.SessionKey.Reveal()), InsecureCookies: p.config.Development, Development: p.config.Development, DB: p.db, Redis: p.redis, Clock: p.clk, Log: p.log, Gatherer: p.reg, Register: p.reg,
		Audit: auditor, Changes: changes, Orders: p.orders, DeadLetters: p.deadLetters, Lists: p.lists, Origins: p.origins,
		Revocations: p.revocations, KeepRevocations: p.config.Revocations.Keep,
		Reconcile: p.reconciler.Sale, Rebuild: p.skus.Rebuild, Timeline: p.timelines.Of,
		Ready: p.reasons, Durability: p.durability.last.Load, Preflight: p.preflight(auditor),
		Gateways: p.gateways,
	}
	if p.broker != nil {
		closes.Fence, c.Queues = p.fence, p.broker.Queues
	}
	p.closing = closing.New(closes)
	c.Closing = p.closing
	return admin.New(c)
}

func (p *process) auditor() *audit.Auditor {
	c := audit.Config{DB: p.db, Redis: p.redis, QueuedBound: p.config.Orders.QueuedBound, Abandoned: p.config.Carts.AbandonedAfter}
	if p.broker != nil {
		c.Broker = p.broker
	}
	return audit.New(c)
}

// fence waits until what was published of a sale before is settled.
func (p *process) fence(ctx context.Context, sale int64) error {
	if err := p.broker.Fence(ctx, sale); err != nil {
		return err
	}
	return order.UntilNoneDeferred(ctx, p.db, sale)
}

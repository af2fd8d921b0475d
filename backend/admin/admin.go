// Package admin is the operators' listener: the admin API, the console that uses it, health, readiness, metrics and profiles.
//
// A route decodes a request, calls the package that knows, and encodes what it answers; errors become problems in refusal.go.
// A change is made by package change, with the answer under its Idempotency-Key in the same transaction. What could not be
// done in Redis at once is left to the timer, and the answer is the same: it will happen.
//
// Who may what: everything under /admin/ and /debug/pprof/ takes the bearer admin token. /-/healthy, /-/ready and
// /metrics take none, for probes and Prometheus: they name no shopper and change nothing; nor do the console's files, which
// tell nothing. The listener is not public.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/console"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Config is what an Admin works with. All of it is needed, but for what says otherwise.
type Config struct {
	Token string // bearer admin token
	DB    *sql.DB
	Redis *reserve.Store
	Clock *clock.Clock
	Audit *audit.Auditor
	// Changes makes the changes, Closing archives sales.
	Changes *change.Maker
	Closing *closing.Sales
	// Reconcile writes one sale into Redis from MySQL and the outbox: reconcile.Reconciler.Sale.
	Reconcile func(ctx context.Context, sale int64) error
	// Rebuild writes one SKU into Redis from MySQL: sku.Cache.Rebuild.
	Rebuild func(ctx context.Context, sku int64) error
	// Queues describes the broker's queues, broker.Broker.Queues: nil without a broker.
	Queues func(ctx context.Context) ([]broker.QueueState, error)
	Book   *order.Store
	// Lists are those of who may buy, and Concentration is where orders come from, of a process that takes orders; else nil.
	Lists         *eligibility.Lists
	Concentration *origins.Report
	// Revocations is the list of revoked tokens of a process that takes orders, else nil; KeepRevocations is for how long one is kept.
	Revocations     *revocation.List
	KeepRevocations time.Duration
	// Timeline tells what became of a user's presses in a sale: timeline.Store.Of.
	Timeline func(ctx context.Context, uid string, sale int64) (verdict.Timeline, error)
	// Letters are the dead letters.
	Letters *deadletter.Store
	// Ready returns what keeps the process from its work; nothing means ready.
	Ready func(ctx context.Context) []string
	// Survives returns what an accepted order survives by the stores' settings, nil before they were read. It may be nil.
	Survives func() *durability.Report
	Log      *slog.Logger
	Gatherer prometheus.Gatherer // of /metrics
	Register prometheus.Registerer
}

// Admin serves the listener. It is safe for concurrent use.
type Admin struct {
	Config
	token    [sha256.Size]byte
	requests *prometheus.CounterVec
	mux      *http.ServeMux
}

// New makes an Admin. It registers its metrics.
func New(c Config) *Admin {
	a := &Admin{Config: c, token: sha256.Sum256([]byte(c.Token)), mux: http.NewServeMux()}
	a.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "backend_admin_requests_total", Help: "Requests to the admin listener, by route and status.",
	}, []string{"route", "status"})
	c.Register.MustRegister(a.requests)
	a.routes()
	return a
}

// Bounds of a request.
const (
	maxBody       = 64 << 10
	maxHeader     = 16 << 10
	answerTimeout = 30 * time.Second // of a request, but for rebuilds and profiles
	longTimeout   = 2 * time.Minute  // of those
)

type methods map[string]func(*request) (*answer, error)

func (a *Admin) routes() {
	const v1 = "/admin/v1"
	table := map[string]methods{
		v1 + "/skus":                     {"GET": a.listSKUs, "POST": a.createSKU},
		v1 + "/skus/{id}":                {"GET": a.getSKU, "PATCH": a.patchSKU},
		v1 + "/skus/{id}/restock":        {"POST": a.restockSKU},
		v1 + "/skus/{id}/audit":          {"GET": a.auditSKU},
		v1 + "/skus/{id}/rebuild":        {"POST": a.rebuildSKU},
		v1 + "/sales":                    {"GET": a.listSales, "POST": a.createSale},
		v1 + "/sales/{id}":               {"GET": a.getSale, "PATCH": a.patchSale},
		v1 + "/sales/{id}/restock":       {"POST": a.restockSale},
		v1 + "/sales/{id}/pause":         {"POST": a.pauseSale},
		v1 + "/sales/{id}/resume":        {"POST": a.resumeSale},
		v1 + "/sales/{id}/close":         {"POST": a.closeSale},
		v1 + "/sales/{id}/archive":       {"POST": a.archiveSale},
		v1 + "/sales/{id}/orders.csv":    {"GET": a.exportOrders},
		v1 + "/sales/{id}/audit":         {"GET": a.auditSale},
		v1 + "/sales/{id}/rebuild":       {"POST": a.rebuildSale},
		v1 + "/sales/{id}/eligibility":   {"GET": a.getEligible, "POST": a.changeEligible, "PUT": a.setEligible, "DELETE": a.liftEligible},
		v1 + "/sales/{id}/concentration": {"GET": a.concentration},
		v1 + "/bans":                     {"GET": a.getBans, "POST": a.changeBans},
		v1 + "/revocations":              {"GET": a.listRevocations, "POST": a.revoke, "DELETE": a.unrevoke},
		v1 + "/orders":                   {"GET": a.searchOrders},
		v1 + "/orders/{id}/cancel":       {"POST": a.cancelOrder},
		v1 + "/coupons":                  {"GET": a.listCoupons, "POST": a.createCoupon},
		v1 + "/coupons/{id}":             {"GET": a.getCoupon, "PATCH": a.patchCoupon},
		v1 + "/queue":                    {"GET": a.queue},
		v1 + "/dead-letters":             {"GET": a.listDeadLetters},
		v1 + "/dead-letters/{id}":        {"GET": a.getDeadLetter},
		v1 + "/dead-letters/{id}/replay": {"POST": a.replayDeadLetter},
		v1 + "/payments":                 {"GET": a.listPayments},
		v1 + "/timeline":                 {"GET": a.timeline},
		v1 + "/audit-log":                {"GET": a.auditLog},
		"/-/healthy":                     {"GET": a.healthy},
		"/-/ready":                       {"GET": a.ready},
	}
	for path, m := range table {
		a.mux.Handle(path, a.route(path, m))
	}
	for _, path := range console.Paths {
		if path == "/" {
			path = "/{$}" // alone, not what is below it
		}
		a.mux.Handle(path, a.plain("console", http.HandlerFunc(console.ServeHTTP), "GET"))
	}
	a.mux.Handle("/", a.route("other", nil))
	metrics := promhttp.HandlerFor(a.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	a.mux.Handle("/metrics", a.plain("/metrics", metrics, "GET"))
	profiles := map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	}
	for path, h := range profiles {
		a.mux.Handle(path, a.plain("/debug/pprof/", h, "GET", "POST"))
	}
}

// ServeHTTP implements http.Handler.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Serve serves h, an Admin or what stands in front of it, on an operators' listener until ctx ends; then it gives the
// requests under way a few seconds, and closes it. Times and sizes are bounded.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      answerTimeout + 5*time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := s.Shutdown(grace)
		if err != nil {
			err = errors.Join(err, s.Close())
		}
		drained <- err
	})
	err := s.Serve(ln)
	if !stop() { // ctx ended
		err = <-drained
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin listener %s: %w", ln.Addr(), err)
	}
	return nil
}

// authorized compares digests, in constant time whatever the lengths.
func (a *Admin) authorized(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1 && a.Token != ""
}

func needsToken(path string) bool {
	return strings.HasPrefix(path, "/admin/") || strings.HasPrefix(path, "/debug/")
}

func refuseStranger() *problem.Problem {
	return problem.New(problem.Unauthenticated, "this takes the admin token: Authorization: Bearer <admin_token of the backend's configuration>")
}

func refuseMethod(method string, allowed []string) *problem.Problem {
	return problem.New(problem.MethodNotAllowed, fmt.Sprintf("%s is not for this path, only %s", method, strings.Join(allowed, ", ")))
}

// allowed lists the methods of a route; HEAD comes with GET.
func allowed(m methods) []string {
	var list []string
	for name := range m {
		list = append(list, name)
		if name == http.MethodGet {
			list = append(list, http.MethodHead)
		}
	}
	slices.Sort(list)
	return list
}

func (a *Admin) healthy(*request) (*answer, error) {
	return &answer{status: http.StatusOK, value: adminapi.Health{Status: "healthy", Now: wire.At(a.Clock.Now())}}, nil
}

func (a *Admin) ready(r *request) (*answer, error) {
	reasons := a.Ready(r.Context())
	status, word := http.StatusOK, "ready"
	if len(reasons) > 0 {
		status, word = http.StatusServiceUnavailable, "not ready"
	}
	var promise *durability.Report
	if a.Survives != nil {
		promise = a.Survives()
	}
	return &answer{status: status, value: adminapi.Readiness{Status: word, Reasons: reasons, Promise: promise}}, nil
}

// Package admin is the operators' listener: the admin API, the console that uses it, health, readiness, metrics and profiles.
//
// A route decodes a request, calls the package that knows, and encodes what it answers; errors become problems in refusal.go.
// A change is made by package change, with the answer under its Idempotency-Key in the same transaction. What could not be
// done in Redis at once is left to the timer, and the answer is the same: it will happen.
//
// Who may what stands in the table of routes: each has the role that it needs. /-/healthy, /-/ready and /metrics need none, for
// probes and Prometheus: they name no shopper and change nothing; nor do the console's files, which tell nothing. An operator is
// known by a bearer token, or by the console's session cookie. The listener is not public.
package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Config is what an Admin works with. All of it is needed, but for what says otherwise.
type Config struct {
	// Operators are those who may use the listener now. A change holds from the next request on, also in sessions.
	Operators func() *operator.List
	// SessionKey signs the console's sessions, for all processes that share it; none: a key of this process's own, until it ends.
	SessionKey []byte
	// InsecureCookies lets the console be used over plain HTTP from another machine than this: for development.
	InsecureCookies bool
	// Development lets pictures come from loopback by plain HTTP.
	Development bool
	DB          *sql.DB
	Redis       *reserve.Store
	Clock       *clock.Clock
	Audit       *audit.Auditor
	// Changes makes the changes, Closing archives sales.
	Changes *change.Maker
	Closing *closing.Sales
	// Reconcile writes one sale into Redis from MySQL and the outbox: reconcile.Reconciler.Sale.
	Reconcile func(ctx context.Context, sale int64) error
	// Rebuild writes one SKU into Redis from MySQL: sku.Cache.Rebuild.
	Rebuild func(ctx context.Context, sku int64) error
	// Preflight looks whether everything is so that a sale can be held: preflight.Sale.Look. Shoppers is how many are expected; 0: not known.
	Preflight func(ctx context.Context, sale, shoppers int64) (preflight.Report, error)
	// Queues describes the broker's queues, broker.Broker.Queues: nil without a broker.
	Queues func(ctx context.Context) ([]broker.QueueState, error)
	// Orders are those in MySQL.
	Orders *order.Store
	// Lists are those of who may buy, and Origins is where orders come from, of a process that takes orders; else nil.
	Lists   *eligibility.Lists
	Origins *origins.Report
	// Revocations is the list of revoked tokens of a process that takes orders, else nil; KeepRevocations is for how long one is kept.
	Revocations     *revocation.List
	KeepRevocations time.Duration
	// Timeline tells what became of a user's presses in a sale: timeline.Store.Of.
	Timeline func(ctx context.Context, uid string, sale int64) (verdict.Timeline, error)
	// DeadLetters are the messages that could not be processed.
	DeadLetters *deadletter.Store
	// Gateways are the reports of gateways.
	Gateways *gateways.Store
	// Ready returns what keeps the process from its work; nothing means ready.
	Ready func(ctx context.Context) []string
	// Durability returns what an accepted order survives by the stores' settings, nil before they were read. It may be nil.
	Durability func() *durability.Report
	Log        *slog.Logger
	Gatherer   prometheus.Gatherer // of /metrics
	Register   prometheus.Registerer
}

// Admin serves the listener. It is safe for concurrent use.
type Admin struct {
	Config
	auth     *operator.Authenticator
	sessions *sessions
	origin   *http.CrossOriginProtection
	requests *prometheus.CounterVec
	mux      *http.ServeMux
	live     *sampler
}

// New makes an Admin. It registers its metrics.
func New(c Config) *Admin {
	a := &Admin{Config: c, mux: http.NewServeMux(), origin: http.NewCrossOriginProtection()}
	a.auth = operator.NewAuthenticator(c.Operators, "backend", c.Log, c.Register)
	a.sessions = newSessions(c.SessionKey, !c.InsecureCookies, c.Clock.Now)
	a.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "backend_admin_requests_total", Help: "Requests to the admin listener, by route and status.",
	}, []string{"route", "status"})
	c.Register.MustRegister(a.requests)
	a.live = newSampler(a)
	a.routes()
	return a
}

// Bounds of a request.
const (
	maxBody       = 64 << 10
	maxHeader     = 16 << 10
	answerTimeout = 30 * time.Second // of a request, but for what audits a sale, rebuilds and profiles
	longTimeout   = 2 * time.Minute  // of those
)

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
	if a.Durability != nil {
		promise = a.Durability()
	}
	return &answer{status: status, value: adminapi.Readiness{Status: word, Reasons: reasons, Promise: promise}}, nil
}

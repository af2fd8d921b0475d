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
	"floodgate.internal/shared/hosts"
	"floodgate.internal/shared/problem"
)

// status is why the process is not ready; "" when it works.
type status struct{ why atomic.Pointer[string] }

func (s *status) set(why string) { s.why.Store(&why) }
func (s *status) get() string    { return *s.why.Load() }

// front is the operators' listener: from the first moment on it answers health, readiness and metrics, and everything
// once the admin API is there.
type front struct {
	log  *slog.Logger
	only http.Handler // checks the Host
	then atomic.Pointer[http.Handler]
	mux  *http.ServeMux
}

func newFront(s *status, gatherer prometheus.Gatherer, log *slog.Logger, listen string, names []string) *front {
	f := &front{log: log, mux: http.NewServeMux()}
	f.only = hosts.Only(listen, func() []string { return names }, http.HandlerFunc(f.answer))
	answer := func(w http.ResponseWriter, code int, kind string, body []byte) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		if _, err := w.Write(body); err != nil {
			f.log.Debug("admin: a client left before its answer", "error", err)
		}
	}
	f.mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "application/json", []byte(`{"status":"healthy"}`))
	})
	f.mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(struct {
			Status  string   `json:"status"`
			Reasons []string `json:"reasons"`
		}{"not ready", []string{s.get()}})
		if err != nil {
			panic("BUG: " + err.Error())
		}
		answer(w, http.StatusServiceUnavailable, "application/json", body)
	})
	f.mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	f.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p := problem.New(problem.Overloaded, "the backend is not ready: "+s.get())
		w.Header().Set("Retry-After", "1")
		answer(w, p.Status, problem.ContentType, p.JSON(r.Header.Get("X-Request-Id")))
	})
	return f
}

// become gives the listener to the admin API.
func (f *front) become(h http.Handler) { f.then.Store(&h) }

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.only.ServeHTTP(w, r) }

func (f *front) answer(w http.ResponseWriter, r *http.Request) {
	if h := f.then.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	f.mux.ServeHTTP(w, r)
}

func (f *front) serve(ctx context.Context, ln net.Listener) error {
	return admin.Serve(ctx, ln, f, f.log)
}

// Package ops is the listener for operators: health, reload, configuration, metrics, profiles. It is never public.
package ops

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"floodgate.internal/shared/hosts"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/topk"
	"floodgate.internal/shared/wire"
)

// Config is what the listener works with.
type Config struct {
	// Ready returns why the gateway is not ready, and what is wrong although it is.
	Ready func() (reasons, warnings []string)
	// Reload takes the file over and says what changed; an error leaves everything as it was. by is who asked for it.
	Reload func(by string) (diff string, err error)
	// Reloads is the latest reloads, the newest first.
	Reloads func() []Reload
	// Config is the configuration in force, secrets masked.
	Config func() Generation
	// Top is the n uids and the n addresses that sent most requests since then.
	Top func(n int) (since time.Time, uids, addrs []topk.Client)
	// Token is what every path but those in open needs; "": none needs one.
	Token func() string
	// Listen is the listener's address in the configuration, Hosts the other names that a Host header may have: see hosts.Only.
	Listen string
	Hosts  func() []string
}

// open is the paths that need no token: those for health checks and Prometheus.
var open = map[string]bool{"/-/healthy": true, "/-/ready": true, "/metrics": true}

// Generation is the answer of /-/config.
type Generation struct {
	Generation int    `json:"generation"`
	Hash       string `json:"hash"`
	Config     any    `json:"config"`
}

// Reload is one entry of the answer of /-/reloads.
type Reload struct {
	At         wire.Time `json:"at"`         // by this machine's clock
	By         string    `json:"by"`         // start, file change, SIGHUP, or who posted
	Result     string    `json:"result"`     // taken, refused, unchanged, canary, rolled_back
	Generation int       `json:"generation"` // in force afterwards
	Hash       string    `json:"hash"`       // of the file that was read
	Diff       []string  `json:"diff"`       // what it changes, or would have changed
	Reason     string    `json:"reason"`     // why it was refused, or what became of a canary
}

// Handler is the listener's handler.
func Handler(c Config, metrics prometheus.Gatherer, log *slog.Logger) http.Handler {
	mux := c.routes(metrics, log)
	checked := hosts.Only(c.Listen, c.Hosts, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if want := c.Token(); want != "" && !open[req.URL.Path] && !authorized(req, want) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="floodgate"`)
			refuse(w, problem.New(problem.Unauthenticated, "this needs Authorization: Bearer followed by the ops token"))
			return
		}
		mux.ServeHTTP(w, req)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set(requestID, rand.Text())
		checked.ServeHTTP(w, req)
	})
}

func (c *Config) routes(metrics prometheus.Gatherer, log *slog.Logger) *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(method, path string, h http.Handler) {
		allow := map[string]string{"GET": "GET, HEAD", "POST": "POST"}[method]
		mux.Handle(method+" "+path, h)
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Allow", allow)
			refuse(w, problem.New(problem.MethodNotAllowed, req.Method+" is not for this path, only "+allow))
		})
	}
	handle("GET", "/-/healthy", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { text(w, 200, "healthy\n") }))
	handle("GET", "/-/ready", http.HandlerFunc(c.ready))
	handle("POST", "/-/reload", http.HandlerFunc(c.reload))
	handle("GET", "/-/config", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, c.Config()) }))
	handle("GET", "/-/top", http.HandlerFunc(c.top))
	handle("GET", "/-/reloads", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, struct {
			Reloads []Reload `json:"reloads"`
		}{c.Reloads()})
	}))
	handle("GET", "/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, problem.New(problem.NotFound, "there is no such path on the ops listener"))
	})
	return mux
}

func (c *Config) ready(w http.ResponseWriter, _ *http.Request) {
	reasons, warnings := c.Ready()
	code := 200
	if len(reasons) > 0 {
		code = 503
	}
	writeJSON(w, code, struct {
		Ready    bool     `json:"ready"`
		Reasons  []string `json:"reasons,omitempty"`
		Warnings []string `json:"warnings,omitempty"`
	}{len(reasons) == 0, reasons, warnings})
}

func (c *Config) reload(w http.ResponseWriter, req *http.Request) {
	diff, err := c.Reload("POST /-/reload from " + req.RemoteAddr)
	if err != nil {
		text(w, 400, err.Error()+"\n")
		return
	}
	text(w, 200, diff+"\n")
}

func (c *Config) top(w http.ResponseWriter, req *http.Request) {
	n := 20
	if s := req.URL.Query().Get("n"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 || n > topk.Size {
			refuse(w, problem.Invalid("n", fmt.Sprintf("it must be 1 to %d", topk.Size)))
			return
		}
	}
	since, uids, addrs := c.Top(n)
	writeJSON(w, 200, struct {
		Since time.Time     `json:"since"`
		UIDs  []topk.Client `json:"uids"`
		Addrs []topk.Client `json:"addresses"`
	}{since, uids, addrs})
}

// authorized compares digests, so that the time does not depend on the lengths.
func authorized(req *http.Request, want string) bool {
	scheme, got, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	a, b := sha256.Sum256([]byte(strings.TrimSpace(got))), sha256.Sum256([]byte(want))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

const requestID = "X-Request-Id"

func refuse(w http.ResponseWriter, p *problem.Problem) {
	w.Header().Set("Content-Type", problem.ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	w.Write(p.JSON(w.Header().Get(requestID)))
}

func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	w.Write([]byte(s))
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	w.Write(append(b, '\n'))
}

// Serve answers on ln until ctx is done, and closes it.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(end) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(ln)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Package ops is the listener for operators: health, reload, configuration, metrics, profiles. It is never public.
package ops

import (
	"context"
	"crypto/rand"
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
	"floodgate.internal/shared/operator"
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
	// Operators are those who may use the listener now. While there is nobody on the list, anybody may.
	Operators func() *operator.List
	// Listen is the listener's address in the configuration, Hosts the other names that a Host header may have: see hosts.Only.
	Listen string
	Hosts  func() []string

	metrics http.Handler
}

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

// route is a row of the listener's table.
type route struct {
	method string
	path   string        // one that ends in a slash stands for all below it, too
	role   operator.Role // that the operator must have, at least
	handle func(*Config, http.ResponseWriter, *http.Request)
}

// routes is the table. HEAD is answered wherever GET is. A viewer reads. A reload and a profile, which costs the gateway time that its
// shoppers have not, need an operator.
var routes = []route{
	{"GET", "/-/healthy", operator.Anybody, func(_ *Config, w http.ResponseWriter, _ *http.Request) { text(w, 200, "healthy\n") }},
	{"GET", "/-/ready", operator.Anybody, (*Config).ready},
	{"GET", "/metrics", operator.Anybody, func(c *Config, w http.ResponseWriter, req *http.Request) { c.metrics.ServeHTTP(w, req) }},
	{"POST", "/-/reload", operator.Operates, (*Config).reload},
	{"GET", "/-/config", operator.Viewer, func(c *Config, w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, c.Config()) }},
	{"GET", "/-/top", operator.Viewer, (*Config).top},
	{"GET", "/-/reloads", operator.Viewer, (*Config).reloads},
	{"GET", "/debug/pprof/", operator.Operates, profile(pprof.Index)},
	{"GET", "/debug/pprof/cmdline", operator.Operates, profile(pprof.Cmdline)},
	{"GET", "/debug/pprof/profile", operator.Operates, profile(pprof.Profile)},
	{"GET", "/debug/pprof/symbol", operator.Operates, profile(pprof.Symbol)},
	{"POST", "/debug/pprof/symbol", operator.Operates, profile(pprof.Symbol)},
	{"GET", "/debug/pprof/trace", operator.Operates, profile(pprof.Trace)},
}

func profile(f http.HandlerFunc) func(*Config, http.ResponseWriter, *http.Request) {
	return func(_ *Config, w http.ResponseWriter, req *http.Request) { f(w, req) }
}

// find returns the route of a request. nil: there is none, and allow is the methods that the path has.
func find(method, path string) (found *route, allow string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var at string // the path of the table that is meant: the longest
	for i := range routes {
		rt := &routes[i]
		if path != rt.path && !(strings.HasSuffix(rt.path, "/") && strings.HasPrefix(path, rt.path)) || len(rt.path) < len(at) {
			continue
		}
		if len(rt.path) > len(at) {
			at, found, allow = rt.path, nil, ""
		}
		if rt.method == method {
			found = rt
		}
		allow += map[string]string{"GET": "GET, HEAD, ", "POST": "POST, "}[rt.method]
	}
	return found, strings.TrimSuffix(allow, ", ")
}

// by is the key under which a request's context has its operator.
type by struct{}

// Handler is the listener's handler. It registers its metrics.
func Handler(c Config, metrics *prometheus.Registry, log *slog.Logger) http.Handler {
	c.metrics = promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)})
	auth := operator.NewAuthenticator(c.Operators, "gateway", log, metrics)
	checked := hosts.Only(c.Listen, c.Hosts, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rt, allow := find(req.Method, req.URL.Path)
		need := operator.Viewer // only an operator learns which paths there are
		if rt != nil {
			need = rt.role
		} else if get, _ := find(http.MethodGet, req.URL.Path); get != nil && get.role == operator.Anybody {
			need = operator.Anybody
		}
		if need != operator.Anybody && !c.Operators().Empty() {
			who, p := auth.Bearer(req)
			if p == nil && !who.Role.Covers(need) {
				p = operator.TooLow(who, need)
			}
			if p != nil {
				refuse(w, p)
				return
			}
			req = req.WithContext(context.WithValue(req.Context(), by{}, who))
		}
		switch {
		case rt != nil:
			rt.handle(&c, w, req)
		case allow != "":
			w.Header().Set("Allow", allow)
			refuse(w, problem.New(problem.MethodNotAllowed, req.Method+" is not for this path, only "+allow))
		default:
			refuse(w, problem.New(problem.NotFound, "there is no such path on the ops listener"))
		}
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set(requestID, rand.Text())
		checked.ServeHTTP(w, req)
	})
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
	from := "POST /-/reload from " + req.RemoteAddr
	if who, ok := req.Context().Value(by{}).(operator.Operator); ok {
		from += " by " + who.String()
	}
	diff, err := c.Reload(from)
	if err != nil {
		text(w, 400, err.Error()+"\n")
		return
	}
	text(w, 200, diff+"\n")
}

func (c *Config) reloads(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, 200, struct {
		Reloads []Reload `json:"reloads"`
	}{c.Reloads()})
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

const requestID = "X-Request-Id"

func refuse(w http.ResponseWriter, p *problem.Problem) {
	operator.Describe(w.Header(), p)
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

// Package edge is the gateway's public server: what a request must look like, in which order it is checked, and what
// it is answered. docs/gateway.md has the order of the checks. The table of routes is in routes.go.
package edge

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/page"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/presslog"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/topk"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/wire"
)

// Config is what a Server works with. It does not change while the process lives.
type Config struct {
	Clock    *clock.Clock
	Gate     *salegate.Gate
	Cache    *pagecache.Cache
	Backends *upstream.Pool
	Presses  *presslog.Recorder // counts what became of each user's orders
	Flusher  *presslog.Flusher  // sends those counts to the backends
	Log      *slog.Logger
	Now      func() time.Time // the monotonic clock of buckets, caches and the gate; time.Now but in tests
	HTTP     HTTPConfig
	Tracer   *tracing.Tracer // nil: nothing is traced
	// IPv6Prefix is how many bits of an IPv6 address are counted as one address; 0: network.DefaultPrefix.
	IPv6Prefix int
}

// HTTPConfig bounds a connection and its requests. A bound of 0 is none.
type HTTPConfig struct {
	ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	MaxBody, MaxHeader                     int // bytes
}

// Settings is what a reload changes at the edge. A reload swaps them as a whole.
type Settings struct {
	Verifier        *identity.Verifier
	Order           *limit.Rule // of a user: orders and carts
	Payment         *limit.Rule // of a user: payments, cancellations, coupons used
	Read            *limit.Rule // of a user: all else
	IP              *limit.Rule // of an address, without a token that was found good before
	IPUsers         *limit.Rule // of an address, with one
	Webhook         *limit.Rule // of an address that delivers webhooks
	Global          *limit.Rule // of all orders together
	GlobalWait      limit.WaitBounds
	Trusted         network.Set // proxies whose X-Forwarded-For is read
	Exempt          network.Set // from the rules of addresses
	BannedNetworks  network.Set
	ExemptUsers     map[string]struct{} // from the rules of users
	BannedUsers     map[string]struct{} // from ordering
	EligibleUsers   map[string]struct{} // the only ones who may order; empty: everybody
	Pages           pagecache.Rule
	Page            *page.Site       // nil: Floodgate's own
	Sign            *identity.Signer // mints test tokens; nil outside development
	InsecureCookies bool             // without Secure and the prefix __Host-, for plain HTTP in development
	CORS            *CORS            // nil: no page of another site may use the API
	Log             LogSettings
	Traces          TraceSettings
	NoFastPath      bool          // every request goes through the HTTP parser
	Canary          *Canary       // rules that are tried on a share of the users; nil: none are
	MaxAge          time.Duration // of a connection; 0: any
	MaxRequests     int           // of a connection; 0: any number

	pagesMaxAge      string
	cookie           string // the session cookie's name
	cookieAttributes string
}

// Server answers requests. Make it with New.
type Server struct {
	Config
	settings atomic.Pointer[Settings]
	draining atomic.Bool
	leaving  atomic.Bool                     // each connection ends with its next answer
	http     atomic.Pointer[fasthttp.Server] // serves connections that were parked; nil: none is

	deliveries atomic.Int64 // webhooks at the backends

	orders, payments, reads *limit.Buckets[string]
	ips, ipUsers, webhooks  *limit.Buckets[[16]byte]
	global                  *limit.Global
	metrics                 *metrics
	topUIDs                 *topk.Table[string]
	topAddrs                *topk.Table[[16]byte]

	date     atomic.Pointer[date]
	idPrefix string
	idCount  atomic.Uint64
	lines    *[lineKinds]budget
	traces   budget
	warnings *rate.Limiter
	peerLogs *rate.Limiter
}

// New makes a server.
func New(c Config, settings Settings, reg prometheus.Registerer) *Server {
	c.IPv6Prefix = cmp.Or(c.IPv6Prefix, network.DefaultPrefix)
	var prefix [5]byte
	rand.Read(prefix[:]) // never fails: crypto/rand
	s := &Server{
		Config: c,
		orders: limit.New[string]("order", reg), payments: limit.New[string]("payment", reg), reads: limit.New[string]("read", reg),
		ips: limit.New[[16]byte]("ip", reg), ipUsers: limit.New[[16]byte]("ip_users", reg), webhooks: limit.New[[16]byte]("webhook", reg),
		global:  limit.NewGlobal("global", reg),
		metrics: newMetrics(reg),
		topUIDs: topk.NewTable[string](), topAddrs: topk.NewTable[[16]byte](),
		idPrefix: hex.EncodeToString(prefix[:]) + "-",
		lines:    newBudgets(reg),
		traces:   newTraceBudget(reg),
		warnings: rate.NewLimiter(2, 5),
		peerLogs: rate.NewLimiter(rate.Every(time.Minute), 1),
	}
	s.SetSettings(settings)
	return s
}

// SetSettings swaps the settings. Buckets keep their tokens. A request in progress keeps the settings that it began with.
func (s *Server) SetSettings(set Settings) {
	set.pagesMaxAge = "public, max-age=" + itoa(int(max(set.Pages.TTL/time.Second, 1)))
	set.cookie, set.cookieAttributes = sessionCookie, "; Path=/; HttpOnly; SameSite=Strict"
	if !set.InsecureCookies {
		set.cookie, set.cookieAttributes = secureCookie, set.cookieAttributes+"; Secure"
	}
	if set.Page == nil {
		set.Page = page.New(page.Look{})
	}
	s.settings.Store(&set)
}

// Drain makes long polls answer at once.
func (s *Server) Drain() { s.draining.Store(true) }

// MaxConnections is the highest bound that a Listener may have.
const MaxConnections = 1 << 20

// writeBuffer is so large that a page of all sales is one write. A parked connection has none.
const writeBuffer = 8 << 10

// HTTPServer makes the fasthttp server around s.
func (s *Server) HTTPServer() *fasthttp.Server {
	c := s.HTTP
	server := &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.protocolError,
		Logger:                       formatLog{s.Log},
		ReadTimeout:                  c.ReadTimeout,
		WriteTimeout:                 c.WriteTimeout,
		IdleTimeout:                  c.IdleTimeout,
		MaxRequestBodySize:           c.MaxBody,
		ReadBufferSize:               c.MaxHeader,
		WriteBufferSize:              writeBuffer,
		Concurrency:                  MaxConnections + 1024, // the Listener's bound is the one that counts
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		DisablePreParseMultipartForm: true,
		SecureErrorLogMessage:        true,
		CloseOnShutdown:              true,
	}
	s.http.Store(server)
	return server
}

// formatLog is fasthttp's log. Its arguments may hold parts of a request, tokens included, so only the format is kept.
type formatLog struct{ log *slog.Logger }

func (l formatLog) Printf(format string, _ ...any) { l.log.Debug("HTTP server", "message", format) }

var errSignature = errors.New("the backend refuses this gateway's signature")

// warn logs a few lines a second at most: in an outage every request would log one.
func (s *Server) warn(message string, err error, r *upstream.Request) {
	if s.warnings.Allow() {
		s.Log.Warn(message, "error", err, "request_id", r.RequestID, "trace_id", wire.TraceID(r.Trace))
	}
}

// key is what an address is counted by.
func (s *Server) key(a netip.Addr) [16]byte { return network.Key(a, s.IPv6Prefix) }

func itoa(n int) string { return strconv.Itoa(n) }

package gateway

import (
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/ops"
	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/gateway/presslog"
	"floodgate.internal/gateway/salegate"
	"floodgate.internal/gateway/tlscert"
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/tracing"
)

// loaded is one generation of the configuration.
type loaded struct {
	Config
	Hash       string
	Generation int
}

// process is a gateway process: the parts that live as long as it does, and the configuration in force.
type process struct {
	path       string
	now        func() time.Time // the monotonic clock of buckets, caches and the gate
	log        *slog.Logger
	level      *slog.LevelVar
	clk        *clock.Clock
	gate       *salegate.Gate
	cache      *pagecache.Cache
	pool       *upstream.Pool
	edge       *edge.Server
	presses    *presslog.Recorder
	flusher    *presslog.Flusher
	metrics    reloadMetrics
	tokens     *tokens
	tracer     *tracing.Tracer // nil: traces are off
	tls        backendTLS
	certs      *tlscert.Store
	tlsChanged chan struct{} // one element at most: other directories may hold the files of TLS

	mu       sync.Mutex // one reload at a time; guards what follows
	settings edge.Settings
	bounds   edge.Bounds
	public   *edge.Listener // nil until listening
	tried    string         // the hash of the file that was last read, taken over or not
	history  []ops.Reload   // the newest keptReloads, oldest first

	current   atomic.Pointer[loaded]
	operators atomic.Pointer[operator.List] // of the configuration in force
	canary    atomic.Pointer[canaryRun]     // changed with mu; nil: none runs
	listening atomic.Bool
	leaving   atomic.Bool // it is told to end, and still takes connections
	draining  atomic.Bool
}

// newProcess builds everything that needs no socket of its own.
func newProcess(path string, c Config, hash string, now func() time.Time, log *slog.Logger, level *slog.LevelVar, reg prometheus.Registerer) (*process, error) {
	if fields := c.developmentSecrets(); len(fields) > 0 {
		log.Warn("development secrets are in use: this gateway is for this machine only", "fields", strings.Join(fields, ", "))
	}
	level.Set(c.Log.Level)
	var err error
	r := &process{path: path, now: now, log: log, level: level, clk: &clock.Clock{}, tried: hash, tokens: newTokens(log, reg)}
	if r.settings, err = r.settingsOf(nil, c); err != nil {
		return nil, err
	}
	if r.bounds, err = r.fit(c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.tokens.follow(r.settings.Verifier)
	r.current.Store(&loaded{c, hash, 1})
	r.certs, r.tlsChanged = tlscert.NewStore(log, reg), make(chan struct{}, 1)
	r.setTLS(c)
	r.operators.Store(c.operators())
	r.gate = salegate.New(r.clk, c.Feed.StaleAfter, reg)
	r.cache = pagecache.New(c.Cache.MaxBytes, reg)
	if err := r.tls.load(c); err != nil {
		return nil, err
	}
	r.pool = upstream.New(r.upstreamConfig(c), r.clk, reg)
	r.presses = presslog.NewRecorder(c.Timeline.MaxRecords, reg)
	r.flusher = presslog.NewFlusher(r.presses, c.Timeline.FlushEvery, r.pool.PostRecords, log, reg)
	if r.tracer, err = tracing.Open(c.Tracing.Config, "gateway", log, reg); err != nil {
		return nil, err
	}
	r.edge = edge.New(edge.Config{
		Tracer: r.tracer,
		Clock:  r.clk, Gate: r.gate, Cache: r.cache, Backends: r.pool, Presses: r.presses, Flusher: r.flusher, Log: log, Now: now,
		HTTP: edge.HTTPConfig{
			ReadTimeout: c.Server.ReadTimeout, WriteTimeout: c.Server.WriteTimeout, IdleTimeout: c.Server.IdleTimeout,
			MaxBody: c.Server.MaxBody, MaxHeader: c.Server.MaxHeader,
		},
		IPv6Prefix: c.IPv6Prefix,
	}, r.settings, reg)
	r.metrics = newReloadMetrics(r, reg)
	r.tls.register(reg)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(ops.Reload{By: "start", Result: taken})
	return r, nil
}

func (r *process) upstreamConfig(c Config) upstream.Config {
	return upstream.Config{
		Backends: c.Backends, TLS: r.tls.config, Key: signing.Key{ID: c.SigningKey.ID, Secret: c.SigningKey.Secret.Reveal()},
		Timeout: c.Upstream.Timeout, MaxInFlight: c.Upstream.MaxInFlight, MaxPerSale: c.Upstream.MaxPerSale, MaxWaiting: c.Upstream.MaxWaiting,
	}
}

// settingsOf makes the edge's settings of c, and changes nothing. Rules and keys that are the same in old (nil: none) are kept,
// so that verified tokens stay cached.
func (r *process) settingsOf(old *Config, c Config) (edge.Settings, error) {
	if old == nil {
		old = &Config{}
	}
	s := limitsOf(r.settings, old.Limits, c, r.now())
	if s.Verifier == nil || !reflect.DeepEqual(old.Identity, c.Identity) {
		v, err := r.tokens.verifier(s.Verifier, c.Identity, r.clk.Now)
		if err != nil {
			return s, err
		}
		s.Verifier = v
	}
	s.CORS = edge.NewCORS(c.CORS.Origins, c.CORS.MaxAge)
	s.Page = c.site()
	s.Sign = nil
	if k, ok := identity.NewSigner(c.Identity.Keys, c.Identity.rules()); ok && c.Development {
		s.Sign = &k
	}
	s.Pages = pagecache.Rule{TTL: c.Cache.TTL, Stale: c.Cache.Stale}
	s.InsecureCookies = c.Development
	s.Log = c.Log.settings(c.SigningKey.Secret)
	s.Traces = edge.TraceSettings{Sample: c.Tracing.Sample, Max: c.Tracing.MaxPerSecond}
	s.NoFastPath = !c.Server.FastPath
	s.MaxAge, s.MaxRequests = c.Server.MaxConnectionAge, c.Server.MaxRequests
	return s, nil
}

// limitsOf is s with the limits of c, which hold from now on, and the addresses that count for them. A rule that is the same in old is
// kept.
func limitsOf(s edge.Settings, old LimitsConfig, c Config, now time.Time) edge.Settings {
	rule := func(name string, kept *limit.Rule, was, is RuleConfig) *limit.Rule {
		if kept != nil && reflect.DeepEqual(was, is) {
			return kept
		}
		return ruleOf(name, is, now)
	}
	s.Order = rule("order", s.Order, old.Order, c.Limits.Order)
	s.Payment = rule("payment", s.Payment, old.Payment, c.Limits.Payment)
	s.Read = rule("read", s.Read, old.Read, c.Limits.Read)
	s.IP = rule("ip", s.IP, old.IP, c.Limits.IP)
	s.IPUsers = rule("ip_users", s.IPUsers, old.IPUsers, c.Limits.IPUsers)
	s.Webhook = rule("webhook", s.Webhook, old.Webhook, c.Limits.Webhook)
	s.Global = rule("global", s.Global, RuleConfig{LawConfig: old.Global.LawConfig}, RuleConfig{LawConfig: c.Limits.Global.LawConfig})
	s.GlobalWait = limit.WaitBounds{MaxWait: c.Limits.Global.MaxWait, MaxWaiting: c.Limits.Global.MaxWaiting}
	s.Trusted, s.Exempt, s.BannedNetworks = networks(c.Trusted), networks(c.Limits.IPExempt), networks(c.Limits.BannedNetworks)
	s.ExemptUsers, s.BannedUsers, s.EligibleUsers = uids(c.Limits.UIDExempt), uids(c.Limits.BannedUIDs), uids(c.Limits.EligibleUIDs)
	return s
}

// ruleOf makes a rule that holds from now on.
func ruleOf(name string, c RuleConfig, now time.Time) *limit.Rule {
	var laws []limit.Law
	for _, l := range append([]LawConfig{c.LawConfig}, c.Also...) {
		laws = append(laws, limit.Law(l))
	}
	return limit.NewRule(name, c.MaxKeys, now, laws...)
}

// apply puts a new generation in force. It cannot fail. The caller holds mu.
func (r *process) apply(l *loaded, s edge.Settings, b edge.Bounds) {
	c := l.Config
	r.level.Set(c.Log.Level)
	r.gate.SetStaleAfter(c.Feed.StaleAfter)
	r.cache.SetMaxBytes(c.Cache.MaxBytes)
	r.pool.SetConfig(r.upstreamConfig(c))
	r.presses.SetMax(c.Timeline.MaxRecords)
	r.flusher.SetEvery(c.Timeline.FlushEvery)
	failpoint.Hit("gateway.mid-reload")
	r.settings = s
	r.tokens.follow(s.Verifier)
	r.setTLS(c)
	r.bounds = b
	if r.public != nil {
		r.public.SetBounds(b.With(s))
		r.public.SetTransport(r.transport(c))
	}
	r.operators.Store(c.operators())
	r.setSettings(s)
	r.current.Store(l)
}

// listen wraps the public listener, which is open.
func (r *process) listen(inner net.Listener, reg prometheus.Registerer) *edge.Listener {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.public = edge.NewListener(inner, r.edge, r.bounds.With(r.settings), reg)
	r.public.SetTransport(r.transport(r.current.Load().Config))
	r.listening.Store(true)
	return r.public
}

// ready says why the gateway is not ready, and what is wrong although it is.
func (r *process) ready() (reasons, warnings []string) {
	if !r.listening.Load() {
		reasons = append(reasons, "not listening yet")
	}
	if r.leaving.Load() {
		reasons = append(reasons, "shutting down")
	}
	if r.draining.Load() {
		reasons = append(reasons, "draining")
	}
	if !r.gate.Ready() {
		reasons = append(reasons, "the sale feed was never received")
	} else if now := time.Now(); !r.gate.Fresh(now) {
		warnings = append(warnings, fmt.Sprintf("the sale feed is silent for %v", r.gate.Age(now).Round(100*time.Millisecond)))
	}
	keys, tokenWarnings := r.tokens.ready(r.current.Load().Identity)
	reasons, warnings = append(reasons, keys...), append(warnings, tokenWarnings...)
	for _, b := range r.pool.Down() {
		warnings = append(warnings, "backend "+b+" does not answer")
	}
	warnings = append(warnings, r.tlsWarnings()...)
	warnings = append(warnings, r.canaryWarnings()...)
	return reasons, append(warnings, r.certs.Warnings(time.Now())...)
}

// opsConfig is what the ops listener asks and tells the process.
func (r *process) opsConfig() ops.Config {
	return ops.Config{
		Ready: r.ready,
		Reload: func(by string) (string, error) {
			diff, err := r.reload(by)
			if err != nil {
				return "", err
			}
			return diffText(diff), nil
		},
		Config: func() ops.Generation {
			l := r.current.Load()
			return ops.Generation{Generation: l.Generation, Hash: l.Hash, Config: l.Tree()}
		},
		Top:       r.edge.Top,
		Reloads:   r.reloads,
		Operators: r.operators.Load,
		Listen:    r.current.Load().Listen.Ops,
		Hosts:     func() []string { return r.current.Load().OpsHosts },
	}
}

// diffText is a diff as text.
func diffText(diff []string) string {
	if len(diff) == 0 {
		return "nothing changed"
	}
	return strings.Join(diff, "\n")
}

package gateway

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strconv"
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
	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/signing"
)

// loaded is one generation of the configuration.
type loaded struct {
	Config
	Hash       string
	Generation int
}

// running is a gateway at work: the parts that live as long as it does, and the configuration that they follow.
type running struct {
	path  string
	now   func() time.Time // the monotonic clock of buckets, caches and the gate
	log   *slog.Logger
	level *slog.LevelVar
	clk   *clock.Clock
	gate  *salegate.Gate
	cache *pagecache.Cache
	pool  *upstream.Pool
	edge  *edge.Server

	records  *presslog.Recorder
	handover *presslog.Handover

	mu       sync.Mutex // one reload at a time; guards what follows
	settings edge.Settings
	public   *edge.Listener // nil until listening
	tried    string         // the hash of the file that was last read, taken over or not
	history  []ops.Reload   // the newest keptReloads, oldest first

	current  atomic.Pointer[loaded]
	open     atomic.Bool // listening
	draining atomic.Bool
	metrics  reloadMetrics
}

// start builds everything that needs no socket of its own.
func start(path string, now func() time.Time, level *slog.LevelVar, log *slog.Logger, reg prometheus.Registerer) (*running, error) {
	c, hash, err := Load(path)
	if err != nil {
		return nil, err
	}
	if fields := c.developmentSecrets(); len(fields) > 0 {
		log.Warn("development secrets are in use: this gateway is for this machine only", "fields", strings.Join(fields, ", "))
	}
	r := &running{path: path, now: now, log: log, level: level, clk: &clock.Clock{}, tried: hash}
	r.gate = salegate.New(r.clk, c.Feed.StaleAfter, reg)
	r.cache = pagecache.New(c.Cache.MaxBytes, reg)
	r.pool = upstream.New(upstreamConfig(c), r.clk, reg)
	r.records = presslog.NewRecorder(c.Timeline.MaxRecords, reg)
	r.handover = presslog.NewHandover(r.records, c.Timeline.FlushEvery, r.pool.Records, log, reg)
	r.edge = edge.New(edge.Parts{Clock: r.clk, Gate: r.gate, Cache: r.cache, Pool: r.pool, Records: r.records, Handover: r.handover, Log: log, Now: now}, reg)
	r.metrics = newReloadMetrics(r, reg)
	r.mu.Lock()
	defer r.mu.Unlock()
	settings, err := r.build(nil, c)
	if err != nil {
		return nil, err
	}
	r.apply(&loaded{c, hash, 1}, settings)
	r.record(ops.Reload{By: "start", Result: takenOver})
	return r, nil
}

func upstreamConfig(c Config) upstream.Config {
	return upstream.Config{
		Backends: c.backends(), Key: signing.Key{ID: c.SigningKey.ID, Secret: c.SigningKey.Secret.Reveal()},
		Timeout: c.Upstream.Timeout, MaxInFlight: c.Upstream.MaxInFlight, MaxPerSale: c.Upstream.MaxPerSale, MaxWaiting: c.Upstream.MaxWaiting,
	}
}

// build makes the edge's settings of c; nothing has changed if it fails. What did not change since old is kept, so that
// remembered tokens stay remembered and buckets have nothing to follow.
func (r *running) build(old *Config, c Config) (edge.Settings, error) {
	now := r.now()
	rule := func(name string, kept *limit.Rule, was, is RuleConfig) *limit.Rule {
		if kept != nil && reflect.DeepEqual(was, is) {
			return kept
		}
		var laws []limit.Law
		for _, l := range append([]LawConfig{is.LawConfig}, is.Also...) {
			laws = append(laws, limit.Law(l))
		}
		return limit.NewRule(name, is.MaxKeys, now, laws...)
	}
	if old == nil {
		old = &Config{}
	}
	s := r.settings
	s.Order = rule("order", s.Order, old.Limits.Order, c.Limits.Order)
	s.Payment = rule("payment", s.Payment, old.Limits.Payment, c.Limits.Payment)
	s.Read = rule("read", s.Read, old.Limits.Read, c.Limits.Read)
	s.IP = rule("ip", s.IP, old.Limits.IP, c.Limits.IP)
	s.Webhook = rule("webhook", s.Webhook, old.Limits.Webhook, c.Limits.Webhook)
	s.Global = rule("global", s.Global, RuleConfig{LawConfig: old.Limits.Global.LawConfig}, RuleConfig{LawConfig: c.Limits.Global.LawConfig})
	s.Patience = limit.Patience{Wait: c.Limits.Global.MaxWait, Places: c.Limits.Global.MaxWaiting}
	s.Trusted, s.Exempt, s.BannedNetworks = networks(c.Trusted), networks(c.Limits.IPExempt), networks(c.Limits.BannedNetworks)
	s.ExemptUsers, s.BannedUsers, s.EligibleUsers = uids(c.Limits.UIDExempt), uids(c.Limits.BannedUIDs), uids(c.Limits.EligibleUIDs)
	if s.Verifier == nil || !reflect.DeepEqual(old.Identity, c.Identity) {
		v, err := identity.NewVerifier(c.Identity.Keys, c.Identity.rules(), r.clk.Now)
		if err != nil {
			return s, err
		}
		s.Verifier = v
	}
	s.Sign = nil
	if k, ok := identity.Signing(c.Identity.Keys, c.Identity.rules()); ok && c.Development {
		s.Sign = &k
	}
	s.Pages = pagecache.Rule{TTL: c.Cache.TTL, Stale: c.Cache.Stale}
	s.InsecureCookies = c.Development
	s.LogEvery = c.Log.AccessEvery
	return s, nil
}

// apply puts a generation in force. It cannot fail. The caller holds mu.
func (r *running) apply(l *loaded, s edge.Settings) {
	c := l.Config
	r.level.Set(c.Log.Level)
	r.gate.SetStaleAfter(c.Feed.StaleAfter)
	r.cache.SetMaxBytes(c.Cache.MaxBytes)
	r.pool.Configure(upstreamConfig(c))
	r.records.SetMost(c.Timeline.MaxRecords)
	r.handover.SetEvery(c.Timeline.FlushEvery)
	if l.Generation > 1 {
		failpoint.Hit("gateway.mid-reload")
	}
	r.settings = s
	if r.public != nil {
		r.public.SetBounds(bounds(c, s))
	}
	r.edge.Configure(s)
	r.current.Store(l)
}

func bounds(c Config, s edge.Settings) edge.Bounds {
	return edge.Bounds{Max: c.Server.MaxConnections, PerAddress: c.Server.MaxConnectionsPerIP, Exempt: s.Exempt, Trusted: s.Trusted}
}

// listening wraps the public listener, and notes that it is open.
func (r *running) listening(inner net.Listener, reg prometheus.Registerer) *edge.Listener {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.public = edge.NewListener(inner, r.edge, bounds(r.current.Load().Config, r.settings), reg)
	r.open.Store(true)
	return r.public
}

func (r *running) drain() {
	r.draining.Store(true)
	r.edge.Drain()
}

// ready says why the gateway is not ready, and what is amiss though it is.
func (r *running) ready() (reasons, warnings []string) {
	if !r.open.Load() {
		reasons = append(reasons, "not listening yet")
	}
	if r.draining.Load() {
		reasons = append(reasons, "draining")
	}
	if !r.gate.Ready() {
		reasons = append(reasons, "the sale feed was never received")
	} else if now := time.Now(); !r.gate.Fresh(now) {
		warnings = append(warnings, fmt.Sprintf("the sale feed is silent for %v", r.gate.Age(now).Round(100*time.Millisecond)))
	}
	for _, b := range r.pool.Lost() {
		warnings = append(warnings, "backend "+b+" does not answer")
	}
	return reasons, warnings
}

func (r *running) forOperators() ops.Running {
	return ops.Running{
		Ready: r.ready,
		Reload: func(by string) (string, error) {
			diff, err := r.reload(by)
			if err != nil {
				return "", err
			}
			return words(diff), nil
		},
		Config: func() ops.Config {
			l := r.current.Load()
			return ops.Config{Generation: l.Generation, Hash: l.Hash, Config: l.Tree()}
		},
		Noisiest: r.edge.Noisiest,
		Reloads:  r.reloads,
		Token:    func() string { return r.current.Load().OpsToken.Reveal() },
		Listen:   r.current.Load().Listen.Ops,
		Hosts:    func() []string { return r.current.Load().OpsHosts },
	}
}

// words is a diff for people.
func words(diff []string) string {
	if len(diff) == 0 {
		return "nothing changed"
	}
	return strings.Join(diff, "\n")
}

// mint writes a test token for each uid of which.
func mint(c Config, which string, now time.Time, stdout io.Writer) error {
	signer, ok := identity.Signing(c.Identity.Keys, c.Identity.rules())
	if !ok {
		return cli.Usage("identity.keys: none has sign: true, so no token can be minted")
	}
	uids := []string{which}
	if from, to, ok := uidRange(which); ok {
		if to < from || to-from >= maxTokens {
			return cli.Usage("-uid %s: must be A-B with A at most B, and at most %d of them", which, maxTokens)
		}
		uids = uids[:0]
		for n := from; n <= to; n++ {
			uids = append(uids, strconv.FormatUint(n, 10))
		}
	}
	w := bufio.NewWriter(stdout)
	for _, uid := range uids {
		token, _, err := signer.Mint(uid, now, 24*time.Hour)
		if err != nil {
			return &cli.UsageError{Err: err}
		}
		fmt.Fprintln(w, token)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return nil
}

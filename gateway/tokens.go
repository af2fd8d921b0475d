package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/shared/conf"
)

// Bounds of lists in the configuration.
const (
	maxRevoked = 10_000
	maxOrigins = 64
)

// tokens is what the process knows of tokens beside the configuration: the JWK set, and what the backends have revoked.
type tokens struct {
	log          *slog.Logger
	revoked      identity.Revoked
	jwks         atomic.Pointer[identity.JWKS] // that of the verifier in force; nil: none
	swapped      chan struct{}                 // of one: jwks is another; never closed
	read, failed prometheus.Counter
}

func newTokens(log *slog.Logger, reg prometheus.Registerer) *tokens {
	t := &tokens{log: log, swapped: make(chan struct{}, 1)}
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_jwks_reads_total", Help: "Readings of identity.jwks by result."}, []string{"result"})
	t.read, t.failed = reads.WithLabelValues("ok"), reads.WithLabelValues("failed")
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	reg.MustRegister(reads,
		gauge("gateway_jwks_keys", "Keys of identity.jwks in force.", func() float64 {
			if j := t.jwks.Load(); j != nil {
				return float64(j.Keys())
			}
			return 0
		}),
		gauge("gateway_jwks_age_seconds", "Time since identity.jwks was last read well; -1: never, or there is none.", func() float64 {
			if j := t.jwks.Load(); j != nil {
				at, _ := j.State()
				return age(at)
			}
			return -1
		}),
		gauge("gateway_revocations", "Revocations of tokens by the backends.", func() float64 { return float64(t.revoked.Len()) }),
		gauge("gateway_revocations_age_seconds", "Time since a backend last told of revoked tokens; -1: never.", func() float64 { return age(t.revoked.Heard()) }))
	return t
}

func age(at time.Time) float64 {
	if at.IsZero() {
		return -1
	}
	return time.Since(at).Seconds()
}

// verifier makes the verifier of a configuration, to take the place of old (nil: the first). A JWK set from another place is read
// first, and an error if it cannot be; but at the start, when one from a URL may come later.
func (t *tokens) verifier(old *identity.Verifier, c IdentityConfig, now func() time.Time) (*identity.Verifier, error) {
	jwks := t.jwks.Load()
	switch {
	case !c.JWKS.Used():
		jwks = nil
	case jwks == nil || jwks.Config() != c.JWKS:
		jwks = identity.NewJWKS(c.JWKS, t.log, func(ok bool) {
			if ok {
				t.read.Inc()
			} else {
				t.failed.Inc()
			}
		})
		if old == nil && c.JWKS.URL != "" {
			break
		}
		if err := jwks.Read(context.Background()); err != nil { // it bounds its time itself
			return nil, c.unread(err)
		}
	}
	return identity.New(identity.Config{Keys: c.Keys, JWKS: jwks, Rules: c.rules(), Revoked: c.Revoked, Live: &t.revoked, Now: now, Before: old})
}

func (c IdentityConfig) unread(err error) error {
	field := "identity.jwks.url"
	if c.JWKS.File != "" {
		field = "identity.jwks.file"
	}
	return fmt.Errorf("%s: the keys cannot be read: %w", field, err)
}

// checkKeys reads the JWK set of a URL once, as a reload does. That of a file was read by Validate.
func (c IdentityConfig) checkKeys(ctx context.Context) error {
	if c.JWKS.URL == "" {
		return nil
	}
	if err := identity.NewJWKS(c.JWKS, slog.New(slog.DiscardHandler), func(bool) {}).Read(ctx); err != nil {
		return c.unread(err)
	}
	return nil
}

// follow makes the set of this verifier the one that is kept up to date.
func (t *tokens) follow(v *identity.Verifier) {
	if t.jwks.Swap(v.JWKS()) == v.JWKS() {
		return
	}
	select {
	case t.swapped <- struct{}{}:
	default:
	}
}

// run keeps the JWK set and the list of revoked tokens up to date until ctx is done.
func (t *tokens) run(ctx context.Context, src identity.Source) {
	var group sync.WaitGroup
	group.Go(func() { t.revoked.Follow(ctx, src, t.log) })
	for ctx.Err() == nil {
		reading, stop := context.WithCancel(ctx)
		var one sync.WaitGroup
		if j := t.jwks.Load(); j != nil {
			one.Go(func() { j.Run(reading) })
		}
		select {
		case <-ctx.Done():
		case <-t.swapped:
		}
		stop()
		one.Wait()
	}
	group.Wait()
}

// ready says why no token can be judged yet, and what is wrong although they can.
func (t *tokens) ready(c IdentityConfig) (reasons, warnings []string) {
	if j := t.jwks.Load(); j != nil {
		switch at, failure := j.State(); {
		case at.IsZero() && failure == "":
			reasons = append(reasons, "the keys of identity.jwks were never read")
		case at.IsZero():
			reasons = append(reasons, "the keys of identity.jwks were never read: "+failure)
		case failure != "":
			warnings = append(warnings, fmt.Sprintf("the keys of identity.jwks are %v old: %s", time.Since(at).Round(time.Second), failure))
		}
	}
	if t.revoked.Heard().IsZero() {
		reasons = append(reasons, "the list of revoked tokens was never received")
	} else if t.revoked.Quiet() {
		warnings = append(warnings, fmt.Sprintf("the list of revoked tokens is silent for %v", time.Since(t.revoked.Heard()).Round(time.Second)))
	}
	if keep, life := t.revoked.Keep(), c.MaxLifetime+c.Leeway; keep > 0 && keep < life {
		warnings = append(warnings, fmt.Sprintf("the backends keep revocations for %v, and tokens live for up to %v: set revocations.keep of the backends, or identity.max_lifetime", keep, life))
	}
	return reasons, warnings
}

// tokens validates identity.jwks and identity.revoked.
func (v *validator) tokens() {
	j := v.Identity.JWKS
	switch {
	case j.File != "" && j.URL != "":
		v.bad("identity.jwks", "there are a file and a url; give one of them")
	case j.File != "":
		if err := identity.CheckFile(j.File); err != nil {
			v.bad("identity.jwks.file", "%q: %v", j.File, err)
		}
	case j.URL != "":
		u, err := url.Parse(j.URL)
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
			v.bad("identity.jwks.url", "%q must be https://host/path, without a user", j.URL)
		} else if u.Scheme != "https" && !v.Development {
			v.bad("identity.jwks.url", "%q must begin with https:// without development: true: who changes the keys on the way is anybody", j.URL)
		}
	}
	v.duration("identity.jwks.refresh", j.Refresh, 10*time.Second, 24*time.Hour)
	if n := len(v.Identity.Revoked); n > maxRevoked {
		v.bad("identity.revoked", "%d of them, at most %d are taken: revoke more by the backend's admin API", n, maxRevoked)
	}
	for i, r := range v.Identity.Revoked {
		if err := r.Check(); err != nil {
			v.errs = append(v.errs, conf.Under(fmt.Sprintf("identity.revoked[%d].", i), err))
		}
	}
}

// cors validates the origins: each as a browser writes it (RFC 6454, 6.2), which is compared byte by byte.
func (v *validator) cors() {
	if n := len(v.CORS.Origins); n > maxOrigins {
		v.bad("cors.origins", "%d of them, at most %d are taken", n, maxOrigins)
	}
	v.duration("cors.max_age", v.CORS.MaxAge, 0, 24*time.Hour)
	for i, o := range v.CORS.Origins {
		field := fmt.Sprintf("cors.origins[%d]", i)
		u, err := url.Parse(o)
		switch {
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Scheme+"://"+u.Host != o || o != strings.ToLower(o) || strings.ContainsAny(o, "*?# "):
			v.bad(field, "%q must be https://host or https://host:port, in lower case, without a path or a wildcard", o)
		case u.Scheme == "https" && u.Port() == "443" || u.Scheme == "http" && u.Port() == "80":
			v.bad(field, "%q must leave out the usual port, as browsers do", o)
		case u.Scheme != "https" && !v.Development:
			v.bad(field, "%q must begin with https:// without development: true", o)
		}
	}
}

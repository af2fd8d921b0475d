package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/conf"
)

// BackendTLSConfig is how https backends are called: CA (""; the system's) says whose certificates are taken, the certificate is
// this gateway's own. All are PEM files.
type BackendTLSConfig struct {
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
}

func (c BackendTLSConfig) files() certs.Files { return certs.Files(c) }

func (c BackendTLSConfig) read() (certs.Material, error) {
	m, err := c.files().Read(time.Now(), x509.ExtKeyUsageClientAuth)
	if err != nil {
		err = conf.Under("backend_tls.", err)
	}
	return m, err
}

func (v *validator) backendTLS() {
	if _, err := v.BackendTLS.read(); err != nil {
		v.errs = append(v.errs, err)
	}
	secure := func(b string) bool { return strings.HasPrefix(b, "https://") }
	if v.BackendTLS != (BackendTLSConfig{}) && len(v.Backends) > 0 && !slices.ContainsFunc(v.Backends, secure) {
		v.bad("backend_tls", "it is there, but no backend is https://: nothing would be encrypted; leave it out, or name an https backend")
	}
}

// backendTLS is the certificates with which backends are called. A reload's lock guards it, but for what is atomic.
type backendTLS struct {
	config   *tls.Config
	material certs.Material
	trouble  atomic.Pointer[string] // why the files that are there now are not used; nil: they are
	expires  atomic.Int64           // Unix seconds; 0: nothing does
}

// load reads the files of c, for a start.
func (t *backendTLS) load(c Config) error {
	m, err := c.BackendTLS.read()
	if err == nil {
		t.use(m)
	}
	return err
}

func (t *backendTLS) differs(m certs.Material) bool { return m.Sum != t.material.Sum }

// use makes m what upstreamConfig takes. What has not changed stays, so that connections are kept.
func (t *backendTLS) use(m certs.Material) {
	t.trouble.Store(nil)
	if t.config != nil && !t.differs(m) {
		return
	}
	t.material = m
	t.config = &tls.Config{RootCAs: m.Roots, Certificates: m.Pair, MinVersion: tls.VersionTLS12}
	t.expires.Store(0)
	if !m.Expires.IsZero() {
		t.expires.Store(m.Expires.Unix())
	}
}

// tlsCheckEvery is how often the files are compared with what is in use.
const tlsCheckEvery = 2 * time.Second

// watchBackendTLS takes certificates over when their files change, until ctx is done. Their content is compared, which also works
// for links that are swapped and for network file systems.
func (r *process) watchBackendTLS(ctx context.Context) error {
	tick := time.NewTicker(tlsCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.renewBackendTLS()
		}
	}
}

// renewBackendTLS takes over the files if they have changed. Where they are wrong, what is in use stays: that is logged once, and a
// warning of /-/ready until they are right.
func (r *process) renewBackendTLS() {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.current.Load().Config
	if c.BackendTLS == (BackendTLSConfig{}) {
		return
	}
	m, err := c.BackendTLS.read()
	if err != nil {
		text := err.Error()
		if old := r.tls.trouble.Load(); old == nil || *old != text {
			r.log.Error("the certificates for backends were not taken over, the old ones stay", "error", text)
		}
		r.tls.trouble.Store(&text)
		return
	}
	if !r.tls.differs(m) {
		r.tls.trouble.Store(nil)
		return
	}
	r.tls.use(m)
	r.pool.SetConfig(r.upstreamConfig(c))
	r.log.Info("the certificates for backends were read again", "expires", m.Expires)
}

// tlsWarnings says what is wrong with the TLS to the backends, for /-/ready.
func (r *process) tlsWarnings() []string {
	var all []string
	if why := r.tls.trouble.Load(); why != nil {
		all = append(all, "the files of backend_tls have changed and are not used: "+*why)
	}
	if at := r.tls.expires.Load(); at != 0 && time.Now().Unix() > at {
		all = append(all, "a certificate of backend_tls expired at "+time.Unix(at, 0).UTC().Format(time.RFC3339))
	}
	for _, why := range r.pool.Troubles() {
		all = append(all, "TLS to backend "+why)
	}
	return all
}

func (t *backendTLS) register(reg prometheus.Registerer) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_backend_tls_expiry_timestamp_seconds",
			Help: "When the first of the certificates in backend_tls expires; 0 without any."}, func() float64 { return float64(t.expires.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_backend_tls_files_ok",
			Help: "0 while the files of backend_tls cannot be used, and older ones are."}, func() float64 {
			if t.trouble.Load() != nil {
				return 0
			}
			return 1
		}),
	)
}

// probeBackends connects to the https backends, and says which certificates are refused, here or there.
func (c *Config) probeBackends(ctx context.Context) error {
	one := process{}
	if err := one.tls.load(*c); err != nil {
		return err
	}
	p := upstream.New(one.upstreamConfig(*c), &clock.Clock{}, prometheus.NewRegistry())
	defer p.Close()
	if troubles := p.Probe(ctx); len(troubles) > 0 {
		return fmt.Errorf("backends: TLS to %s", strings.Join(troubles, "; to "))
	}
	return nil
}

package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/conf"
)

// InternalTLS is the certificate of the internal listener, and the CA from which a gateway's must come ("": gateways need none). All
// are PEM files. Without a certificate the listener speaks plain HTTP.
type InternalTLS struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	ClientCA    string `yaml:"client_ca"`
}

func (c InternalTLS) on() bool { return c != InternalTLS{} }

func (c InternalTLS) read() (certs.Material, error) {
	if c.ClientCA != "" && c.Certificate == "" && c.Key == "" {
		return certs.Material{}, conf.Wrong("listen.internal_tls.certificate: it is not there, and client_ca is: a client certificate takes TLS, which takes a certificate and a key")
	}
	m, err := certs.Files{CA: c.ClientCA, Certificate: c.Certificate, Key: c.Key}.Read(time.Now(), x509.ExtKeyUsageServerAuth)
	switch {
	case err == nil:
		return m, nil
	case strings.HasPrefix(err.Error(), "ca: "): // it is client_ca here
		return m, conf.Under("listen.internal_tls.client_", err)
	default:
		return m, conf.Under("listen.internal_tls.", err)
	}
}

// internalTLS is the TLS of the internal listener. Its certificates follow their files.
type internalTLS struct {
	InternalTLS
	log      *slog.Logger
	current  atomic.Pointer[tls.Config]
	material certs.Material // in use; watch alone changes it
	refused  string         // why the files that are there now are not used; "": they are
	expires  atomic.Int64   // Unix seconds
	ok       atomic.Bool

	failed prometheus.Counter
	warned atomic.Int64 // the Unix second of the last line about a handshake
}

func newInternalTLS(c InternalTLS, log *slog.Logger, reg prometheus.Registerer) (*internalTLS, error) {
	t := &internalTLS{InternalTLS: c, log: log}
	m, err := c.read()
	if err != nil {
		return nil, err
	}
	t.use(m)
	t.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_tls_handshakes_failed_total", Help: "Connections to the internal listener whose TLS handshake failed."})
	reg.MustRegister(t.failed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_internal_tls_expiry_timestamp_seconds",
			Help: "When the first of the certificates in listen.internal_tls expires."}, func() float64 { return float64(t.expires.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_internal_tls_files_ok",
			Help: "0 while the files of listen.internal_tls cannot be used, and older ones are."}, func() float64 {
			if t.ok.Load() {
				return 1
			}
			return 0
		}))
	return t, nil
}

// use makes m what new connections get.
func (t *internalTLS) use(m certs.Material) {
	c := &tls.Config{Certificates: m.Pair, MinVersion: tls.VersionTLS12}
	if m.Roots != nil {
		c.ClientCAs, c.ClientAuth = m.Roots, tls.RequireAndVerifyClientCert
	}
	t.material, t.refused = m, ""
	t.expires.Store(m.Expires.Unix())
	t.ok.Store(true)
	t.current.Store(c)
}

// tlsCheckEvery is how often the files are compared with what is in use.
const tlsCheckEvery = 2 * time.Second

// watch takes certificates over when their files change, until ctx is done. Open connections stay as they are.
func (t *internalTLS) watch(ctx context.Context) error {
	tick := time.NewTicker(tlsCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.renew()
		}
	}
}

// renew takes over the files if they have changed. Where they are wrong, what is in use stays, and that is logged once.
func (t *internalTLS) renew() {
	m, err := t.read()
	switch {
	case err != nil:
		t.ok.Store(false)
		if text := err.Error(); text != t.refused {
			t.refused = text
			t.log.Error("the certificates of the internal listener were not taken over, the old ones stay", "error", text)
		}
	case m.Sum != t.material.Sum:
		t.use(m)
		t.log.Info("the certificates of the internal listener were read again", "expires", m.Expires)
	default:
		t.refused = ""
		t.ok.Store(true)
	}
}

// listener wraps ln. The server's workers do the handshakes, each within its read time-out.
func (t *internalTLS) listener(ln net.Listener) net.Listener {
	return &tlsListener{Listener: ln, tls: t, config: &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.current.Load(), nil },
	}}
}

type tlsListener struct {
	net.Listener
	tls    *internalTLS
	config *tls.Config
}

// Accept implements net.Listener.
func (l *tlsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tlsConn{Conn: tls.Server(c, l.config), tls: l.tls}, nil
}

// tlsConn counts a handshake that fails: the server that asks for it says nothing of it.
type tlsConn struct {
	*tls.Conn
	tls *internalTLS
}

// Handshake does the handshake, and logs and counts its failure.
func (c *tlsConn) Handshake() error {
	err := c.Conn.Handshake()
	if err != nil {
		c.tls.failed.Inc()
		if now := time.Now().Unix(); !errors.Is(err, io.EOF) && c.tls.warned.Swap(now) != now { // a line a second at most
			c.tls.log.Warn("a TLS handshake on the internal listener failed", "from", c.RemoteAddr().String(), "error", err)
		}
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return nil
}

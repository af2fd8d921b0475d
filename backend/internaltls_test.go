package backend

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"

	"floodgate.internal/backend/admission"
	"floodgate.internal/backend/api"
	"floodgate.internal/shared/certs/certstest"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
)

// serveInternal serves the internal listener, which answers everything with 503: its server was not begun.
func serveInternal(t *testing.T, c InternalTLS, log *slog.Logger) (*internalTLS, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own, err := newInternalTLS(c, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	server := api.New(api.Config{Keys: []signing.Key{{ID: "k", Secret: strings.Repeat("s", 32)}}, Clock: &clock.Clock{}, Log: log, Register: prometheus.NewRegistry(),
		Limits: api.Limits{InFlight: 8, Waiting: 8, Connections: 8, Line: admission.Limits{Slots: 1, Waiting: 1, PerUnit: 1, Wait: time.Second}}})
	done := make(chan error, 1)
	go func() { done <- server.Serve(own.listener(ln)) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return own, ln.Addr().String()
}

func TestInternalListenerOverTLS(t *testing.T) {
	ours, foreign := certstest.NewCA(t, "ours"), certstest.NewCA(t, "foreign")
	server, mine, alien := ours.Issue("server", nil), ours.Issue("gateway", nil), foreign.Issue("alien", nil)
	load := func(p certstest.Pair) []tls.Certificate {
		c, err := tls.LoadX509KeyPair(p.Certificate, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{c}
	}
	ca, err := os.ReadFile(ours.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	log := slog.New(slog.DiscardHandler)
	open, addr := serveInternal(t, InternalTLS{Certificate: server.Certificate, Key: server.Key}, log)
	closed, strict := serveInternal(t, InternalTLS{Certificate: server.Certificate, Key: server.Key, ClientCA: ours.File}, log)
	for _, c := range []struct {
		name, addr string
		client     *tls.Config
		ok         bool
	}{
		{"without a client certificate", addr, &tls.Config{}, true},
		{"TLS 1.2", addr, &tls.Config{MaxVersion: tls.VersionTLS12}, true},
		{"TLS 1.1", addr, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false},
		{"with its certificate", strict, &tls.Config{Certificates: load(mine)}, true},
		{"with its certificate, TLS 1.2", strict, &tls.Config{Certificates: load(mine), MaxVersion: tls.VersionTLS12}, true},
		{"without the certificate that is required", strict, &tls.Config{}, false},
		{"without the certificate that is required, TLS 1.2", strict, &tls.Config{MaxVersion: tls.VersionTLS12}, false},
		{"with one of another CA", strict, &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &load(alien)[0], nil }}, false},
	} {
		c.client.RootCAs = roots
		client := &fasthttp.HostClient{Addr: c.addr, IsTLS: true, TLSConfig: c.client, MaxIdemponentCallAttempts: 1}
		status, _, err := client.GetTimeout(nil, "https://"+c.addr+"/v1/sales", 20*time.Second)
		if c.ok && (err != nil || status != 503) || !c.ok && err == nil {
			t.Errorf("%s: got %d, %v", c.name, status, err)
		}
		client.CloseIdleConnections()
	}
	plain := &fasthttp.HostClient{Addr: strict, MaxIdemponentCallAttempts: 1}
	if status, _, err := plain.GetTimeout(nil, "http://"+strict+"/v1/sales", 20*time.Second); err == nil {
		t.Errorf("without TLS: got %d", status)
	}
	if n, m := testutil.ToFloat64(open.failed), testutil.ToFloat64(closed.failed); n != 1 || m != 4 {
		t.Errorf("got %v and %v failed handshakes, want 1 and 4", n, m)
	}
}

// Certificates follow their files. A bad pair keeps the old one and says so.
func TestInternalCertificatesAreRenewed(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	pair := ca.Issue("server", nil)
	var log bytes.Buffer
	own, addr := serveInternal(t, InternalTLS{Certificate: pair.Certificate, Key: pair.Key}, slog.New(slog.NewTextHandler(&log, nil)))
	serial := func() string {
		c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	own.renew()
	if serial() != first || !own.ok.Load() {
		t.Error("the same files are another certificate")
	}
	key, err := os.ReadFile(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca.Issue("server", nil)
	if err := os.WriteFile(pair.Key, key, 0o600); err != nil { // the old key
		t.Fatal(err)
	}
	own.renew()
	own.renew()
	if text := log.String(); serial() != first || own.ok.Load() || strings.Count(text, "does not hold the private key of the certificate") != 1 {
		t.Errorf("a bad pair: got %v\n%s", own.ok.Load(), text)
	}
	ca.Issue("server", nil)
	own.renew()
	if serial() == first || !own.ok.Load() {
		t.Error("the new pair is not used")
	}
}

func TestInternalTLSIsChecked(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	pair := ca.Issue("server", nil)
	for want, c := range map[string]InternalTLS{
		"listen.internal_tls.certificate: it is not there, and client_ca is": {ClientCA: ca.File},
		"listen.internal_tls.key: it is not there, and certificate is":       {Certificate: pair.Certificate},
		"listen.internal_tls.certificate: it is not there, and key is":       {Key: pair.Key},
		"listen.internal_tls.client_ca: ":                                    {Certificate: pair.Certificate, Key: pair.Key, ClientCA: pair.Key},
		"listen.internal_tls.key: ":                                          {Certificate: pair.Certificate, Key: ca.File},
	} {
		v := valid()
		v.Listen.InternalTLS = c
		if err := v.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	v := valid()
	v.Listen.InternalTLS = InternalTLS{pair.Certificate, pair.Key, ca.File}
	if err := v.Validate(); err != nil {
		t.Error(err)
	}
}

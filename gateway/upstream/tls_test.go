package upstream

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/certs/certstest"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/signing"
)

func material(t *testing.T, ca string, p certstest.Pair, use x509.ExtKeyUsage) certs.Material {
	t.Helper()
	m, err := certs.Files{CA: ca, Certificate: p.Certificate, Key: p.Key}.Read(time.Now(), use)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// secure is a backend that speaks TLS.
type secure struct {
	net.Listener
	config     atomic.Pointer[tls.Config]
	handshakes atomic.Int64
	requests   atomic.Int64
	wg         sync.WaitGroup
}

func serveTLS(t *testing.T, c *tls.Config) *secure {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &secure{Listener: ln}
	s.config.Store(c)
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.talk(tls.Server(c, s.config.Load())) })
		}
	})
	t.Cleanup(func() { ln.Close(); s.wg.Wait() })
	return s
}

func (s *secure) talk(c *tls.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if c.Handshake() != nil {
		return
	}
	s.handshakes.Add(1)
	r := bufio.NewReader(c)
	for {
		var req fasthttp.Request
		if req.Read(r) != nil {
			return
		}
		s.requests.Add(1)
		io.WriteString(c, answer(string(req.Header.Peek(signing.HeaderNonce)), "tls"))
	}
}

func (s *secure) url() string { return "https://" + s.Addr().String() }

func tlsConfig(url string, m certs.Material) Config {
	return Config{Backends: []string{url}, TLS: &tls.Config{RootCAs: m.Roots, Certificates: m.Pair}, Key: signing.Key{ID: "k", Secret: "0123456789abcdef0123456789abcdef"},
		Timeout: 10 * time.Second, MaxInFlight: 8, MaxPerSale: 8, MaxWaiting: 8}
}

func tlsPool(t *testing.T, url string, m certs.Material) *Pool {
	p := New(tlsConfig(url, m), &clock.Clock{}, prometheus.NewRegistry())
	t.Cleanup(p.Close)
	return p
}

// Both sides verify each other. Whatever is refused was not sent, also where TLS 1.3 refuses the gateway's certificate only after the
// gateway has written the request; the pool says why, until an answer comes.
func TestTLSToABackend(t *testing.T) {
	ours, foreign := certstest.NewCA(t, "ours"), certstest.NewCA(t, "foreign")
	good, mine, alien := ours.Issue("backend", nil), ours.Issue("gateway", nil), foreign.Issue("alien", nil)
	elsewhere := ours.Issue("elsewhere", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{"elsewhere.example"}, nil })
	none := certstest.Pair{}
	server := func(p certstest.Pair, clients string, change func(*tls.Config)) *tls.Config {
		m := material(t, clients, p, x509.ExtKeyUsageServerAuth)
		c := &tls.Config{Certificates: m.Pair, MinVersion: tls.VersionTLS12}
		if m.Roots != nil {
			c.ClientCAs, c.ClientAuth = m.Roots, tls.RequireAndVerifyClientCert
		}
		if change != nil {
			change(c)
		}
		return c
	}
	most := func(version uint16) func(*tls.Config) { return func(c *tls.Config) { c.MaxVersion = version } }
	expired := server(good, "", nil)
	late := ours.Issue("late", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	pair, err := tls.LoadX509KeyPair(late.Certificate, late.Key)
	if err != nil {
		t.Fatal(err)
	}
	expired.Certificates = []tls.Certificate{pair}
	for _, c := range []struct {
		name   string
		server *tls.Config
		ca     string
		pair   certstest.Pair
		want   string // the trouble; "": an answer comes
	}{
		{"no client certificate is wanted", server(good, "", nil), ours.File, none, ""},
		{"one that is not wanted", server(good, "", nil), ours.File, mine, ""},
		{"one that is wanted", server(good, ours.File, nil), ours.File, mine, ""},
		{"TLS 1.2", server(good, ours.File, most(tls.VersionTLS12)), ours.File, mine, ""},
		{"none, though one is wanted", server(good, ours.File, nil), ours.File, none, "it ends the handshake, perhaps for want of a certificate of this gateway (backend_tls.certificate): "},
		{"none, though one is wanted, TLS 1.2", server(good, ours.File, most(tls.VersionTLS12)), ours.File, none, "it ends the handshake, perhaps for want of a certificate of this gateway (backend_tls.certificate): "},
		{"one of another CA", server(good, ours.File, nil), ours.File, alien, "it refuses this gateway's certificate"},
		{"one of another CA, TLS 1.2", server(good, ours.File, most(tls.VersionTLS12)), ours.File, alien, "it refuses this gateway's certificate"},
		{"a backend of another CA", server(alien, "", nil), ours.File, none, "its certificate is refused: x509: certificate signed by unknown authority"},
		{"a backend of a CA that the system does not know", server(good, "", nil), "", none, "its certificate is refused: x509"},
		{"a backend of another name", server(elsewhere, "", nil), ours.File, none, "its certificate is refused: x509: cannot validate certificate for 127.0.0.1"},
		{"a backend whose certificate expired", expired, ours.File, none, "its certificate is refused: x509: certificate has expired"},
		{"TLS 1.1", server(good, "", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }), ours.File, mine, "it ends the handshake"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serveTLS(t, c.server)
			p := tlsPool(t, s.url(), material(t, c.ca, c.pair, x509.ExtKeyUsageClientAuth))
			for _, method := range []string{"POST", "GET", "POST"} {
				body, err := do(p, method)
				if c.want == "" {
					if err != nil || body != "tls" || len(p.Troubles()) != 0 {
						t.Fatalf("%s: got %q, %v, %v", method, body, err, p.Troubles())
					}
					continue
				}
				if !errors.Is(err, ErrNotSent) || s.requests.Load() != 0 {
					t.Fatalf("%s: got %q, %v after %d requests, want %v", method, body, err, s.requests.Load(), ErrNotSent)
				}
				if got := p.Troubles(); len(got) != 1 || !strings.HasPrefix(got[0], s.Addr().String()+": "+c.want) {
					t.Fatalf("%s: got %q, want %q", method, got, c.want)
				}
			}
			if n := s.handshakes.Load(); c.want == "" && n != 1 {
				t.Errorf("%d connections for three requests in turn, want 1", n)
			}
		})
	}
}

func TestTLSToAPlainBackend(t *testing.T) {
	s := serve(t, func(_ int, c *side) bool { c.say("plain"); return true })
	p := tlsPool(t, "https://"+s.Addr().String(), certs.Material{})
	if _, err := do(p, "POST"); !errors.Is(err, ErrNotSent) || s.read() != 0 {
		t.Errorf("got %v after %d requests", err, s.read())
	}
	// One pool may have both kinds.
	ca := certstest.NewCA(t, "ca")
	m := material(t, ca.File, ca.Issue("backend", nil), x509.ExtKeyUsageServerAuth)
	with := serveTLS(t, &tls.Config{Certificates: m.Pair})
	c := tlsConfig(with.url(), m)
	c.Backends = append(c.Backends, "http://"+s.Addr().String())
	p.SetConfig(c)
	seen := map[string]bool{}
	for range 200 {
		body, err := do(p, "POST")
		if err != nil {
			t.Fatal(err)
		}
		seen[body] = true
	}
	if !seen["tls"] || !seen["plain"] {
		t.Errorf("got answers of %v", seen)
	}
}

// An idle connection that the backend has closed is noticed before a request is written to it, as without TLS.
func TestTLSConnectionThatWasClosed(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	m := material(t, ca.File, ca.Issue("backend", nil), x509.ExtKeyUsageServerAuth)
	s := serveTLS(t, &tls.Config{Certificates: m.Pair})
	closed := make(chan struct{})
	front, err := net.Listen("tcp", "127.0.0.1:0") // cuts each connection after its first answer
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				t := tls.Server(c, s.config.Load())
				r := bufio.NewReader(t)
				var req fasthttp.Request
				if req.Read(r) == nil {
					io.WriteString(t, answer(string(req.Header.Peek(signing.HeaderNonce)), "once"))
				}
				t.Close()
				closed <- struct{}{}
			})
		}
	})
	t.Cleanup(func() { front.Close(); wg.Wait() })
	p := tlsPool(t, "https://"+front.Addr().String(), m)
	for range 5 {
		if body, err := do(p, "POST"); err != nil || body != "once" {
			t.Fatalf("got %q, %v", body, err)
		}
		<-closed
	}
}

// New certificates are used at once: a connection that was made with others takes no further request.
func TestTLSSettingsAreChanged(t *testing.T) {
	ours, next := certstest.NewCA(t, "ours"), certstest.NewCA(t, "next")
	before, after := ours.Issue("before", nil), next.Issue("after", nil)
	old := material(t, ours.File, before, x509.ExtKeyUsageServerAuth)
	renewed := material(t, next.File, after, x509.ExtKeyUsageServerAuth)
	both := func(m certs.Material) *tls.Config {
		return &tls.Config{Certificates: m.Pair, ClientCAs: m.Roots, ClientAuth: tls.RequireAndVerifyClientCert}
	}
	s := serveTLS(t, both(old))
	p := tlsPool(t, s.url(), old)
	ask := func(want int64) {
		t.Helper()
		if body, err := do(p, "POST"); err != nil || body != "tls" || s.handshakes.Load() != want {
			t.Fatalf("got %q, %v after %d connections, want %d", body, err, s.handshakes.Load(), want)
		}
	}
	ask(1)
	p.SetConfig(tlsConfig(s.url(), old)) // the same once more
	ask(1)
	s.config.Store(both(renewed))
	ask(1) // an open connection stays as it is
	p.SetConfig(tlsConfig(s.url(), renewed))
	ask(2)
	// The backend goes on with a CA that the gateway does not know.
	p.SetConfig(tlsConfig(s.url(), old))
	if _, err := do(p, "POST"); !errors.Is(err, ErrNotSent) || len(p.Troubles()) != 1 {
		t.Fatalf("got %v, %v", err, p.Troubles())
	}
	if got := p.Probe(t.Context()); len(got) != 1 || !strings.Contains(got[0], "unknown authority") {
		t.Fatalf("got %v", got)
	}
	p.SetConfig(tlsConfig(s.url(), renewed))
	if got := p.Probe(t.Context()); len(got) != 0 {
		t.Fatalf("got %v", got)
	}
	ask(s.handshakes.Load() + 1)
}

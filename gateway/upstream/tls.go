package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/wire"
)

const https = "https://"

func newBackend(url string) *backend {
	return &backend{url: url, addr: strings.TrimPrefix(strings.TrimPrefix(url, https), "http://")}
}

// setTLS makes new connections of an https backend use c, which it never changes. The name in the backend's certificate must be the host
// of its URL.
func (b *backend) setTLS(c *tls.Config) {
	if !strings.HasPrefix(b.url, https) {
		return
	}
	host, _, err := net.SplitHostPort(b.addr)
	if err != nil {
		panic("BUG: a backend that was not validated: " + b.url)
	}
	old := b.tls.Load()
	if old != nil && sameTLS(old, c) {
		return
	}
	own := c.Clone()
	if own == nil {
		own = &tls.Config{}
	}
	own.ServerName = host
	own.MinVersion = max(own.MinVersion, tls.VersionTLS12)
	if len(own.Certificates) > 0 { // also to a server that names other CAs: its log then says what it refuses
		own.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own.Certificates[0], nil }
	}
	b.tls.Store(own)
}

// sameTLS reports whether old was made of c. The caller of SetConfig makes new roots or certificates for each change.
func sameTLS(old, c *tls.Config) bool {
	if c == nil {
		c = &tls.Config{}
	}
	same := old.RootCAs == c.RootCAs && len(old.Certificates) == len(c.Certificates)
	for i := range c.Certificates {
		same = same && old.Certificates[i].Leaf == c.Certificates[i].Leaf
	}
	return same
}

// handshake makes a new connection one of TLS. An error that certificates are to blame for is kept as the backend's trouble.
func (c *conn) handshake() error {
	t := tls.Client(c.tcp, c.tls)
	c.tcp.SetDeadline(time.Now().Add(dialTimeout))
	if err := t.Handshake(); err != nil {
		return c.refused(err)
	}
	c.tcp.SetDeadline(time.Time{})
	c.Conn = t
	return nil
}

// refused explains the failure of a new TLS connection, where it is one of TLS, and keeps it as the backend's trouble.
func (c *conn) refused(err error) error {
	var theirs *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var alert *net.OpError
	remote := errors.As(err, &alert) && alert.Op == "remote error"
	switch {
	case errors.As(err, &theirs):
		err = fmt.Errorf("its certificate is refused: %w", theirs.Err)
	case errors.As(err, &plain):
		err = fmt.Errorf("it does not speak TLS: %w", err)
	case remote && len(c.tls.Certificates) == 0:
		err = fmt.Errorf("it ends the handshake, perhaps for want of a certificate of this gateway (backend_tls.certificate): %w", err)
	case remote && ofCertificate[alert.Err.Error()]:
		err = fmt.Errorf("it refuses this gateway's certificate: %w", err)
	case remote:
		err = fmt.Errorf("it ends the handshake: %w", err)
	default:
		return err
	}
	text := err.Error()
	c.backend.trouble.Store(&text)
	return &notSentError{err}
}

// refusedLate is refused for the first bytes that are read. With TLS 1.3 a server refuses the gateway's certificate when the handshake
// is already over here, and a request may be written. No server reads a request before it has accepted the certificate, so the
// request was not sent. fasthttp does not say why a connection ended before an answer began, so it is given this answer, which
// wasRefused knows.
func (c *conn) refusedLate(err error) []byte {
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" && ofCertificate[alert.Err.Error()] {
		c.refused(err)
		return refusal
	}
	return nil
}

const headerRefused = "Floodgate-Refused"

var refusal = []byte("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n" + headerRefused + ": handshake\r\nContent-Length: 0\r\n\r\n")

// wasRefused is why the backend never read the request, although something was written; nil: it may have. The answer carries no
// nonce, so it is none of a backend's.
func (b *backend) wasRefused(resp *fasthttp.Response) error {
	if len(resp.Header.Peek(headerRefused)) == 0 {
		return nil
	}
	text := "it refuses this gateway's certificate"
	if why := b.trouble.Load(); why != nil {
		text = *why
	}
	return &notSentError{errors.New(text)}
}

// ofCertificate is the alerts by which a server refuses a client's certificate, or asks for one (RFC 8446, section 6.2).
var ofCertificate = func() map[string]bool {
	set := map[string]bool{}
	for _, a := range []tls.AlertError{42, 43, 44, 45, 46, 48, 49, 116} {
		set[a.Error()] = true
	}
	return set
}()

func (b *backend) noTrouble() {
	if b.trouble.Load() != nil {
		b.trouble.Store(nil)
	}
}

// Troubles says what is wrong with the TLS of each backend where something is: why its last connection failed.
func (p *Pool) Troubles() []string {
	var all []string
	for _, b := range p.current.Load().backends {
		if why := b.trouble.Load(); why != nil {
			all = append(all, b.addr+": "+*why)
		}
	}
	return all
}

// Probe asks every https backend once, and returns Troubles. A backend that does not answer is in no trouble.
func (p *Pool) Probe(ctx context.Context) []string {
	s := p.current.Load()
	var asked sync.WaitGroup
	for _, b := range s.backends {
		if b.tls.Load() == nil {
			continue
		}
		asked.Go(func() {
			resp := fasthttp.AcquireResponse()
			defer fasthttp.ReleaseResponse(resp)
			p.ask(ctx, s, b, wire.HealthPath, checkTime, resp) // its error is kept as the trouble
		})
	}
	asked.Wait()
	return p.Troubles()
}

package redis

import (
	"crypto/tls"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"

	"floodgate.internal/shared/certs"
	"floodgate.internal/shared/certs/certstest"
)

// Each connection shows the certificate that is in the files then; where they are wrong, the last one that was right, and that is
// logged once.
func TestCertificatesFollowTheirFiles(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	pair := ca.Issue("server", nil)
	server, err := tls.LoadX509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAnyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	own := ca.Issue("own", nil)
	var log strings.Builder
	d, err := newDialer(TLS{Files: certs.Files{CA: ca.File, Certificate: own.Certificate, Key: own.Key}}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	shown := func() *big.Int {
		t.Helper()
		serial := make(chan *big.Int, 1)
		go func() {
			defer close(serial)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if err := c.(*tls.Conn).Handshake(); err == nil {
				serial <- c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber
			}
		}()
		c, err := d.dial(t.Context(), ln.Addr().String(), &net.Dialer{Timeout: Timeout})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got := <-serial
		if got == nil {
			t.Fatal("the server got no certificate")
		}
		return got
	}
	first := shown()
	if again := shown(); again.Cmp(first) != 0 || log.Len() > 0 {
		t.Errorf("nothing has changed, and another is shown; log %s", &log)
	}
	ca.Issue("own", nil)
	second := shown()
	if second.Cmp(first) == 0 {
		t.Error("the old certificate is shown, and its file has another")
	}
	if err := os.WriteFile(own.Key, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := shown(); got.Cmp(second) != 0 {
			t.Error("with a wrong key: another certificate than the last right one")
		}
	}
	if strings.Count(log.String(), "holds no private key") != 1 {
		t.Errorf("got %s, want the wrong key named once", &log)
	}
	ca.Issue("own", nil)
	if got := shown(); got.Cmp(second) == 0 {
		t.Error("the files are right again, and the old certificate is shown")
	}
}

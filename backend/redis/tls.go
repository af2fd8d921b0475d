package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"sync"
	"time"

	"floodgate.internal/shared/certs"
)

// TLS says how connections to Redis, and to its sentinels, are made secure.
type TLS struct {
	// Files names the CA of the servers' certificates ("": the system's), and the certificate and key that are shown to them ("": none).
	// They are read again for each connection that is made. Where they are wrong, those of before stay.
	Files certs.Files
	// ServerName is what the servers' certificates must be for; "": the host in each server's address.
	ServerName string
}

type dialer struct {
	TLS
	log      *slog.Logger
	mu       sync.Mutex // guards what follows
	material certs.Material
	refused  string // why the files that are there now are not used; "": they are
}

func newDialer(t TLS, log *slog.Logger) (*dialer, error) {
	m, err := t.Files.Read(time.Now(), x509.ExtKeyUsageClientAuth)
	return &dialer{TLS: t, log: log, material: m}, err
}

func (d *dialer) dial(ctx context.Context, addr string, plain *net.Dialer) (net.Conn, error) {
	m := d.read()
	return (&tls.Dialer{NetDialer: plain, Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: d.ServerName, RootCAs: m.Roots, Certificates: m.Pair}}).
		DialContext(ctx, "tcp", addr)
}

// read returns what the files hold; where they are wrong, what they held before, and that is logged once.
func (d *dialer) read() certs.Material {
	m, err := d.Files.Read(time.Now(), x509.ExtKeyUsageClientAuth)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.material, d.refused = m, ""
	case err.Error() != d.refused:
		d.refused = err.Error()
		d.log.Error("the certificates for Redis were not taken over, the old ones stay", "error", d.refused)
	}
	return d.material
}

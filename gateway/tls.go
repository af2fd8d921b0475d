package gateway

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/fsnotify/fsnotify"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/network"
	"floodgate.internal/gateway/tlscert"
	"floodgate.internal/shared/conf"
)

// TLSConfig is the gateway's own TLS. It has none without certificates.
type TLSConfig struct {
	tlscert.Files `yaml:",inline"`
	MaxHandshakes int `yaml:"max_handshakes"`
}

// transport checks what a connection begins with, and reads the files of TLS.
func (v *validator) transport() {
	l := &v.Listen
	material, errs := l.TLS.Read(time.Now())
	for _, err := range errs {
		v.errs = append(v.errs, conf.Under("listen.tls.", err))
	}
	v.material = material
	v.number("listen.tls.max_handshakes", int64(l.TLS.MaxHandshakes), 1, 1<<16)
	if l.Redirect != "" {
		if _, _, err := net.SplitHostPort(l.Redirect); err != nil {
			v.bad("listen.redirect", "%q must be host:port", l.Redirect)
		} else if v.Development && !conf.Loopback(l.Redirect) {
			v.bad("listen.redirect", "%q must be on loopback with development: true", l.Redirect)
		}
		if len(l.TLS.Certificates) == 0 {
			v.bad("listen.redirect", "%q leads to https, which needs listen.tls.certificates", l.Redirect)
		}
	}
	if l.ProxyProtocol && len(v.Trusted) == 0 {
		v.bad("listen.proxy_protocol", "%v, and trusted_proxies is empty: name the proxies' networks there, for nobody else may connect", l.ProxyProtocol)
	}
	v.number("ipv6_prefix", int64(v.IPv6Prefix), network.MinPrefix, network.MaxPrefix)
}

// transport is what connections begin with, once the material of c is in the store.
func (r *process) transport(c Config) edge.Transport {
	return edge.Transport{TLS: r.certs.Config(), MaxHandshakes: c.Listen.TLS.MaxHandshakes, ProxyProtocol: c.Listen.ProxyProtocol}
}

// refreshEvery is how often the files of TLS are read without an event: network file systems send none.
const refreshEvery = time.Minute

// watchTLS reads the files of certificates and ticket keys when they change, until ctx is done. It watches their directories,
// as watch does.
func (r *process) watchTLS(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	var events chan fsnotify.Event
	var errs chan error
	if err != nil {
		r.log.Warn("the files of TLS cannot be watched: they are read every minute", "error", err)
	} else {
		defer w.Close()
		events, errs = w.Events, w.Errors
	}
	follow := func() {
		if w == nil {
			return
		}
		for _, dir := range r.certs.Directories() {
			if err := w.Add(dir); err != nil {
				r.log.Warn("a directory with files of TLS cannot be watched: they are read every minute", "directory", dir, "error", err)
			}
		}
	}
	every := time.NewTicker(refreshEvery)
	defer every.Stop()
	follow()
	r.certs.Refresh(time.Now()) // they may have changed since they were loaded
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.tlsChanged:
			follow()
			r.certs.Refresh(time.Now()) // a canary's material was read a while ago
		case <-events:
			quiet = time.After(settleTime)
		case err := <-errs:
			r.log.Warn("watch the files of TLS", "error", err)
			quiet = time.After(settleTime)
		case <-quiet:
			quiet = nil
			r.certs.Refresh(time.Now())
		case <-every.C:
			follow() // a directory may have been made again
			r.certs.Refresh(time.Now())
		}
	}
}

// setTLS puts into force what the configuration's files held. Connections that are open keep what they have.
func (r *process) setTLS(c Config) {
	r.certs.Set(c.Listen.TLS.Files, c.material)
	select {
	case r.tlsChanged <- struct{}{}:
	default: // it is already to look
	}
}

// serveRedirect answers on the plain listener until ctx is done.
func (r *process) serveRedirect(ctx context.Context, public *edge.Listener, plain net.Listener) error {
	defer context.AfterFunc(ctx, func() { plain.Close() })()
	port := func(l net.Listener) string {
		_, port, _ := net.SplitHostPort(l.Addr().String()) // it is a TCP listener's
		return port
	}
	if err := public.ServeRedirect(plain, edge.Redirect{Covers: r.certs.Covers, From: port(plain), To: port(public)}); err != nil {
		return fmt.Errorf("serve plain HTTP: %w", err)
	}
	return nil
}

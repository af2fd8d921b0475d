//go:build servers

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// Shoppers who come by HTTP/2 and TLS through the sample configurations of HAProxy (PROXY protocol v2) and nginx (X-Forwarded-For)
// are served, and each counts as their own address, whatever they say of it.
func TestBehindProxies(t *testing.T) {
	world.Must(t, stack.Install(t.Context(), t.Logf, t.Output(), stack.ForProxies))
	w := newSystem(t, world.Options{
		Gateway: "trusted_proxies: [127.0.0.1/32]\n",
		Limits:  `{order: {rate: 0.2, burst: 1, max_keys: 1000}, ip: {rate: 0.001, burst: 3, max_keys: 1000}, ip_exempt: ["127.0.0.1/32"]}`,
	})
	sale := w.newSale("Ten", 10, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)
	tokens := w.tokens(1, 4)
	dir := t.TempDir()
	world.Must(t, os.Chmod(dir, 0o755)) // nginx's workers are another user's
	roots, certificate, key := selfSigned(t, dir)

	t.Run("nginx", func(t *testing.T) {
		plain, secure := freePort(t), freePort(t)
		text, err := os.ReadFile("../configs/nginx.conf")
		world.Must(t, err)
		conf := filepath.Join(dir, "nginx.conf")
		var temp strings.Builder
		for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			fmt.Fprintf(&temp, "\t%s_temp_path %s/%s;\n", kind, dir, kind)
		}
		world.Must(t, os.WriteFile(conf, []byte(replace(t, string(text), "0.0.0.0:80;", plain+";", "0.0.0.0:443", secure, "10.0.0.5:8080", strings.TrimPrefix(w.PublicURL(), "http://"),
			"/etc/nginx/shop.pem", certificate, "/etc/nginx/shop.key", key, "/run/nginx.pid", dir+"/nginx.pid", "/var/log/nginx/error.log", "stderr", "worker_processes auto;", "worker_processes 1;\ndaemon off;",
			"http {\n", "http {\n"+temp.String())), 0o644))
		world.Run(t, t.Context(), stack.NewProcess(dir, stack.Program{Name: "nginx", Path: stack.Nginx(), Args: []string{"-p", dir, "-c", conf}, Addrs: []string{plain, secure}, Ready: "http://" + plain + "/-/proxy"}))
		behind(t, roots, plain, secure, sale, tokens[:2], "127.0.0.9", "127.0.0.10")
	})
	t.Run("HAProxy", func(t *testing.T) {
		w.Listen = ", proxy_protocol: true"
		w.must(w.WriteGateway())
		a := w.do(w.ctx, world.Call{Method: "POST", URL: w.Ports.OpsURL() + "/-/reload"})
		w.must(a.Is(200))
		plain, secure := freePort(t), freePort(t)
		conf, err := filepath.Abs("../configs/haproxy.cfg")
		world.Must(t, err)
		one, err := os.ReadFile(certificate)
		world.Must(t, err)
		two, err := os.ReadFile(key)
		world.Must(t, err)
		both := filepath.Join(dir, "both.pem")
		world.Must(t, os.WriteFile(both, append(one, two...), 0o600))
		world.Run(t, t.Context(), stack.NewProcess(dir, stack.Program{Name: "haproxy", Path: stack.HAProxy(), Args: []string{"-db", "-f", conf}, Addrs: []string{plain, secure}, Ready: "http://" + plain + "/-/proxy",
			Env: []string{"FLOODGATE_HTTP=" + plain, "FLOODGATE_HTTPS=" + secure, "FLOODGATE_CERTIFICATE=" + both, "FLOODGATE_GATEWAY=" + strings.TrimPrefix(w.PublicURL(), "http://")}}))
		behind(t, roots, plain, secure, sale, tokens[2:], "127.0.0.11", "127.0.0.12")
	})
}

// replace puts each second text in place of the one before it, which must be there.
func replace(t *testing.T, s string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(s, pairs[i]) {
			t.Fatalf("the sample has no %q", pairs[i])
		}
		s = strings.ReplaceAll(s, pairs[i], pairs[i+1])
	}
	return s
}

// behind asks through a proxy as two shoppers at two addresses.
func behind(t *testing.T, roots *x509.CertPool, plain, secure string, sale int64, tokens []string, addrs ...string) {
	t.Helper()
	order := fmt.Sprintf("/v1/sales/%d/orders", sale)
	for i, addr := range addrs {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
		transport := &http.Transport{DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "shop.example"}}
		t.Cleanup(transport.CloseIdleConnections)
		client := &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		ask := func(method, url, token, body string, fields ...string) (int, string, *http.Response) {
			t.Helper()
			req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
			world.Must(t, err)
			req.Host = "shop.example"
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			if body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			for i := 0; i < len(fields); i += 2 {
				req.Header.Set(fields[i], fields[i+1])
			}
			resp, err := client.Do(req)
			world.Must(t, err)
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			world.Must(t, err)
			return resp.StatusCode, string(b), resp
		}
		if code, body, resp := ask("POST", "https://"+secure+order, tokens[i], `{"quantity":1}`); code != 202 || resp.ProtoMajor != 2 {
			t.Errorf("%s: an order: got %d over %s, %s", addr, code, resp.Proto, body)
		}
		if code, _, resp := ask("GET", "https://"+secure+"/", "", ""); code != 200 || resp.ProtoMajor != 2 {
			t.Errorf("%s: the page: got %d over %s", addr, code, resp.Proto)
		}
		for n := range 4 { // the order took one of the three tokens of this address
			code, body, _ := ask("GET", "https://"+secure+"/v1/orders", "", "", "X-Forwarded-For", fmt.Sprintf("203.0.113.%d", n), "Forwarded", fmt.Sprintf("for=198.51.100.%d", n))
			if want := []int{401, 401, 429, 429}[n]; code != want {
				t.Errorf("%s: request %d without a token: got %d, want %d: %s", addr, n, code, want, body)
			}
		}
		if code, _, resp := ask("GET", "http://"+plain+"/a?b=c", "", ""); code != 308 || !strings.HasPrefix(resp.Header.Get("Location"), "https://shop.example") || !strings.HasSuffix(resp.Header.Get("Location"), "/a?b=c") {
			t.Errorf("%s: plain HTTP: got %d to %s", addr, code, resp.Header.Get("Location"))
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	world.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// selfSigned makes a certificate for shop.example, in two files that everybody may read.
func selfSigned(t *testing.T, dir string) (roots *x509.CertPool, certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	world.Must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"shop.example"},
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	world.Must(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	world.Must(t, err)
	certificate, key = filepath.Join(dir, "shop.pem"), filepath.Join(dir, "shop.key")
	one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	world.Must(t, os.WriteFile(certificate, one, 0o644))
	world.Must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o644))
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(one)
	return roots, certificate, key
}

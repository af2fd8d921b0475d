package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/gateway/tlscert/certtest"
)

const listenLine = `listen: {public: "127.0.0.1:0", ops: "127.0.0.1:0"`

// listen adds keys of listen.
func listen(more string) edit { return with(listenLine, listenLine+", "+more) }

// certificates is the keys of listen.tls for pairs of files, with more keys.
func certificates(more string, files ...string) edit {
	var pairs []string
	for i := 0; i < len(files); i += 2 {
		pairs = append(pairs, fmt.Sprintf("{certificate: %q, key: %q}", files[i], files[i+1]))
	}
	return listen("tls: {certificates: [" + strings.Join(pairs, ", ") + "]" + more + "}")
}

// proxied has connections begin with a PROXY header of a trusted proxy on loopback.
func proxied(s string) string {
	return with("limits:", `trusted_proxies: ["127.0.0.0/8"]`+"\nlimits:")(listen("proxy_protocol: true")(s))
}

const aShopper = "PROXY TCP4 127.0.0.9 192.0.2.1 4711 443\r\n"

// over starts a gateway that is reached in one of four ways. Clients of the last two are 127.0.0.9.
func over(t *testing.T, way string, backends []string, edits ...edit) *gw {
	t.Helper()
	edits, clients := by(t, way, edits...)
	g := run(t, backends, edits...)
	clients(g)
	return g
}

// by puts what a way needs before edits, and returns what has clients go that way.
func by(t *testing.T, way string, edits ...edit) ([]edit, func(*gw)) {
	t.Helper()
	cert := certtest.New(t, 24*time.Hour, "127.0.0.1", "shop.example")
	certificate, key := cert.Write(t, t.TempDir(), "shop")
	if strings.Contains(way, "PROXY") {
		edits = append([]edit{proxied}, edits...)
	}
	if strings.Contains(way, "TLS") {
		edits = append([]edit{certificates("", certificate, key)}, edits...)
	}
	return edits, func(g *gw) {
		if strings.Contains(way, "PROXY") {
			g.proxied = aShopper
		}
		if strings.Contains(way, "TLS") {
			g.trust(cert)
		}
	}
}

// trust has clients speak TLS to the public listener.
func (g *gw) trust(certs ...certtest.Cert) {
	g.secure = &tls.Config{RootCAs: certtest.Pool(certs...), ServerName: "127.0.0.1"}
	g.client.Transport.(*http.Transport).TLSClientConfig = g.secure
}

func (g *gw) scheme() string {
	if g.secure != nil {
		return "https://"
	}
	return "http://"
}

// dial connects, and sends the PROXY header to the public listener.
func (g *gw) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil && addr == g.public {
		_, err = io.WriteString(c, g.proxied)
	}
	return c, err
}

const askTime = "GET /v1/time HTTP/1.1\r\nHost: shop.example\r\n\r\n"

// ask sends a request and reads the answer.
func ask(c net.Conn, request string) (int, error) {
	if _, err := io.WriteString(c, request); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// hello makes a handshake with these settings, asks once, and says what was agreed on.
func (g *gw) hello(set func(*tls.Config)) (tls.ConnectionState, error) {
	c := g.secure.Clone()
	set(c)
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", g.public, c)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	if code, err := ask(conn, askTime); err != nil || code != 200 {
		return tls.ConnectionState{}, fmt.Errorf("%d, %w", code, err)
	}
	return conn.ConnectionState(), nil
}

// What a client may agree on with the gateway, by the version and the suite that it insists on. -v prints the table.
func TestTLSVersionsAndSuites(t *testing.T) {
	p := newPeer(t)
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	first := certtest.New(t, 24*time.Hour, "127.0.0.1", "shop.example")
	second := certtest.New(t, 24*time.Hour, "*.other.example", "other.example")
	old := certtest.Under(t, key, 24*time.Hour, "127.0.0.1", "shop.example")
	var files []string
	for i, c := range []certtest.Cert{first, second, old} {
		certificate, key := c.Write(t, dir, fmt.Sprint(i))
		files = append(files, certificate, key)
	}
	g := run(t, []string{p.addr}, certificates("", files...))
	g.trust(first, second, old)
	strict := run(t, []string{p.addr}, certificates(`, min_version: "1.3"`, files...))
	strict.trust(first, second, old)
	suite := func(id uint16) func(*tls.Config) {
		return func(c *tls.Config) { c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{id} }
	}
	version := func(v uint16) func(*tls.Config) { return func(c *tls.Config) { c.MinVersion, c.MaxVersion = v, v } }
	t.Logf("%-48s %-9s %s", "client", "version", "suite, protocol")
	for _, c := range []struct {
		name    string
		g       *gw
		set     func(*tls.Config)
		version uint16 // 0: refused
	}{
		{"TLS 1.0", g, version(tls.VersionTLS10), 0},
		{"TLS 1.1", g, version(tls.VersionTLS11), 0},
		{"TLS 1.2", g, version(tls.VersionTLS12), tls.VersionTLS12},
		{"TLS 1.3", g, version(tls.VersionTLS13), tls.VersionTLS13},
		{"any", g, func(*tls.Config) {}, tls.VersionTLS13},
		{"TLS 1.2, min_version 1.3", strict, version(tls.VersionTLS12), 0},
		{"TLS 1.3, min_version 1.3", strict, version(tls.VersionTLS13), tls.VersionTLS13},
		{"ECDHE-ECDSA-AES128-GCM", g, suite(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), tls.VersionTLS12},
		{"ECDHE-ECDSA-AES256-GCM", g, suite(tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), tls.VersionTLS12},
		{"ECDHE-ECDSA-CHACHA20", g, suite(tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256), tls.VersionTLS12},
		{"ECDHE-RSA-AES128-GCM, by the RSA certificate", g, suite(tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256), tls.VersionTLS12},
		{"ECDHE-RSA-AES256-GCM, by the RSA certificate", g, suite(tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384), tls.VersionTLS12},
		{"ECDHE-ECDSA-AES128-CBC", g, suite(tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), 0},
		{"ECDHE-RSA-AES128-CBC", g, suite(tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA), 0},
		{"ECDHE-RSA-AES128-CBC-SHA256", g, suite(tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256), 0},
		{"RSA-AES128-GCM, no forward secrecy", g, suite(tls.TLS_RSA_WITH_AES_128_GCM_SHA256), 0},
		{"RSA-AES128-CBC", g, suite(tls.TLS_RSA_WITH_AES_128_CBC_SHA), 0},
		{"RSA-3DES", g, suite(tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA), 0},
		{"RSA-RC4", g, suite(tls.TLS_RSA_WITH_RC4_128_SHA), 0},
		{"ALPN http/1.1", g, func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }, tls.VersionTLS13},
		{"ALPN h2 and http/1.1", g, func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} }, tls.VersionTLS13},
		{"ALPN h2 alone", g, func(c *tls.Config) { c.NextProtos = []string{"h2"} }, 0},
	} {
		state, err := c.g.hello(c.set)
		if (err == nil) != (c.version != 0) || state.Version != c.version || state.NegotiatedProtocol == "h2" {
			t.Errorf("%s: got %s, %v; want %s", c.name, tls.VersionName(state.Version), err, tls.VersionName(c.version))
		}
		if err != nil {
			t.Logf("%-48s %-9s %v", c.name, "refused", err)
		} else {
			t.Logf("%-48s %-9s %s %s", c.name, tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite), state.NegotiatedProtocol)
		}
	}
	for name, want := range map[string]string{"shop.example": "shop.example", "other.example": "other.example", "a.other.example": "other.example", "127.0.0.1": "shop.example", "": "shop.example", "stranger.example": "shop.example"} {
		state, err := g.hello(func(c *tls.Config) { c.ServerName, c.InsecureSkipVerify = name, true })
		if err != nil || state.PeerCertificates[0].VerifyHostname(want) != nil {
			t.Errorf("asked for %q: got the certificate of %v, %v; want that of %s", name, state.PeerCertificates[0].DNSNames, err, want)
		}
	}
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		tickets := tls.NewLRUClientSessionCache(1)
		for i := range 3 {
			state, err := g.hello(func(c *tls.Config) { c.MaxVersion, c.ClientSessionCache = v, tickets })
			if err != nil || state.DidResume != (i > 0) {
				t.Errorf("%s, connection %d: resumed %v, %v", tls.VersionName(v), i, state.DidResume, err)
			}
		}
	}
	if resumed, _ := strconv.Atoi(g.metric(`gateway_tls_handshakes_total{result="resumed"}`)); resumed != 4 {
		t.Errorf("%d resumed handshakes are counted, want 4", resumed)
	}
}

// Gateways with the same ticket_keys resume each other's sessions. A key that is no longer the first still does, one that is gone
// does not.
func TestTicketKeysAreShared(t *testing.T) {
	p := newPeer(t)
	dir := t.TempDir()
	cert := certtest.New(t, 24*time.Hour, "127.0.0.1")
	certificate, key := cert.Write(t, dir, "shop")
	file := filepath.Join(dir, "tickets")
	keys := func(bytes ...byte) {
		text := "# the newest first\n\n"
		for _, b := range bytes {
			text += base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32))) + "\n"
		}
		certtest.Replace(t, file, []byte(text))
	}
	keys('a')
	both := []edit{certificates(fmt.Sprintf(", ticket_keys: %q", file), certificate, key)}
	g, other := run(t, []string{p.addr}, both...), run(t, []string{p.addr}, both...)
	alone := run(t, []string{p.addr}, certificates("", certificate, key))
	for _, g := range []*gw{g, other, alone} {
		g.trust(cert)
	}
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		keys('a')
		for _, g := range []*gw{g, other} {
			g.do("POST", "http://"+g.ops+"/-/reload") // which reads the files, too
		}
		tickets := tls.NewLRUClientSessionCache(1)
		resumes := func(g *gw, want bool) {
			t.Helper()
			state, err := g.hello(func(c *tls.Config) { c.MaxVersion, c.ClientSessionCache = v, tickets })
			if err != nil || state.DidResume != want {
				t.Errorf("%s: resumed %v, %v; want %v", tls.VersionName(v), state.DidResume, err, want)
			}
		}
		resumes(g, false)
		resumes(other, true)
		resumes(g, true)
		tickets = tls.NewLRUClientSessionCache(1)
		resumes(alone, false)
		resumes(g, false)
		for _, c := range []struct {
			keys []byte
			want bool
		}{{[]byte{'b', 'a'}, true}, {[]byte{'c', 'b'}, true}, {[]byte{'d'}, false}} {
			renewed := g.metric(`gateway_tls_renewals_total{result="ok"}`)
			keys(c.keys...)
			g.until("the keys are read", func() bool { return g.metric(`gateway_tls_renewals_total{result="ok"}`) != renewed })
			resumes(g, c.want)
		}
	}
	// A bad file changes nothing.
	for _, text := range []string{"", "short\n", base64.StdEncoding.EncodeToString(make([]byte, 31)) + "\n", strings.Repeat(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n", 17)} {
		tickets := tls.NewLRUClientSessionCache(1)
		hello := func() bool {
			state, err := g.hello(func(c *tls.Config) { c.ClientSessionCache = tickets })
			if err != nil {
				t.Fatal(err)
			}
			return state.DidResume
		}
		hello()
		refused := g.metric(`gateway_tls_renewals_total{result="refused"}`)
		certtest.Replace(t, file, []byte(text))
		g.until("the keys are tried", func() bool { return g.metric(`gateway_tls_renewals_total{result="refused"}`) != refused })
		if !hello() || g.metric(fmt.Sprintf("gateway_tls_file_refused{file=%q}", file)) != "1" {
			t.Errorf("%q: the old keys are gone, or no metric names the file", text)
		}
		keys('d')
		g.until("the keys are good", func() bool { return g.metric(fmt.Sprintf("gateway_tls_file_refused{file=%q}", file)) == "0" })
	}
}

// Certificates are replaced while clients come, and none of them meets a failure.
func TestCertificatesAreRenewedUnderLoad(t *testing.T) {
	p := newPeer(t)
	dir := t.TempDir()
	shared, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var certs []certtest.Cert
	for range 6 {
		certs = append(certs, certtest.Under(t, shared, 24*time.Hour, "127.0.0.1")) // one key, so that no pair is torn between two files
	}
	certificate, key := certs[0].Write(t, dir, "shop")
	g := run(t, []string{p.addr}, certificates("", certificate, key))
	g.trust(certs...)
	keep := g.raw() // a connection from before all of it
	if code, err := ask(keep, askTime); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	var visits, failures atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				visits.Add(1)
				if _, err := g.hello(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 + uint16(i%2) }); err != nil {
					failures.Add(1)
					t.Error(err)
				}
			}
		})
	}
	serial := func() string {
		state, err := g.hello(func(*tls.Config) {})
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.String()
	}
	for i, c := range certs[1:] {
		before, at := serial(), visits.Load()
		certtest.Replace(t, certificate, c.Certificate)
		if i%2 == 0 {
			g.do("POST", "http://"+g.ops+"/-/reload")
		}
		g.until("the next certificate is in force", func() bool { return serial() != before })
		g.until("clients have come", func() bool { return visits.Load() > at+8 })
	}
	close(stop)
	load.Wait()
	if code, err := ask(keep, askTime); err != nil || code != 200 {
		t.Errorf("the connection from before: got %d, %v", code, err)
	}
	t.Logf("%d visits, %d failures, while %d certificates came into force", visits.Load(), failures.Load(), len(certs)-1)
}

// A pair that is bad on disk changes nothing. It is logged, counted and named by a metric and /-/ready; a reload of the
// configuration is refused and names the field; a good pair ends it.
func TestABadPairKeepsTheOld(t *testing.T) {
	p := newPeer(t)
	dir := t.TempDir()
	good, other := certtest.New(t, 30*24*time.Hour, "127.0.0.1"), certtest.New(t, 30*24*time.Hour, "127.0.0.1")
	expired := certtest.New(t, time.Minute, "127.0.0.1")
	certificate, key := good.Write(t, dir, "shop")
	g := run(t, []string{p.addr}, certificates("", certificate, key))
	g.trust(good, other)
	refused := fmt.Sprintf("gateway_tls_file_refused{file=%q}", certificate)
	for _, c := range []struct {
		name             string
		certificate, key []byte
		want             string
	}{
		{"no PEM", []byte("nothing"), good.Key, "listen.tls.certificates[0].certificate: "},
		{"empty", nil, good.Key, "listen.tls.certificates[0].certificate: "},
		{"half of it", good.Certificate[:len(good.Certificate)/2], good.Key, "listen.tls.certificates[0].certificate: "},
		{"another's key", good.Certificate, other.Key, "listen.tls.certificates[0].key: "},
		{"no key", good.Certificate, []byte("nothing"), "listen.tls.certificates[0].key: "},
		{"expired", expired.Certificate, expired.Key, "listen.tls.certificates[0].certificate: "},
		{"too large", bytes.Repeat([]byte("x"), 2<<20), good.Key, "it has more than 1048576 bytes"},
	} {
		before := g.metric(`gateway_tls_renewals_total{result="refused"}`)
		certtest.Replace(t, key, c.key)
		certtest.Replace(t, certificate, c.certificate)
		g.until(c.name+" is noticed", func() bool {
			return g.metric(`gateway_tls_renewals_total{result="refused"}`) != before && g.metric(refused) == "1"
		})
		if _, err := g.hello(func(set *tls.Config) { set.RootCAs = certtest.Pool(good) }); err != nil {
			t.Errorf("%s: got %v, want the old certificate", c.name, err)
		}
		if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 200 || !strings.Contains(a.body, certificate+" was not taken over") {
			t.Errorf("%s: /-/ready says %v", c.name, a)
		}
		if a := g.do("POST", "http://"+g.ops+"/-/reload"); a.code != 400 || !strings.Contains(a.body, c.want) {
			t.Errorf("%s: a reload says %v, want %q", c.name, a, c.want)
		}
		if err := Run(t.Context(), []string{"check", "-config", g.file}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: check says %v, want %q", c.name, err, c.want)
		}
		good.Write(t, dir, "shop")
		g.until("the good pair is back", func() bool { return g.metric(refused) == "0" })
	}
	g.log.await(t, "a file of TLS was not taken over")
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); strings.Contains(a.body, certificate) {
		t.Errorf("with the good pair: %v", a)
	}
	end, err := strconv.ParseFloat(g.metric(fmt.Sprintf("gateway_tls_certificate_expiry_timestamp_seconds{file=%q}", certificate)), 64)
	if days := time.Until(time.Unix(int64(end), 0)).Hours() / 24; err != nil || days < 29 || days > 30 {
		t.Errorf("it expires in %v days, %v", days, err)
	}
	other.Write(t, dir, "shop")
	g.until("another pair is in force", func() bool {
		_, err := g.hello(func(c *tls.Config) { c.RootCAs = certtest.Pool(other) })
		return err == nil
	})
}

// Each bad key of TLS is an error that names the field.
func TestTLSKeysAreChecked(t *testing.T) {
	dir := t.TempDir()
	good := certtest.New(t, 24*time.Hour, "127.0.0.1")
	certificate, key := good.Write(t, dir, "shop")
	nameless, namelessKey := certtest.New(t, 24*time.Hour).Write(t, dir, "nameless")
	gone := filepath.Join(dir, "gone.pem")
	for _, c := range []struct {
		edit edit
		want string
	}{
		{certificates("", gone, key), `listen.tls.certificates[0].certificate: "` + gone + `" cannot be read: no such file`},
		{certificates("", certificate, gone), `listen.tls.certificates[0].key: "` + gone + `" cannot be read: no such file`},
		{certificates("", certificate, dir), `listen.tls.certificates[0].key: "` + dir + `" cannot be read: is a directory`},
		{listen("tls: {certificates: [{certificate: x}]}"), `listen.tls.certificates[0].key: it is not there`},
		{listen("tls: {certificates: [{key: x}]}"), `listen.tls.certificates[0].certificate: it is not there`},
		{listen("tls: {certificates: [{}]}"), `listen.tls.certificates[0].certificate: it is missing: name the file`},
		{certificates("", certificate, key, certificate, namelessKey), "listen.tls.certificates[1].key: "},
		{certificates("", certificate, key, nameless, namelessKey), "listen.tls.certificates[1].certificate: \"" + nameless + "\" names no host"},
		{certificates(`, min_version: "1.1"`, certificate, key), `listen.tls.min_version: "1.1" must be "1.2" or "1.3"`},
		{certificates(`, min_version: 1`, certificate, key), "listen.tls.min_version"},
		{certificates(", max_handshakes: 0", certificate, key), "listen.tls.max_handshakes: 0 must be 1 to"},
		{certificates(fmt.Sprintf(", ticket_keys: %q", gone), certificate, key), `listen.tls.ticket_keys: "` + gone + `" cannot be read`},
		{certificates(fmt.Sprintf(", ticket_keys: %q", certificate), certificate, key), `listen.tls.ticket_keys: "` + certificate + `", line 1, must be 32 bytes in base64`},
		{listen(fmt.Sprintf("tls: {ticket_keys: %q}", gone)), "listen.tls.ticket_keys"},
		{listen(`redirect: "127.0.0.1:0"`), `listen.redirect: "127.0.0.1:0" leads to https, which needs listen.tls.certificates`},
		{listen(`redirect: "8080"`), `listen.redirect: "8080" must be host:port`},
		{listen(`redirect: "0.0.0.0:0"`), `listen.redirect: "0.0.0.0:0" must be on loopback`},
		{listen("proxy_protocol: true"), "listen.proxy_protocol: true, and trusted_proxies is empty"},
		{listen("proxy_protocol: v2"), "listen.proxy_protocol"},
		{with("limits:", "ipv6_prefix: 129\nlimits:"), "ipv6_prefix: 129 must be 32 to 128"},
		{with("limits:", "ipv6_prefix: 0\nlimits:"), "ipv6_prefix: 0 must be 32 to 128"},
	} {
		file := filepath.Join(dir, "gateway.yaml")
		text := configText([]string{"127.0.0.1:9080"}, c.edit)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Run(t.Context(), []string{"check", "-config", file}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// crumbs sends every byte by itself.
type crumbs struct{ net.Conn }

func (c crumbs) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		_, err = c.Conn.Write(b[n : n+1])
		n++
	}
	return n, err
}

func (c crumbs) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// Records and PROXY headers that come byte by byte are read as others are.
func TestRecordsCutAtEachByte(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	for _, way := range []string{"TLS", "PROXY", "PROXY and TLS"} {
		g := over(t, way, []string{p.addr})
		me := g.as("7")
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			header := g.proxied
			plain, err := net.Dial("tcp", g.public)
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			plain.(*net.TCPConn).SetNoDelay(true)
			plain.SetDeadline(time.Now().Add(patience))
			var c net.Conn = crumbs{plain}
			io.WriteString(c, header)
			if g.secure != nil {
				set := g.secure.Clone()
				set.MaxVersion = version
				c = tls.Client(c, set)
			}
			for _, request := range []string{askTime, "POST /v1/sales/99/orders HTTP/1.1\r\nHost: x\r\n" + me + "\r\nContent-Length: 0\r\n\r\n", askTime} {
				if code, err := ask(c, request); err != nil || code != 200 && code != 404 {
					t.Errorf("%s, %s: got %d, %v", way, tls.VersionName(version), code, err)
				}
			}
			c.Close()
		}
	}
}

// A handshake that ends at any of its bytes ends its connection and nothing else.
func TestHandshakesCutAtEachByte(t *testing.T) {
	p := newPeer(t)
	g := over(t, "PROXY and TLS", []string{p.addr})
	var hello bytes.Buffer
	record := recorder{Buffer: &hello}
	tls.Client(record, g.secure).Handshake() // until the answer would come
	all := append([]byte(g.proxied), hello.Bytes()...)
	for n := range len(all) {
		c, err := net.Dial("tcp", g.public)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(all[:n])
		c.(*net.TCPConn).CloseWrite()
		c.SetDeadline(time.Now().Add(patience))
		if b, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") || bytes.Contains(b, []byte("HTTP/1.1 5")) {
			t.Fatalf("after %d bytes: got %q, %v", n, b, err)
		}
		c.Close()
	}
	if a := g.do("GET", "/v1/time"); a.code != 200 || g.metric("gateway_panics_total") != "0" {
		t.Errorf("afterwards: got %v", a)
	}
	g.until("their places are free", func() bool { n, _ := strconv.Atoi(g.metric("gateway_connections")); return n <= 2 })
}

// recorder keeps what is written, and has nothing to read.
type recorder struct {
	net.Conn
	*bytes.Buffer
}

func (r recorder) Write(b []byte) (int, error)    { return r.Buffer.Write(b) }
func (r recorder) Read([]byte) (int, error)       { return 0, io.EOF }
func (recorder) Close() error                     { return nil }
func (recorder) SetDeadline(time.Time) error      { return nil }
func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }

// Half handshakes hold no turn, count against the bounds of connections, keep nobody waiting, and are cut.
func TestHalfHandshakes(t *testing.T) {
	p := newPeer(t)
	const halves = 1000
	g := over(t, "TLS", []string{p.addr}, with("tls: {", "tls: {max_handshakes: 1, "), with("read_timeout: 2s", "read_timeout: 20s"))
	var hello bytes.Buffer
	tls.Client(recorder{Buffer: &hello}, g.secure).Handshake()
	var held []net.Conn
	for i := range halves {
		c, err := net.Dial("tcp", g.public)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		c.Write(hello.Bytes()[:[]int{0, 1, hello.Len() / 2, hello.Len()}[i%4]])
		held = append(held, c)
	}
	g.until("they are all counted", func() bool { n, _ := strconv.Atoi(g.metric("gateway_connections")); return n >= halves })
	for range 20 {
		if _, err := g.hello(func(*tls.Config) {}); err != nil {
			t.Errorf("meanwhile: %v", err)
		}
	}
	for _, c := range held { // each of the last kind was answered, although no other of them went on
		c.Close()
	}
	g.until("their places are free", func() bool { n, _ := strconv.Atoi(g.metric("gateway_connections")); return n <= 2 })
	if n, _ := strconv.Atoi(g.metric(`gateway_tls_handshakes_total{result="failed"}`)); n != halves {
		t.Errorf("%d handshakes failed, want %d", n, halves)
	}
}

// Who does not go on is cut after the time of a read.
func TestSlowHandshakesAreCut(t *testing.T) {
	p := newPeer(t)
	g := over(t, "PROXY and TLS", []string{p.addr}, with("read_timeout: 2s", "read_timeout: 200ms"))
	for _, begun := range []string{"", "PROXY TC", aShopper, aShopper + "\x16\x03\x01"} {
		c, err := net.Dial("tcp", g.public)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, begun)
		c.SetDeadline(time.Now().Add(patience))
		if b, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
			t.Errorf("%q: got %q, %v; want the end", begun, b, err)
		}
		c.Close()
	}
}

// Who is over the bound of connections is told so on TLS, too; by the address that the PROXY header names, where there is one.
func TestTheAnswerToAConnectionOverTheBoundArrivesOnTLS(t *testing.T) {
	p := newPeer(t)
	for _, way := range []string{"TLS", "PROXY", "PROXY and TLS"} {
		g := over(t, way, []string{p.addr}, with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`), with("server: {", "server: {max_connections_per_ip: 1, "))
		if g.proxied != "" {
			g.proxied = strings.Replace(aShopper, "127.0.0.9", "192.0.2.9", 1)
		}
		held := g.raw()
		if code, err := ask(held, askTime); err != nil || code != 200 {
			t.Fatalf("%s: got %d, %v", way, code, err)
		}
		for i := range 20 {
			c := g.raw()
			io.WriteString(c, askTime)
			b, err := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 503 ") || !strings.Contains(string(b), "OVERLOADED") {
				t.Fatalf("%s, connection %d: got %q, %v; want 503 and the end", way, i, b, err)
			}
			c.Close()
		}
		if g.proxied != "" { // of another shopper
			g.proxied = strings.Replace(aShopper, "127.0.0.9", "192.0.2.10", 1)
			if code, err := ask(g.raw(), askTime); err != nil || code != 200 {
				t.Errorf("%s, another address: got %d, %v", way, code, err)
			}
		}
		held.Close()
	}
}

// A client that speaks plain HTTP to the port of TLS is told what is wrong.
func TestPlainHTTPOnThePortOfTLS(t *testing.T) {
	p := newPeer(t)
	g := over(t, "TLS", []string{p.addr})
	g.secure = nil
	for _, request := range []string{askTime, strings.Replace(askTime, "GET", "POST", 1)} {
		if statuses, all := exchangeRaw(g, request); fmt.Sprint(statuses) != "[400]" || !strings.Contains(all, "https") {
			t.Errorf("got %q", all)
		}
	}
}

// A gateway that ends lets requests on TLS end, and says good-bye to idle clients.
func TestDrainOnTLS(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	began, finish := make(chan struct{}), make(chan struct{})
	p.on(func(ctx *fastCtx, _ call) {
		close(began)
		<-finish
		ctx.SetBodyString("{}")
	})
	g := over(t, "TLS", []string{p.addr})
	idle, busy := g.raw(), g.raw()
	if code, err := ask(idle, askTime); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	me := g.as("7")
	answered := make(chan error, 1)
	go func() {
		code, err := ask(busy, "GET /v1/orders HTTP/1.1\r\nHost: x\r\n"+me+"\r\n\r\n")
		if err == nil && code != 200 {
			err = fmt.Errorf("status %d", code)
		}
		answered <- err
	}()
	<-began
	g.cancel()
	if b, err := io.ReadAll(idle); err != nil || len(b) > 0 {
		t.Errorf("idle: got %q, %v", b, err)
	}
	close(finish)
	if err := <-answered; err != nil {
		t.Errorf("in flight: %v", err)
	}
}

// A reload turns TLS on and off for connections that come afterwards.
func TestReloadTurnsTLSOn(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	before := g.raw()
	if code, err := ask(before, askTime); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	cert := certtest.New(t, 24*time.Hour, "127.0.0.1")
	certificate, key := cert.Write(t, t.TempDir(), "shop")
	g.write(configText([]string{p.addr}, certificates("", certificate, key)))
	if a := g.reload(); a.code != 200 {
		t.Fatal(a)
	}
	g.trust(cert)
	if _, err := g.hello(func(*tls.Config) {}); err != nil {
		t.Error(err)
	}
	if code, err := ask(before, askTime); err != nil || code != 200 {
		t.Errorf("the connection from before: got %d, %v", code, err)
	}
	g.write(configText([]string{p.addr}))
	if a := g.reload(); a.code != 200 {
		t.Fatal(a)
	}
	g.secure = nil
	if code, err := ask(g.raw(), askTime); err != nil || code != 200 {
		t.Errorf("without TLS: got %d, %v", code, err)
	}
}

// The plain listener leads to https and does nothing else.
func TestRedirect(t *testing.T) {
	p := newPeer(t)
	for _, way := range []string{"TLS", "PROXY and TLS"} {
		g := over(t, way, []string{p.addr}, with("listen: {", `listen: {redirect: "127.0.0.1:0", `))
		g.public = g.log.await(t, `msg=redirecting from=(\S+)`)[1]
		public := g.log.await(t, `msg=listening public=(\S+)`)[1]
		g.secure = nil
		_, own, _ := net.SplitHostPort(g.public)
		_, to, _ := net.SplitHostPort(public)
		long := "/" + strings.Repeat("a", 3000)
		for _, c := range []struct{ raw, want string }{
			{"GET /a/b?c=d HTTP/1.1\r\nHost: shop.example\r\n\r\n", "308 https://shop.example/a/b?c=d"},
			{"HEAD / HTTP/1.1\r\nHost: shop.example:80\r\n\r\n", "308 https://shop.example/"},
			{"GET / HTTP/1.1\r\nHost: shop.example:" + own + "\r\n\r\n", "308 https://shop.example:" + to + "/"},
			{"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "308 https://127.0.0.1/"},
			{"GET / HTTP/1.0\r\nHost: SHOP.example\r\n\r\n", "308 https://SHOP.example/"},
			{"GET //evil.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n", "308 https://shop.example//evil.example/"},
			{"GET " + long + " HTTP/1.1\r\nHost: shop.example\r\n\r\n", "308 https://shop.example" + long},
			{"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"},
			{"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n", "403"},
			{"GET @evil.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n", "403"},
			{"GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n", "403"},
			{"POST /v1/sales/1/orders HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n\r\n{}", "403"},
			{"get / HTTP/1.1\r\nHost: shop.example\r\n\r\n", "403"},
			{"GET / HTTP/1.1\r\n\r\n", "403"},
			{"GET / HTTP/1.1\r\nHost: shop.example\r\nHost: evil.example\r\n\r\n", "400"},
			{"GET / HTTP/1.1\r\nHost: shop.example/@evil.example\r\n\r\n", "400"},
			{"GET / HTTP/1.1\r\nHost: shop.example evil\r\n\r\n", "400"},
			{"GET /\rX: y HTTP/1.1\r\nHost: shop.example\r\n\r\n", "400"},
			{"GET /\x00 HTTP/1.1\r\nHost: shop.example\r\n\r\n", "400"},
			{"GET / HTTP/1.1\nHost: shop.example\r\n\r\n", "400"},
			{"GET / HTTP/2.0\r\nHost: shop.example\r\n\r\n", "400"},
			{"GET /" + strings.Repeat("a", 70000), "400"},
			{"\x16\x03\x01\x02\x00\n\r\n\r\n", "400"},
			{"GET / HTT", "close"}, {"", "close"},
		} {
			statuses, all := exchangeRaw(g, c.raw)
			got := strings.Join(statuses, " ")
			if got == "" {
				got = "close"
			}
			if _, rest, ok := strings.Cut(all, "\r\nLocation: "); ok {
				location, _, _ := strings.Cut(rest, "\r\n")
				got += " " + location
			}
			if got != c.want || strings.Contains(strings.ToLower(all), "strict-transport") {
				t.Errorf("%s, %.100q: got %.200q, want %.200q", way, c.raw, got, c.want)
			}
		}
	}
}

// The PROXY header's address is the connection's: for backends, for bounds, and for whether X-Forwarded-For is read. Connections
// without a good header, or of anybody but a trusted proxy, are closed without a word and counted.
func TestProxyProtocol(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	trust := func(networks string) edit {
		return with(`trusted_proxies: ["127.0.0.0/8"]`, "trusted_proxies: ["+networks+"]")
	}
	edits := []edit{proxied, trust(`"127.0.0.0/8", "10.9.0.0/16"`)}
	g := run(t, []string{p.addr}, edits...)
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x09\xc0\x00\x02\x01\x12\x67\x01\xbb" // 203.0.113.9
	for i, c := range []struct{ header, forwarded, want string }{
		{"PROXY TCP4 198.51.100.7 192.0.2.1 4711 443\r\n", "", "198.51.100.0/24"},
		{v2, "", "203.0.113.0/24"},
		{v2, "X-Forwarded-For: 9.9.9.9\r\n", "203.0.113.0/24"},
		{"PROXY TCP4 10.9.0.1 192.0.2.1 4711 443\r\n", "X-Forwarded-For: 9.9.9.9\r\n", "9.9.9.0/24"},
		{"PROXY UNKNOWN\r\n", "", "127.0.0.0/24"},
		{"PROXY UNKNOWN\r\n", "Forwarded: for=9.9.9.9\r\n", "9.9.9.0/24"},
	} {
		g.proxied = c.header
		code, err := ask(g.raw(), "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\n"+g.as(fmt.Sprint("u", i))+"\r\n"+c.forwarded+"Content-Length: 0\r\n\r\n")
		calls := p.got("/v1/sales/1/orders")
		if err != nil || code != 202 || !strings.Contains(calls[len(calls)-1].Header, "Floodgate-Client: "+c.want+"\r\n") {
			t.Errorf("%q, %q: got %d, %v; want %s", c.header, c.forwarded, code, err, c.want)
		}
	}
	closed := func(reason string, headers ...string) {
		t.Helper()
		for i, header := range headers {
			g.proxied = header
			if statuses, all := exchangeRaw(g, askTime); len(statuses) > 0 || all != "" {
				t.Errorf("%q: got %q, want the end", header, all)
			}
			if got := g.metric(`gateway_proxy_headers_refused_total{reason="` + reason + `"}`); got != fmt.Sprint(i+1) {
				t.Errorf("%q: %s are counted as %s, want %d", header, got, reason, i+1)
			}
		}
	}
	closed("malformed", "", "PROXY TCP4 203.0.113.9 192.0.2.1 4711 443\n", "PROXY TCP6 203.0.113.9 192.0.2.1 1 2\r\n", "PROXY "+strings.Repeat("x", 200), strings.Replace(v2, "\x00\x0c", "\x00\x0b", 1), strings.Replace(v2, "\x00\x0c", "\xff\xff", 1), strings.Replace(v2, "\x21\x11", "\x21\x31", 1))
	for i, header := range []string{"", "PROXY TCP4 203.0.113.9", v2[:20]} {
		c, err := net.Dial("tcp", g.public)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, header)
		c.(*net.TCPConn).CloseWrite()
		c.SetDeadline(time.Now().Add(patience))
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("%q: got %q, %v", header, b, err)
		}
		if got := g.metric(`gateway_proxy_headers_refused_total{reason="incomplete"}`); got != fmt.Sprint(i+1) {
			t.Errorf("%q: %s are counted as incomplete", header, got)
		}
	}
	g.write(configText([]string{p.addr}, proxied, trust(`"10.0.0.0/8"`)))
	if a := g.reload(); a.code != 200 {
		t.Fatal(a)
	}
	g.proxied = v2
	c := g.raw()
	io.WriteString(c, askTime)
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("not trusted: got %q, %v", b, err)
	}
	if got := g.metric(`gateway_proxy_headers_refused_total{reason="untrusted"}`); got != "1" {
		t.Errorf("%s are counted as untrusted", got)
	}
}

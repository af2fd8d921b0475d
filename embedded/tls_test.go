package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend"
	"floodgate.internal/gateway"
	"floodgate.internal/shared/certs/certstest"
)

// A real gateway and a real backend talk TLS, each with a certificate that the other verifies, through changes of the files.
func TestGatewayAndBackendOverTLS(t *testing.T) {
	var log buffer
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil || t.Failed() {
			t.Errorf("close: %v\n%s", err, &log)
		}
	}()
	if out, err := runBackend(t, "sale", "create", "-config", s.BackendConfig(), "--title", "Ten", "--stock", "10", "--price", "100", "--currency", "EUR", "--ends-at", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tokens, err := s.Tokens(t.Context(), "1-9")
	if err != nil {
		t.Fatal(err)
	}
	get := func(method, url, token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	order := func(uid int) (int, string) {
		return get("POST", "http://"+s.Addrs.Public+"/v1/sales/1/orders", tokens[uid-1])
	}
	ready := func() (int, string) { return get("GET", "http://"+s.Addrs.Ops+"/-/ready", "") }
	until := func(what string, ok func() bool) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(limit) {
				_, body := ready()
				t.Fatalf("never: %s\n%s", what, body)
			}
		}
	}

	ours, foreign := certstest.NewCA(t, "ours"), certstest.NewCA(t, "foreign")
	server, client := ours.Issue("backend", nil), ours.Issue("gateway", nil)
	edit := func(file string, replace ...string) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(replace...).Replace(string(b))
		if text == string(b) {
			t.Fatalf("%s has no %q", file, replace[0])
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	restart := func() {
		t.Helper()
		if err := errors.Join(s.gateway.stop(), s.backend.stop()); err != nil {
			t.Fatal(err)
		}
		s.backend = start("backend", backend.Run, []string{"-config", s.BackendConfig()}, &log)
		s.gateway = start("gateway", gateway.Run, []string{"-config", s.GatewayConfig()}, &log)
		if err := errors.Join(s.backend.ready(t.Context(), "http://"+s.Addrs.Admin+"/-/ready"), s.gateway.ready(t.Context(), "http://"+s.Addrs.Ops+"/-/ready")); err != nil {
			t.Fatal(err)
		}
	}
	internal := "internal: " + s.Addrs.Internal
	edit(s.BackendConfig(), internal, fmt.Sprintf("%s\n  internal_tls: {certificate: %q, key: %q, client_ca: %q}", internal, server.Certificate, server.Key, ours.File))
	edit(s.GatewayConfig(), "http://"+s.Addrs.Internal, "https://"+s.Addrs.Internal,
		"signing_key:", fmt.Sprintf("backend_tls: {ca: %q, certificate: %q, key: %q}\nsigning_key:", ours.File, client.Certificate, client.Key))
	restart()
	if code, body := order(1); code != 202 {
		t.Fatalf("got %d %s", code, body)
	}
	if code, body := ready(); code != 200 || strings.Contains(body, "warnings") {
		t.Errorf("got %d %s", code, body)
	}
	check := func() error {
		return gateway.Run(t.Context(), []string{"check", "-config", s.GatewayConfig()}, io.Discard, &log)
	}
	if err := check(); err != nil {
		t.Errorf("check: %v", err)
	}

	// A client certificate of another CA: the backend refuses it, the old one is gone. No order is taken, or half taken.
	alien := foreign.Issue("gateway", nil)
	replace := func(to, from certstest.Pair) {
		t.Helper()
		for _, f := range [][2]string{{to.Key, from.Key}, {to.Certificate, from.Certificate}} {
			b, err := os.ReadFile(f[1])
			if err == nil {
				err = os.WriteFile(f[0], b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	kept := ours.Issue("gateway-2", nil)
	replace(client, alien)
	refused := func() bool {
		_, body := ready()
		return strings.Contains(body, "it refuses this gateway's certificate")
	}
	until("the backend refuses the gateway's certificate", refused)
	if code, body := order(2); code != 503 || !strings.Contains(body, "OVERLOADED") {
		t.Errorf("got %d %s, want OVERLOADED: nothing was sent", code, body)
	}
	if err := check(); err == nil || !strings.Contains(err.Error(), "it refuses this gateway's certificate") {
		t.Errorf("check: got %v", err)
	}
	replace(client, kept)
	until("the warning is gone", func() bool { _, body := ready(); return !strings.Contains(body, "warnings") })
	until("the gateway asks the backend again", func() bool { // it was passed over meanwhile
		code, _ := get("GET", "http://"+s.Addrs.Public+"/v1/orders", tokens[2])
		return code == 200
	})
	if code, body := order(3); code != 202 {
		t.Errorf("got %d %s", code, body)
	}

	// A key without its certificate: the old pair stays, and the gateway says so.
	if err := os.WriteFile(client.Key, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("the gateway says that the files are wrong", func() bool { _, body := ready(); return strings.Contains(body, "backend_tls.key: ") })
	if code, body := order(4); code != 202 {
		t.Errorf("got %d %s", code, body)
	}
	if err := check(); err == nil || !strings.Contains(err.Error(), "backend_tls.key: ") {
		t.Errorf("check: got %v", err)
	}
	replace(client, kept)

	// The backend goes on with a certificate of another CA.
	replace(server, foreign.Issue("backend", nil))
	until("the gateway refuses the backend's certificate", func() bool {
		_, body := ready()
		return strings.Contains(body, "its certificate is refused: x509: certificate signed by unknown authority")
	})
}

func runBackend(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	err := backend.Run(t.Context(), args, &out, &errs)
	return out.String() + errs.String(), err
}

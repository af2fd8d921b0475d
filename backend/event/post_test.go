package event

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/conf"
)

// try posts one event to a URL, from a process of production or of development.
func try(t *testing.T, url string, private bool) error {
	t.Helper()
	s := NewSender(SenderConfig{Clock: new(clock.Clock), Register: prometheus.NewRegistry(), Private: private})
	o := s.newOutlet(Endpoint{Name: "shop", URL: url, Secret: whsec(32)})
	defer o.client.CloseIdleConnections()
	return o.post(t.Context(), delivery{id: 7, body: `{"type":"order.paid"}`})
}

func TestWhatAnEndpointMayAnswer(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		case "/gone":
			w.WriteHeader(http.StatusGone)
		case "/secret":
			http.Error(w, "hunter2", http.StatusInternalServerError)
		case "/broken":
			panic(http.ErrAbortHandler)
		case "/headers":
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		}
	}))
	defer s.Close()
	for path, want := range map[string]string{
		"/":         "",
		"/endless":  "",
		"/redirect": "redirects are not followed",
		"/gone":     "it answered 410",
		"/secret":   "it answered 500",
		"/broken":   "EOF",
		"/headers":  "exceeded",
	} {
		err := try(t, s.URL+path+"?key=hunter2", true)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 250) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// Outside development no address is dialed that is not public, whatever name leads there, and no proxy is asked to.
func TestPrivateAddressesAreNotDialed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	defer s.Close()
	t.Setenv("HTTP_PROXY", s.URL)
	t.Setenv("HTTPS_PROXY", s.URL)
	port := s.URL[strings.LastIndex(s.URL, ":"):]
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "10.0.0.1", "169.254.169.254", "[fe80::1]", "[fd00::1]"} {
		for _, scheme := range []string{"http://", "https://"} {
			if err := try(t, scheme+host+port+"/", false); err == nil || !strings.Contains(err.Error(), "is not a public address") && host != "[fe80::1]" {
				t.Errorf("%s%s: got %v, want it refused", scheme, host, err)
			}
		}
	}
}

func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false, "100.64.0.1": false, "127.9.9.9": false, "169.254.169.254": false, "172.16.0.1": false,
		"192.0.0.8": false, "192.168.1.1": false, "198.18.0.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::7f00:1": false, "::ffff:10.0.0.1": false, "64:ff9b::a00:1": false, "2002:a00:1::": false, "fe80::1%eth0": false, "fd00::1": false, "fec0::1": false, "ff02::1": false,
	} {
		if got := public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

// A process that ends does not wait for an endpoint.
func TestAPostEndsWithItsProcess(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	}))
	defer s.Close()
	defer close(release)
	sender := NewSender(SenderConfig{Clock: new(clock.Clock), Register: prometheus.NewRegistry(), Private: true})
	o := sender.newOutlet(Endpoint{Name: "shop", URL: s.URL, Secret: conf.Secret(whsec(24))})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- o.post(ctx, delivery{id: 1}) }()
	<-asked
	stop()
	if err := <-done; err == nil {
		t.Error("it was delivered")
	}
}

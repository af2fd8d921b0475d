package backend

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A foreign name that resolves to this machine gets nothing of the admin listener, before the admin API is there and after; what is
// listed does.
func TestTheAdminListenerChecksTheHost(t *testing.T) {
	s := &status{}
	s.set("starting")
	o := newOperators(s, prometheus.NewRegistry(), slog.New(slog.DiscardHandler), "127.0.0.1:9081", []string{"admin.example"})
	server := httptest.NewServer(o)
	defer server.Close()
	for range 2 {
		for host, want := range map[string]bool{"evil.example": false, "evil.example:9081": false, "10.0.0.7": false, "admin.example": true, "Admin.Example:9081": true,
			"localhost:1": true, "127.0.0.1:9081": true, "[::1]": true} {
			for _, path := range []string{"/", "/-/healthy", "/-/ready", "/metrics", "/admin/v1/sales", "/debug/pprof/"} {
				req, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Host = host
				resp, err := server.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if got := resp.StatusCode != http.StatusMisdirectedRequest; got != want {
					t.Errorf("%s for %s: got %d, want taken: %v", path, host, resp.StatusCode, want)
				}
			}
		}
		o.become(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	}
}

//go:build servers

package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/live"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// A console that listens is told what there was, then what is; it ends when its operator is off the list, and with the process.
func TestTheLiveStream(t *testing.T) {
	o := newOffice(t, 1)
	var operators atomic.Pointer[operator.List]
	operators.Store(only(token)())
	o.Operators = operators.Load
	o.auth = operator.NewAuthenticator(o.Operators, "test", o.Log, o.Register)
	server := httptest.NewServer(o.Admin)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- o.Sample(ctx) }()
	listen := func() (events func() (string, string), end func()) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/admin/v1/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("got %d, %v", res.StatusCode, res.Header)
		}
		lines := bufio.NewReader(res.Body)
		return func() (name, data string) {
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					return "", ""
				}
				if v, ok := strings.CutPrefix(line, "event: "); ok {
					name = strings.TrimSpace(v)
				} else if v, ok := strings.CutPrefix(line, "data: "); ok {
					return name, v
				}
			}
		}, func() { res.Body.Close() }
	}
	sale := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale(""))
	report := wire.GatewayReport{Name: "edge:1", Life: "A", Version: "v1", Generation: 1, Hash: "ab", At: wire.At(o.Clock.Now()), Presses: map[string]int64{"ok": 10},
		UIDs: []wire.TopClient{{Name: "bob", Requests: 3}}}
	take := func() {
		t.Helper()
		if err := o.Gateways.Take(t.Context(), report); err != nil {
			t.Fatal(err)
		}
	}
	take()
	next, end := listen()
	defer end()
	name, data := next()
	var begin adminapi.LiveBegin
	if err := json.Unmarshal([]byte(data), &begin); name != "begin" || err != nil || begin.EveryMS != live.HistoryEvery.Milliseconds() {
		t.Fatalf("got %s %s, %v", name, data, err)
	}
	var s adminapi.Live
	sampled := func() {
		t.Helper()
		if name, data = next(); name != "sample" {
			t.Fatalf("got %s %s", name, data)
		}
		s = adminapi.Live{}
		if err := json.Unmarshal([]byte(data), &s); err != nil {
			t.Fatal(err)
		}
	}
	for sampled(); len(s.Gateways) == 0 || len(s.Sales) == 0; sampled() {
	}
	if s.Queue == nil || len(s.Sales) != 1 || s.Sales[0].ID != sale.ID || s.UIDs[0].Name != "bob" || len(s.Presses) != 0 || len(s.Errors) != 0 {
		t.Errorf("got %s", data)
	}
	// Ten seconds by its own clock, forty presses later.
	report.At, report.Presses = wire.At(report.At.Add(10*time.Second)), map[string]int64{"ok": 50}
	take()
	for sampled(); s.Presses["ok"] == 0; sampled() {
	}
	if s.Presses["ok"] != 4 || s.Gateways[0].Presses["ok"] != 4 {
		t.Errorf("got %s, want 4 presses a second", data)
	}

	var ends []func()
	for range live.MaxListeners - 1 {
		_, end := listen()
		ends = append(ends, end)
	}
	refused(t, send(o.Admin, "GET", "/admin/v1/live", ""), problem.Overloaded, "")
	for _, end := range ends {
		end()
	}

	operators.Store(only("another-token-that-nobody-has")())
	for name != "end" && name != "" {
		name, data = next()
	}
	if name != "end" {
		t.Error("the stream broke off without a word")
	}
	if name, data := next(); name != "" {
		t.Errorf("after the end: got %s %s", name, data)
	}
	operators.Store(only(token)())
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	refused(t, send(o.Admin, "GET", "/admin/v1/live", ""), problem.Overloaded, "")
}

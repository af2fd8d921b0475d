package gateway

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

// lines is the access log so far, decoded.
func (g *gw) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	for text := range strings.Lines(g.log.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if line["msg"] == "request" {
			all = append(all, line)
		}
	}
	return all
}

// A JSON line has what an operator, and a replay of limits, needs.
func TestAccessLogInJSON(t *testing.T) {
	p := newPeer(t)
	p.set(7, nil)
	g := run(t, []string{p.addr}, func(s string) string { return s + "log: {format: json, access_every: 1}\n" })
	before := time.Now()
	g.do("POST", "/v1/sales/7/orders", g.as("ann"), "X-Request-Id: the-first")
	g.do("POST", "/v1/sales/7/orders?x=s3cr3t", g.as("ann"), "X-Request-Id: the-second")
	g.do("GET", "/no/such/path/s3cr3t", "X-Request-Id: the-third")
	g.log.await(t, `"request_id":"the-third"`)
	byID := map[any]map[string]any{}
	for _, line := range g.lines(t) {
		byID[line["request_id"]] = line
	}
	first, second, third := byID["the-first"], byID["the-second"], byID["the-third"]
	for name, want := range map[string]any{"method": "POST", "route": "order_post", "path": "/v1/sales/7/orders", "sale": 7.0, "uid": "ann",
		"network": "127.0.0.0/24", "level": "INFO", "result": "ok", "status": 202.0} {
		if first[name] != want {
			t.Errorf("%s: got %v, want %v, in %v", name, first[name], want, first)
		}
	}
	for name, want := range map[string]any{"status": 429.0, "rule": "order", "code": "RATE_LIMITED", "result": "rate_limited", "addr": first["addr"], "path": "/v1/sales/7/orders"} {
		if second[name] != want {
			t.Errorf("%s: got %v, want %v, in %v", name, second[name], want, second)
		}
	}
	at, err := time.Parse(time.RFC3339Nano, first["time"].(string))
	if err != nil || at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("got time %v, %v", first["time"], err)
	}
	if took, asked := first["took"].(float64), first["upstream_took"].(float64); asked <= 0 || took < asked || took > 30 {
		t.Errorf("got took %v and upstream_took %v", took, asked)
	}
	if _, asked := second["upstream_took"]; asked || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(first["addr"].(string)) {
		t.Errorf("got %v", second)
	}
	if third["status"] != 404.0 || third["path"] != nil || third["code"] != "NOT_FOUND" || strings.Contains(g.log.String(), "s3cr3t") {
		t.Errorf("got %v", third)
	}
	if strings.Contains(g.log.String(), "eyJ") {
		t.Error("a token is in the log")
	}
}

// Failed and refused requests have lines of their own, whatever the sample of all is, and those beyond the bound are counted.
func TestFailedAndRefusedRequestsAreLogged(t *testing.T) {
	p := newPeer(t)
	p.on(func(ctx *fastCtx, c call) {
		if c.UID == "bad" {
			problemAnswer(ctx, 500, "INTERNAL")
			return
		}
		problemAnswer(ctx, 404, "ORDER_NOT_FOUND")
	})
	g := run(t, []string{p.addr}, func(s string) string { return s + "log: {access_every: 0, refused_every: 1, access_max: 2}\n" })
	g.do("GET", "/v1/orders", g.as("good"), "X-Request-Id: the-other")
	g.do("GET", "/v1/orders", "X-Request-Id: the-unknown")
	const failed = 9
	for range failed {
		g.do("GET", "/v1/orders", g.as("bad"))
	}
	g.log.await(t, `request_id=the-unknown .* status=401 .* rule=identity .* code=UNAUTHENTICATED`)
	g.log.await(t, `status=500 result=internal`)
	lines := float64(strings.Count(g.log.String(), "status=500"))
	if dropped := g.number(`gateway_access_log_dropped_total{kind="failed"}`); lines+dropped != failed || lines < 2 {
		t.Errorf("got %v lines and %v dropped, want %v together", lines, dropped, failed)
	}
	if strings.Contains(g.log.String(), "the-other") {
		t.Error("a request is logged that neither failed nor was refused")
	}
	g.write(strings.Replace(configText([]string{p.addr}), "cache:", "log: {access_every: 0, refused_every: 0}\ncache:", 1))
	g.log.await(t, `generation=2`)
	g.do("GET", "/v1/orders", "X-Request-Id: the-last")
	if strings.Contains(g.log.String(), "the-last") {
		t.Error("a refusal is logged, though none is to be")
	}
}

// The format is settled at the start, and a wrong one is an error.
func TestLogFormat(t *testing.T) {
	g := run(t, []string{newPeer(t).addr}, func(s string) string { return s + "log: {format: json}\n" })
	g.lines(t)
	g.write(strings.Replace(configText([]string{"127.0.0.1:1"}), "cache:", "log: {format: text}\ncache:", 1))
	g.log.await(t, `a change of log.format needs a restart`)
	if err := runOnce(t, configText([]string{"127.0.0.1:1"})+"log: {format: xml}\n", "-config"); exitCode(err) != 2 || !strings.Contains(err.Error(), `log.format: "xml" must be json or text`) {
		t.Errorf("got %v", err)
	}
}

// Both histograms have a line for each request, by its route and result, and for each attempt, by its backend and result.
func TestLatency(t *testing.T) {
	p := newPeer(t)
	p.on(func(ctx *fastCtx, c call) {
		if c.UID == "bad" {
			problemAnswer(ctx, 500, "INTERNAL")
			return
		}
		problemAnswer(ctx, 404, "ORDER_NOT_FOUND")
	})
	g := run(t, []string{p.addr})
	g.do("GET", "/v1/time")
	g.do("GET", "/v1/orders")
	g.do("GET", "/v1/orders", g.as("ann"))
	g.do("GET", "/v1/orders", g.as("ann"))
	g.do("GET", "/v1/orders", g.as("bad"))
	for metric, want := range map[string]float64{
		`gateway_request_duration_seconds_count{result="ok",route="time"}`:            1,
		`gateway_request_duration_seconds_count{result="refused",route="orders_get"}`: 1,
		`gateway_request_duration_seconds_count{result="denied",route="orders_get"}`:  2,
		`gateway_request_duration_seconds_count{result="failed",route="orders_get"}`:  1,
		`gateway_request_duration_seconds_bucket{result="ok",route="time",le="20"}`:   1,

		`gateway_upstream_duration_seconds_count{backend="` + p.addr + `",result="failed"}`: 1,
	} {
		if got := g.number(metric); got != want {
			t.Errorf("%s: got %v, want %v", metric, got, want)
		}
	}
	if got := g.number(`gateway_upstream_duration_seconds_count{backend="` + p.addr + `",result="denied"}`); got < 2 { // and records of timelines
		t.Errorf("got %v attempts that were denied, want 2 or more", got)
	}
	other := newPeer(t)
	g.write(configText([]string{other.addr}))
	g.log.await(t, `generation=2`)
	if body := g.do("GET", "http://"+g.ops+"/metrics").body; strings.Contains(body, `gateway_upstream_duration_seconds_count{backend="`+p.addr) ||
		!strings.Contains(body, `gateway_upstream_duration_seconds_count{backend="`+other.addr) {
		t.Error("the metrics are not those of the backends in the configuration")
	}
}

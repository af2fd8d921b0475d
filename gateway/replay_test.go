package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"floodgate.internal/gateway/replay"
)

// A log that a real gateway wrote, replayed against its own limits, gives its own refusals; against others, what these would have
// refused, and whom.
func TestReplayOfARealLog(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.set(2, func(s *sale) { s.State = "sold_out" })
	all := func(s string) string {
		return with("max_in_flight: 64}", "max_in_flight: 64}\nlog: {format: json, access_every: 1, access_max: 100000}")(behind(s))
	}
	slow := []edit{all, with("order: {rate: 0.2", "order: {rate: 0.0002"), with("ip: {rate: 50, burst: 100", "ip: {rate: 0.0002, burst: 7")}
	g := run(t, []string{p.addr}, slow...)
	tokens := map[string]string{"ann": g.as("ann"), "bob": g.as("bob")} // made once: a token that is new draws on another bucket
	last := ""
	ask := func(method, path, uid, addr string) {
		t.Helper()
		last = fmt.Sprintf("request-%s-%s-%d", method, uid, len(last)) // awaited below
		headers := []string{from(addr), "X-Request-Id: " + last}
		if uid != "" {
			headers = append(headers, tokens[uid])
		}
		if a := g.do(method, path, headers...); a.err != nil || a.code >= 500 {
			t.Fatalf("got %v", a)
		}
	}
	for i := range 4 { // ann orders three times too often, bob never does
		ask("POST", "/v1/sales/1/orders", "ann", "203.0.113.1")
		ask("GET", "/v1/orders", "bob", "198.51.100.1")
		ask("GET", "/v1/time", "", "203.0.113.1")
		ask("POST", "/v1/sales/2/orders", "", "203.0.113.1")      // sold out
		ask("GET", "/v1/orders", "", fmt.Sprintf("10.1.1.%d", i)) // exempt, without a token
	}
	for range 9 { // two more than the address has tokens
		ask("GET", "/v1/orders", "", "192.0.2.1")
	}
	ask("GET", "/no/such/path", "", "10.1.1.1")
	g.log.await(t, `"request_id":"`+last+`"`)

	log := filepath.Join(t.TempDir(), "access.log")
	if err := os.WriteFile(log, []byte(g.log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(args []string, edits ...edit) (string, error) {
		file := filepath.Join(t.TempDir(), "gateway.yaml")
		if err := os.WriteFile(file, []byte(configText([]string{"127.0.0.1:1"}, edits...)), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := Run(context.Background(), append([]string{"check", "-config", file}, args...), &out, &out)
		return out.String(), err
	}
	report := func(edits ...edit) (r replay.Report) {
		t.Helper()
		text, err := check([]string{"--replay", log, "--json"}, edits...)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return r
	}

	same := report(slow...)
	if got := fmt.Sprint(same.Rules); got != "[{ip 2 2} {order 3 3}]" || same.NewlyRefused+same.NewlyAdmitted+same.Unknown+same.Log.Unreadable+same.Log.Gaps != 0 || same.Log.Requests != 30 || same.Log.Other == 0 {
		t.Errorf("its own limits: got %+v", same)
	}
	for rule, counted := range map[string]string{"ip": "2", "order": "3"} {
		if got := g.metric(`gateway_refusals_total{rule="` + rule + `"}`); got != counted {
			t.Errorf("the gateway counted %s refusals by %s, want %s", got, rule, counted)
		}
	}
	other := report(all, with("order: {rate: 0.2, burst: 1", "order: {rate: 0.2, burst: 3"), with("read: {rate: 10, burst: 20", "read: {rate: 0.0001, burst: 1"))
	if got := fmt.Sprint(other.Rules); got != "[{ip 2 0} {order 3 1} {read 0 3}]" || other.NewlyRefused != 3 || other.NewlyAdmitted != 4 || other.Unknown != 2 {
		t.Errorf("other limits: got %+v", other)
	}
	if got := fmt.Sprint(other.Users, other.Networks); got != "[{bob 3}] [{198.51.100.0/24 3}]" || len(other.Minutes) == 0 || other.First == nil || other.First.After(*other.Last) {
		t.Errorf("got %s, %+v", got, other)
	}
	shared := report(all, limits("ip_users: {rate: 0.0001, burst: 1}"))
	if got := fmt.Sprint(shared.Rules, shared.NewlyRefused, shared.Users); got != "[{ip 2 0} {ip_users 0 4} {order 3 1}] 2 [{bob 2}]" {
		t.Errorf("a bucket of users at an address: got %s", got)
	}
	text, err := check([]string{"--replay", log}, all, with("read: {rate: 10, burst: 20", "read: {rate: 0.0001, burst: 1"))
	for _, want := range []string{"30 requests, ", "read        0       3", "3 would be refused that were not", "bob", "198.51.100.0/24"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("got %v\n%s\nwant %q", err, text, want)
		}
	}

	// What cannot be replayed is a usage error.
	sample := filepath.Join(t.TempDir(), "sample.log")
	if err := os.WriteFile(sample, []byte(strings.ReplaceAll(g.log.String(), `"every":1`, `"every":1000`)), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no such file":                       {"--replay", log + ".none"},
		"a sample, of one request in 1000":   {"--replay", sample},
		"--json goes with --replay":          {"--json"},
		"is a directory":                     {"--replay", t.TempDir()},
		"there is no request in this log: 0": {"--replay", os.DevNull},
	} {
		if text, err := check(args); exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v\n%s", args, err, text)
		}
	}
	if text, err := check([]string{"--replay", log}, with("rate: 0.2", "rate: -1")); exitCode(err) != 2 || !strings.Contains(err.Error(), "limits.order.rate") {
		t.Errorf("wrong limits: got %v\n%s", err, text)
	}
}

// The gateway says in its log where lines are missing, so that a replay can tell.
func TestGapsInTheLogAreMarked(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with("max_in_flight: 64}", "max_in_flight: 64}\nlog: {format: json, access_every: 1, access_max: 1}"))
	for range 5 {
		g.do("GET", "/v1/time")
	}
	g.until("a line comes after a gap", func() bool { g.do("GET", "/v1/time"); return strings.Contains(g.log.String(), `"gap":true`) })
}

//go:build servers

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// alertCases has for each alert the series of a system that is well, close to its bounds, and those that make the alert fire.
var alertCases = []struct{ alert, series, well, ill string }{
	{"FloodgateTargetDown", `up{job="shop-floodgate-gateway",instance="g1"}`, "1x160", "0x160"},
	{"FloodgateTargetDown", `up{job="another"}`, "0x160", ""},
	{"FloodgateBackendNotReady", `backend_ready{instance="b1"}`, "1x160", "0x160"},
	{"FloodgateRoleAbsent", `backend_role{role="consumer"}`, "1x160", "_x160"},
	{"FloodgateRoleAbsent", `backend_role{role="relay"}`, "1x160", "_x160"},
	{"FloodgateRoleAbsent", `backend_role{role="timer"}`, "1x160", "_x160"},
	{"FloodgateRoleAbsent", `backend_role{role="api"}`, "1x160", "_x160"},
	{"FloodgateBackendLost", `gateway_upstream_backends_lost{instance="g1"}`, "0x160", "1x160"},
	{"FloodgateFeedStale", `gateway_feed_fresh{instance="g1"}`, "1x160", "0x160"},
	{"FloodgateErrorRatio", `gateway_request_duration_seconds_count{route="order_post",result="failed"}`, "0+9x160", "0+11x160"},
	{"FloodgateErrorRatio", `gateway_request_duration_seconds_count{route="order_post",result="refused"}`, "0+990x160", ""},
	{"FloodgateOrdersQueued", `backend_queued_oldest_seconds{instance="b1"}`, "59x160", "61x160"},
	{"FloodgateOrdersQueued", `backend_queued_bound_seconds{instance="b1"}`, "120x160", ""},
	{"FloodgateOrdersPastBound", `backend_queued_past_bound{instance="b1"}`, "0x160", "1x160"},
	{"FloodgateDeadLetters", `backend_dead_letters_total{result="ended"}`, "7x160", "7x130 8x30"},
	{"FloodgateOrdersRejected", `backend_orders_settled_total{result="rejected"}`, "7x160", "7x130 8x30"},
	{"FloodgateOrdersRejected", `backend_orders_settled_total{result="inserted"}`, "0+9x160", ""},
	{"FloodgateOrdersStuck", `backend_orders_stuck_total{instance="b1"}`, "7x160", "7x130 8x30"},
	{"FloodgateMySQLForgot", `backend_mysql_takeovers_total{result="older"}`, "0x160", "0x130 1x30"},
	{"FloodgateGateClosed", `backend_sales_not_open{instance="b1"}`, "0x138 1x2 0x20", "0x130 1x30"},
	{"FloodgateShedding", `backend_shed_total{reason="lag"}`, "7x160", "0+1x160"},
	{"FloodgateUpstreamFull", `gateway_upstream_refused_total{instance="g1",bound="order"}`, "7x160", "0+1x160"},
	{"FloodgateConnectionsNearBound", `gateway_connections{instance="g1"}`, "89x160", "91x160"},
	{"FloodgateConnectionsNearBound", `gateway_connections_max{instance="g1"}`, "100x160", ""},
	{"FloodgateDescriptorsNearBound", `process_open_fds{job="floodgate-gateway",instance="g1"}`, "89x160", "91x160"},
	{"FloodgateDescriptorsNearBound", `process_max_fds{job="floodgate-gateway",instance="g1"}`, "100x160", ""},
	{"FloodgateConfigRefused", `gateway_config_last_reload_successful{instance="g1"}`, "1x160", "0x160"},
	{"FloodgateConfigRefused", `backend_operators_last_reload_successful{instance="b1"}`, "1x160", "0x160"},
	{"FloodgateCertificateExpires", `gateway_tls_certificate_expiry_timestamp_seconds{instance="g1",file="a"}`, "700000x160", "600000x160"},
	{"FloodgateCertificateExpires", `gateway_backend_tls_expiry_timestamp_seconds{instance="g1"}`, "700000x160", "600000x160"},
	{"FloodgateCertificateExpires", `gateway_backend_tls_expiry_timestamp_seconds{instance="without"}`, "0x160", ""},
	{"FloodgateCertificateExpires", `backend_internal_tls_expiry_timestamp_seconds{instance="b1"}`, "700000x160", "600000x160"},
	{"FloodgateFilesRefused", `gateway_tls_file_refused{instance="g1",file="a"}`, "0x160", "1x160"},
	{"FloodgateFilesRefused", `gateway_backend_tls_files_ok{instance="g1"}`, "1x160", "0x160"},
	{"FloodgateFilesRefused", `backend_internal_tls_files_ok{instance="b1"}`, "1x160", "0x160"},
	{"FloodgateJWKSStale", `gateway_jwks_age_seconds{instance="g1"}`, "3599x160", "3601x160"},
	{"FloodgateJWKSStale", `gateway_jwks_age_seconds{instance="without"}`, "-1x160", ""},
	{"FloodgateGuesses", `gateway_operator_guesses_total{instance="g1",result="wrong"}`, "7x140 9x20", "7x130 20x30"},
	{"FloodgateGuesses", `backend_operator_guesses_total{instance="b1",result="wrong"}`, "7x140 9x20", "7x130 20x30"},
	{"FloodgateGuesses", `backend_unsigned_total{instance="b1",reason="time"}`, "7x140 9x20", "7x130 20x30"},
	{"FloodgatePanics", `gateway_panics_total{instance="g1"}`, "7x160", "7x130 8x30"},
	{"FloodgatePanics", `backend_panics_total{instance="b1"}`, "7x160", "7x130 8x30"},
	{"FloodgateRefundsDue", `backend_payment_refunds_due{instance="b1"}`, "0x160", "1x160"},
	{"FloodgateSalesUnarchived", `backend_sales_unarchived{instance="b1"}`, "0x160", "1x160"},
	{"FloodgateEventsUndelivered", `backend_events_oldest_waiting_seconds{endpoint="shop"}`, "599x160", "601x160"},
	{"FloodgateDeferredOrders", `backend_sales_with_deferred_orders{instance="b1"}`, "0x160", "1x160"},
}

// promtool runs the rules against the series of a system that is well: none fires. Then each of the cases makes its alert fire.
func TestAlertsFireAndStaySilent(t *testing.T) {
	t.Parallel()
	world.Must(t, stack.Install(t.Context(), t.Logf, t.Output(), stack.ForAlerts))
	rules, err := filepath.Abs("../configs/alerts.yml")
	world.Must(t, err)
	type object = map[string]any
	var tests []object
	for round, more := -1, true; more; round++ { // in each every alert has another of its cases ill; none in the first
		more = round < 0
		var series, want []object
		nth := map[string]int{}
		for _, c := range alertCases {
			values := c.well
			if c.ill != "" {
				if nth[c.alert] == round {
					values, more = c.ill, true
					want = append(want, object{"labels": fmt.Sprintf("{alertname=%q}", c.alert), "value": 1})
				}
				nth[c.alert]++
			}
			series = append(series, object{"series": c.series, "values": values})
		}
		for _, r := range alertRules(t) {
			if nth[r.Alert] == 0 {
				t.Errorf("no case makes %s fire", r.Alert)
			}
		}
		tests = append(tests, object{"interval": "30s", "input_series": series, "promql_expr_test": []object{
			{"expr": `count by (alertname) (ALERTS{alertstate="firing"})`, "eval_time": "70m", "exp_samples": want}}})
	}
	text, err := json.Marshal(object{"rule_files": []string{rules}, "evaluation_interval": "30s", "tests": tests}) // JSON is YAML
	world.Must(t, err)
	file := filepath.Join(t.TempDir(), "test.yml")
	world.Must(t, os.WriteFile(file, text, 0o600))
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", rules}, {"check", "config", "../configs/prometheus.yml"}, {"check", "config", "--syntax-only", "../deploy/compose/prometheus.yml"}, {"test", "rules", file}} {
		if out, err := exec.CommandContext(t.Context(), stack.Promtool(), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// A real Prometheus scrapes a system that sells, by configs/prometheus.yml: every rule and every query of the dashboards is evaluated
// without an error, and each panel shows something, but where it says what it is empty for.
func TestDashboardsOnARealPrometheus(t *testing.T) {
	t.Parallel()
	world.Must(t, stack.Install(t.Context(), t.Logf, t.Output(), stack.ForAlerts))
	w := newSystem(t, world.Options{Limits: freely})
	sale := w.newSale("Three keyboards", 3, time.Now().Add(-time.Minute), 600)
	w.state(sale, wire.Open)

	dir := t.TempDir()
	rules, err := filepath.Abs("../configs/alerts.yml")
	world.Must(t, err)
	text, err := os.ReadFile("../configs/prometheus.yml")
	world.Must(t, err)
	addr, config := freePort(t), filepath.Join(dir, "prometheus.yml")
	world.Must(t, os.WriteFile(config, []byte(replace(t, string(text), "gateway:8081", fmt.Sprintf("127.0.0.1:%d", w.Ports.Ops), "backend:9081", fmt.Sprintf("127.0.0.1:%d", w.Ports.Admin),
		"[alerts.yml]", fmt.Sprintf("[%q]", rules), "_interval: 5s", "_interval: 1s")), 0o600))
	world.Run(t, w.ctx, stack.NewProcess(dir, stack.Program{Name: "prometheus", Path: stack.Prometheus(), Addrs: []string{addr}, Ready: "http://" + addr + "/-/ready",
		Args: []string{"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + addr}}))

	ask := func(path string, out any) error {
		req, err := http.NewRequestWithContext(w.ctx, "GET", "http://"+addr+path, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var answer struct {
			Error string          `json:"error"`
			Data  json.RawMessage `json:"data"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return err
		}
		if answer.Error != "" {
			t.Fatalf("%s: %s", path, answer.Error)
		}
		return json.Unmarshal(answer.Data, out)
	}
	query := func(q string) (n int) {
		t.Helper()
		var data struct {
			Result []any `json:"result"`
		}
		w.must(ask("/api/v1/query?query="+url.QueryEscape(q), &data))
		return len(data.Result)
	}
	w.until("both are scraped", time.Minute, func() (bool, string) {
		n := query("up == 1")
		return n == 2, fmt.Sprintf("%d are up", n)
	})

	tokens, next := w.tokens(1, 3), 0
	variables := strings.NewReplacer("$gateway", ".*", "$backend", ".*", "$__rate_interval", "1m")
	for file, d := range dashboards(t) {
		for _, v := range d.Templating.List {
			if metric, ok := strings.CutPrefix(v.Query, "label_values("); ok {
				metric, _, _ = strings.Cut(metric, ",")
				if query(metric) == 0 {
					t.Errorf("%s: the variable %s has no values", file, v.Name)
				}
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				q := variables.Replace(target.Expr)
				if n := query(q); n > 0 || strings.Contains(p.Description, "Empty ") {
					continue
				}
				w.until(fmt.Sprintf("%s: %s: %s", file, p.Title, q), time.Minute, func() (bool, string) {
					w.press(w.ctx, sale, tokens[next%len(tokens)], fmt.Sprint("press-", next)) // rates need two scrapes with presses between
					next++
					return query(q) > 0, "nothing"
				})
			}
		}
	}
	w.until("every rule is evaluated", time.Minute, func() (bool, string) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		w.must(ask("/api/v1/rules", &data))
		var well []string
		for _, r := range data.Groups[0].Rules {
			if r.Health == "err" {
				t.Fatalf("%s: %s", r.Name, r.LastError)
			}
			if r.Health == "ok" {
				well = append(well, r.Name)
			}
		}
		return len(well) == len(alertRules(t)), fmt.Sprintf("well: %s", well)
	})
	if query(`ALERTS{alertname="FloodgateTargetDown",alertstate="firing"}`) > 0 {
		t.Error("an alert fires for a system that is well")
	}

	// One that fires: the backend is killed.
	w.must(w.Backend.Kill(w.ctx))
	w.until("FloodgateTargetDown", 2*time.Minute, func() (bool, string) {
		return query(`ALERTS{alertname="FloodgateTargetDown",alertstate=~"pending|firing",job="floodgate-backend"}`) > 0, "no alert"
	})
	w.must(w.Backend.Start(w.ctx))
}

//go:build servers

package backend

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-sql-driver/mysql"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// report runs a command that prints a report, whose exit code must be this.
func report(t *testing.T, code int, args ...string) map[string]preflight.Check {
	t.Helper()
	var out, log bytes.Buffer
	err := Run(t.Context(), append(args, "--json"), &out, &log)
	if cli.ExitCode(err) != code {
		t.Errorf("%v: got %v, want exit code %d; it said\n%s", args, err, code, &out)
	}
	var r preflight.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %v: %s", args, err, &out)
	}
	if r.Go != (code == 0) {
		t.Errorf("%v: exit code %d, and go is %v", args, code, r.Go)
	}
	checks := map[string]preflight.Check{}
	for _, c := range r.Checks {
		if c.Value == "" || c.Want == "" || (c.Do == "") != c.OK {
			t.Errorf("%v: a check without words: %+v", args, c)
		}
		checks[c.Name] = c
	}
	return checks
}

// What a development machine is not asked for: secrets of its own, as many descriptors as a server's, room on its disk.
const known = "secrets,descriptors,disk"

// What a preflight here is not asked for besides: no gateway runs.
const knownHere = "secrets,descriptors,gateways,gateway_versions,gateway_configurations,gateway_connections,gateway_certificates"

// The preflight of a running backend is a go by command and by exit code, and a no-go without it.
func TestPreflight(t *testing.T) {
	r := configure(t, os.Getenv("REDIS_ADDR"), backendtest.Redis(t).Client().Prefix(), backendtest.MySQLDSN(t), queueOf(t, RabbitMQ))
	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	end := r.start()
	r.waitReady()
	sale := fmt.Sprint(r.createSale(t, 10))
	look := func(accept string) (p preflight.Report) {
		if _, err := r.operator("GET", "/admin/v1/sales/"+sale+"/preflight?accept="+accept, nil, &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	eventually(t, "it is a go", func() error { // its outbox and its queue are read a moment later
		if p := look(knownHere); !p.Go {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	command := []string{"preflight", "-config", r.path, "--sale", sale}
	with := func(more ...string) []string { return append(command[:len(command):len(command)], more...) }
	if checks := report(t, 1, command...); checks["secrets"].OK || !strings.Contains(checks["secrets"].Value, "admin_token") || !checks["audit"].OK || !checks["consumers"].OK {
		t.Errorf("got %+v", checks)
	}
	report(t, 0, with("--accept", knownHere)...)

	file := filepath.Join(t.TempDir(), "rehearsal.json")
	for _, c := range []struct {
		code   int
		stock  int64
		expect string
	}{{0, 10, "1000"}, {1, 9, "1000"}, {1, 10, "1001"}} {
		b, err := json.Marshal(preflight.Rehearsal{At: wire.At(time.Now()), Shoppers: 1000, Stock: c.stock, Good: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := report(t, c.code, with("--accept", knownHere, "--rehearsal", file, "--shoppers", c.expect)...)["rehearsal"]; got.OK != (c.code == 0) {
			t.Errorf("got %+v", got)
		}
	}
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][]string{with("--rehearsal", file), with("--rehearsal", file+"x"), with("--accept", "luck"), with("--shoppers", "-1"), {"preflight", "-config", r.path, "--sale", "0"}, {"preflight", "-config", r.path}} {
		if err := Run(t.Context(), wrong, new(bytes.Buffer), new(bytes.Buffer)); cli.ExitCode(err) != 2 {
			t.Errorf("%v: got %v, want a usage error", wrong, err)
		}
	}
	for _, query := range []string{"accept=luck", "accept=", "shoppers=0", "shoppers=x", "other=1", "accept=lag&accept=lag"} {
		if status, _ := r.operator("GET", "/admin/v1/sales/"+sale+"/preflight?"+query, nil, nil); status != http.StatusBadRequest {
			t.Errorf("%s: got %d", query, status)
		}
	}
	if got := report(t, 1, "preflight", "-config", r.path, "--sale", sale+"9")["backend"]; !strings.Contains(got.Value, "SALE_NOT_FOUND") {
		t.Errorf("got %+v", got)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if got := report(t, 1, command...)["backend"]; !strings.Contains(got.Value, "no backend answers") {
		t.Errorf("got %+v", got)
	}
}

// The doctor finds what is away or wrong, one after the other, and all well in the end.
func TestDoctor(t *testing.T) {
	dsn, prefix, nobody := backendtest.MySQLDSN(t), backendtest.Redis(t).Client().Prefix(), freePorts(t, 2)
	queue := queueOf(t, RabbitMQ)
	r := configure(t, os.Getenv("REDIS_ADDR"), prefix, dsn, queue)
	doctor := func(code int, r *running, more ...string) map[string]preflight.Check {
		t.Helper()
		return report(t, code, append([]string{"doctor", "-config", r.path, "--accept", known}, more...)...)
	}
	bad := func(checks map[string]preflight.Check, name, says, do string) {
		t.Helper()
		if c := checks[name]; c.OK || !strings.Contains(c.Value, says) || !strings.Contains(c.Do, do) {
			t.Errorf("%s: got %+v, want %q, and to do: %q", name, c, says, do)
		}
	}
	checks := doctor(1, r)
	bad(checks, "backend", "connection refused", "start it")
	bad(checks, "descriptors", "not looked at", "see to backend first")
	bad(checks, "internal", "connection refused", "role api")
	bad(checks, "schema", "version 0", "migrate")
	if !checks["redis"].OK || !checks["mysql"].OK || !checks["rabbitmq"].OK || !checks["queues"].OK || !checks["durability"].OK {
		t.Errorf("got %+v", checks)
	}

	away := configure(t, nobody[0], prefix, "u:p@tcp("+nobody[0]+")/floodgate", `{driver: rabbitmq, url: "amqp://u:p@`+nobody[0]+`/"}`)
	checks = doctor(1, away)
	for _, store := range []string{"redis", "mysql", "rabbitmq"} {
		bad(checks, store+"_network", "connection refused", "running")
		bad(checks, store, "not looked at", "see to "+store+"_network first")
	}
	bad(checks, "durability", "redis is away", "")
	bad(checks, "disk", "away", "room")

	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.User, c.Passwd = "nobody", "wrong-password"
	url := queue[strings.Index(queue, "amqp://"):strings.LastIndex(queue, `"`)]
	wrong := configure(t, os.Getenv("REDIS_ADDR"), prefix, c.FormatDSN(), fmt.Sprintf("{driver: rabbitmq, url: %q}", url+"-other"))
	b, err := os.ReadFile(wrong.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wrong.path, bytes.Replace(b, []byte("redis: {"), []byte("redis: {username: nobody, password: wrong-password, "), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	checks = doctor(1, wrong)
	bad(checks, "redis", "WRONGPASS", "redis.password")
	bad(checks, "mysql", "denied", "grants")
	bad(checks, "rabbitmq", "", "vhost")
	for name, c := range checks {
		if strings.Contains(c.Value, "wrong-password") {
			t.Errorf("%s shows a secret: %s", name, c.Value)
		}
	}

	if err := r.run(t.Context(), "migrate"); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.waitReady()
	ready := http.StatusServiceUnavailable
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(ready)
		fmt.Fprintf(w, `{"status":"not ready","reasons":["the feed was not received"]}`)
	}))
	defer gateway.Close()
	at := strings.TrimPrefix(gateway.URL, "http://")
	bad(doctor(1, r, "--gateway", at), "gateway "+at, "the feed was not received", "reasons")
	bad(doctor(1, r, "--gateway", nobody[1]), "gateway "+nobody[1], "connection refused", "start it")
	ready = http.StatusOK
	doctor(0, r, "--gateway", at)

	if err := os.WriteFile(r.path, []byte("orders:\n  batsch: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), []string{"doctor", "-config", r.path, "--json"}, &out, &out); cli.ExitCode(err) != 2 || !strings.Contains(out.String(), "batsch") {
		t.Errorf("got %v, %s", err, &out)
	}
}

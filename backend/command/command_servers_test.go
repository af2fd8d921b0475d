//go:build servers

package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/admin"
	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/wire"
)

// annasToken is that of a viewer of backend.
const annasToken = "fgop_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

var annaHash = func() conf.Secret {
	sum := sha256.Sum256([]byte(annasToken))
	return conf.Secret(hex.EncodeToString(sum[:]))
}()

// backend serves the admin API on the real stores and returns the configuration that leads there.
func backend(t *testing.T) Config {
	t.Helper()
	dsn, store, log := backendtest.MySQLDSN(t), backendtest.Redis(t), backendtest.Log(t)
	db := backendtest.OpenMySQL(t, dsn, 4)
	reg := prometheus.NewRegistry()
	clk := new(clock.Clock)
	intents := intent.New(intent.Config{DB: db, Sales: sale.Reader{DB: db}, Redis: store, Clock: clk, Log: log, Register: reg})
	book := order.NewStore(order.Config{DB: db, Redis: store, Intents: intents, Clock: clk, Log: log, Register: reg})
	box := deadletter.NewStore(deadletter.Config{DB: db, Orders: book, Clock: clk, Log: log, Register: reg})
	auditor, rebuild := audit.New(audit.Config{DB: db, Redis: store, QueuedBound: time.Minute}), reconcile.New(reconcile.Config{DB: db, Redis: store, Log: log, Register: reg}).Sale
	changes := &change.Maker{DB: db, Clock: clk, Intents: intents, Reconcile: rebuild, Changed: func(context.Context) error { return nil }, Log: log}
	named := operator.NewList("admin", "dev-admin", []operator.Entry{{Name: "anna", Role: operator.Viewer, TokenSHA256: annaHash}})
	a := admin.New(admin.Config{KeepRevocations: time.Hour, Orders: book, Changes: changes, DeadLetters: box, Operators: func() *operator.List { return named }, DB: db, Redis: store, Clock: clk, Audit: auditor, Reconcile: rebuild,
		Closing: closing.New(closing.Config{DB: db, Redis: store, Clock: clk, Audit: auditor, Maker: changes, Log: log, Register: reg}),
		Ready:   func(context.Context) []string { return nil }, Log: log, Gatherer: reg, Register: reg})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- admin.Serve(ctx, ln, a, log) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return Config{Admin: ln.Addr().String(), Token: "dev-admin", MySQL: dsn, QueuedBound: time.Minute, Log: log,
		Redis: redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: store.Client().Prefix()}}
}

// must runs a command line that must succeed.
func must(t *testing.T, c Config, args ...string) string {
	t.Helper()
	out, err := run(t.Context(), c, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

func TestASaleFromMakingToClosing(t *testing.T) {
	c := backend(t)
	if out := must(t, c, "migrate", "-config", "f"); !strings.Contains(out, "steps were taken") {
		t.Errorf("got %s", out)
	}
	if out := must(t, c, "migrate", "-config", "f"); out != "the schema is up to date\n" {
		t.Errorf("got %s", out)
	}
	words := strings.Fields("sale create -config f --stock 100 --price 1999 --currency EUR --starts-at=-1m --ends-at +1h --pay-within 2m --tranche=-1m=60 --tranche +20m=40 --key k1 --json --title")
	var s adminapi.Sale
	if err := json.Unmarshal([]byte(must(t, c, append(words, "A mug")...)), &s); err != nil {
		t.Fatal(err)
	}
	if s.ID == 0 || s.State != "open" || s.Title != "A mug" || s.Total != 100 || s.PayWithin != 120 || len(s.Tranches) != 2 || s.EndsAt.Sub(s.StartsAt.Time) != 61*time.Minute {
		t.Errorf("got %+v", s)
	}
	id := fmt.Sprint(s.ID)
	for _, step := range []struct{ line, want string }{
		{"sale list -config f", "A mug"},
		{"sale get -config f " + id, "= 100 available + 0 locked + 0 sold"},
		{"sale pause -config f " + id, "paused"},
		{"sale resume -config f " + id, "open"},
		{"sale restock -config f " + id + " 50", "150"},
		{"audit -config f --sale " + id, "balanced"},
		{"audit -config f --all --json", `"balanced": true`},
		{"queue -config f", "0 orders are queued"},
		{"queue -config f --json", `"depth": 0`},
		{"rebuild -config f --sale " + id, "balanced"},
		{"sale close -config f " + id, "closed for good"},
	} {
		if out := must(t, c, strings.Fields(step.line)...); !strings.Contains(out, step.want) {
			t.Errorf("%s: got\n%s\nwant %q in it", step.line, out, step.want)
		}
	}
	for line, exit := range map[string]int{
		"sale get -config f 99":               1, // no such sale
		"sale restock -config f " + id + " 1": 1, // it is closed
		"sale restock -config f " + id + " 0": 2,
		"sale create -config f --stock 1 --ends-at=-1h --title x --price 1 --currency EUR": 2,
		"audit -config f --sale 99":   1,
		"rebuild -config f --sale 99": 1,
	} {
		if out, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != exit {
			t.Errorf("%s: got %v, exit code %d, want %d\n%s", line, err, cli.ExitCode(err), exit, out)
		}
	}
	if out := must(t, c, "sale", "list", "-config", "f", "--token", annasToken); !strings.Contains(out, "A mug") {
		t.Errorf("a viewer's list: got %s", out)
	}
	if _, err := run(t.Context(), c, "sale", "pause", "-config", "f", id, "--token", annasToken); cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), "needs the role operator") {
		t.Errorf("a viewer's pause: got %v", err)
	}
	if _, err := run(t.Context(), c, "sale", "list", "-config", "f", "--token", "wrong"); cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), "FLOODGATE_OPERATOR_TOKEN") {
		t.Errorf("got %v", err)
	}
	if out := must(t, c, "audit-log", "-config", "f"); !strings.Contains(out, "admin  admin  sale.create") {
		t.Errorf("the audit log does not say who: got\n%s", out)
	}
	c.Token = "wrong"
	if _, err := run(t.Context(), c, "sale", "list", "-config", "f"); cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), "admin_token") {
		t.Errorf("got %v", err)
	}
}

// Row C1: a campaign on the command line.
func TestACampaignOnTheCommandLine(t *testing.T) {
	t.Attr("row", "C1")
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	words := strings.Fields("coupon create -config f --total 50 --valid-from=-1m --valid-until +720h --category shoes --per-user-limit 2 --guard version --unpublished --key k1 --json --title")
	var x adminapi.Sale
	if err := json.Unmarshal([]byte(must(t, c, append(words, "10 off")...)), &x); err != nil {
		t.Fatal(err)
	}
	if x.ID == 0 || x.Title != "10 off" || *x.Category != "shoes" || *x.Published || *x.Guard != "version" || x.PerUserLimit != 2 || x.Total != 50 || x.ValidUntil.Sub(x.ValidFrom.Time) != 720*time.Hour+time.Minute {
		t.Errorf("got %+v", x)
	}
	id := fmt.Sprint(x.ID)
	for _, step := range []struct{ line, want string }{
		{"coupon list -config f", "not published"},
		{"coupon get -config f " + id, "= 50 available + 0 issued (as MySQL has it), guarded by version"},
		{"coupon publish -config f " + id, "open"},
		{"coupon list -config f --json", `"published": true`},
		{"sale get -config f " + id, "coupon"},
		{"coupon unpublish -config f " + id, "not published"},
		{"audit -config f --sale " + id, "balanced"},
	} {
		if out := must(t, c, strings.Fields(step.line)...); !strings.Contains(out, step.want) {
			t.Errorf("%s: got\n%s\nwant %q in it", step.line, out, step.want)
		}
	}
	for line, exit := range map[string]int{
		"coupon get -config f 99":                                                          1,
		"coupon publish -config f 99":                                                      1,
		"coupon create -config f --title x --total 1 --valid-until=-1h":                    2,
		"coupon create -config f --title x --total 1 --valid-until +1h --per-user-limit 2": 2,
	} {
		if out, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != exit {
			t.Errorf("%s: got %v, exit code %d, want %d\n%s", line, err, cli.ExitCode(err), exit, out)
		}
	}
}

func TestAnUnbalancedAuditExitsWithOne(t *testing.T) {
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	must(t, c, strings.Fields("sale create -config f --stock 10 --price 1 --currency EUR --ends-at +1h --title x")...)
	store, err := reserve.Open(c.Redis, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r := store.Client()
	if err := r.Do(t.Context(), r.B().Hincrby().Key(store.Client().Prefix()+"{sale:1}:state").Field("stock").Increment(3).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), c, "audit", "-config", "f", "--all")
	if cli.ExitCode(err) != 1 || !strings.Contains(out, "NOT BALANCED") || !strings.Contains(out, "stock 13 + reserved 0 is not total 10") || !strings.Contains(out, "backend rebuild --sale 1") {
		t.Errorf("got %v\n%s", err, out)
	}
	var result audit.Result
	out, err = run(t.Context(), c, "audit", "-config", "f", "--sale", "1", "--json")
	if e := json.Unmarshal([]byte(out), &result); e != nil || cli.ExitCode(err) != 1 || result.Balanced || len(result.Findings) == 0 {
		t.Errorf("got %v, %v\n%s", err, e, out)
	}
	if out := must(t, c, "rebuild", "-config", "f", "--sale", "1"); !strings.Contains(out, "balanced") {
		t.Errorf("got %s", out)
	}
	watching, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	if out, err := run(watching, c, strings.Fields("audit -config f --all --watch --every 10ms")...); err != nil || strings.Count(out, "balanced") < 2 {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestDeadLettersOnTheCommandLine(t *testing.T) {
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	if out := must(t, c, strings.Fields("dead-letters list -config f")...); !strings.Contains(out, "there are no dead letters") {
		t.Errorf("got %s", out)
	}
	db := backendtest.OpenMySQL(t, c.MySQL, 1)
	redis, err := reserve.Open(c.Redis, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	reg, clk := prometheus.NewRegistry(), new(clock.Clock)
	book := order.NewStore(order.Config{DB: db, Redis: redis, Clock: clk, Log: c.Log, Register: reg})
	box := deadletter.NewStore(deadletter.Config{DB: db, Orders: book, Clock: clk, Log: c.Log, Register: reg})
	for i := range 120 { // more than a page
		if err := box.Take(t.Context(), queued.DeadMessage{Queue: "fg.orders.0", Reason: "it is no order", Payload: fmt.Appendf(nil, "garbage %d\xff", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct{ line, want string }{
		{"dead-letters list -config f", "it is no order"},
		{"dead-letters list -config f --json", `"encoding": "base64"`},
		{"queue -config f", "120 dead letters"},
		{"dead-letters replay -config f 3", "unreadable"},
		{"dead-letters replay -config f 3 --json", `"result": "unreadable"`},
		{"dead-letters list -config f --open", "119 dead letters"},
		{"dead-letters replay -config f --all", "119 dead letters were replayed: 119 unreadable"},
		{"dead-letters replay -config f --all", "0 dead letters were replayed"},
		{"queue -config f", "; 0 dead letters"},
	} {
		if out := must(t, c, strings.Fields(step.line)...); !strings.Contains(out, step.want) {
			t.Errorf("%s: got\n%s\nwant %q in it", step.line, out, step.want)
		}
	}
	for line, exit := range map[string]int{"dead-letters replay -config f 999": 1, "dead-letters replay -config f": 2, "dead-letters replay -config f --all 3": 2} {
		if out, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != exit {
			t.Errorf("%s: got %v, exit code %d, want %d\n%s", line, err, cli.ExitCode(err), exit, out)
		}
	}
}

func TestALogOfAnswersIsHeldAgainstTheStores(t *testing.T) {
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	must(t, c, strings.Fields("sale create -config f --stock 10 --price 1 --currency EUR --ends-at +1h --starts-at=-1m --per-user-limit 2 --title x")...)
	store, err := reserve.Open(c.Redis, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	press := func(uid, key string) string {
		id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), 1)
		if v, err := store.Reserve(t.Context(), reserve.Request{Sale: 1, UID: uid, Quantity: 1, OrderID: id, Key: key, Epoch: 1}); err != nil || v.Answer != lua.Reserved {
			t.Fatalf("got %+v, %v", v, err)
		}
		return id
	}
	ann, bob, again := press("ann", "k1"), press("bob", "k2"), press("ann", "k3")
	log := filepath.Join(t.TempDir(), "answers.jsonl")
	write := func(lines ...string) {
		if err := os.WriteFile(log, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	true1 := fmt.Sprintf(`{"uid":"ann","sale":1,"key":"k1","status":202,"order_id":%q}`, ann)
	true2 := fmt.Sprintf(`{"uid":"bob","sale_id":1,"idempotency_key":"k2","status":202,"order_id":%q,"at":"now"}`, bob)
	write(true1, true1, "", true2, `{"uid":"cyd","sale":1,"status":409,"code":"SOLD_OUT"}`)
	for _, line := range []string{"audit -config f --answers ", "audit -config f --all --answers ", "audit -config f --sale 1 --answers "} {
		if out := must(t, c, append(strings.Fields(line), log)...); !strings.Contains(out, "4 answers: 3 accepted, 1 refused, 0 of unknown outcome; 2 orders promised, 2 of them queued, 0 lost") || !strings.Contains(out, "balanced") {
			t.Errorf("%s: got\n%s", line, out)
		}
	}
	write(true1, strings.Replace(true2, bob, wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), 1), 1))
	out, err := run(t.Context(), c, "audit", "-config", "f", "--answers", log)
	if cli.ExitCode(err) != 1 || !strings.Contains(out, "line 2: every 202 is an order in MySQL does not hold") || !strings.Contains(err.Error(), "the log of answers contradicts the stores") {
		t.Errorf("got %v\n%s", err, out)
	}
	var both struct {
		Balanced bool
		Sales    []audit.Result
		Answers  audit.Answered
	}
	out, err = run(t.Context(), c, "audit", "-config", "f", "--all", "--json", "--answers", log)
	if e := json.Unmarshal([]byte(out), &both, json.MatchCaseInsensitiveNames(true)); e != nil || cli.ExitCode(err) != 1 || both.Balanced || len(both.Sales) != 1 || !both.Sales[0].Balanced || both.Answers.Lost != 1 || both.Answers.Findings[0].Line != 2 {
		t.Errorf("got %v, %v\n%s", err, e, out)
	}
	for name, c2 := range map[string]struct{ line, want, order string }{
		"two orders under one key":        {fmt.Sprintf(`{"uid":"ann","sale":1,"key":"k1","status":202,"order_id":%q}`, again), "line 3: one Idempotency-Key is one order does not hold", again},
		"a refused request with an order": {`{"uid":"ann","sale":1,"key":"k3","status":409,"code":"SOLD_OUT"}`, "line 3: a refused request has no order does not hold", again},
	} {
		write(true1, true2, c2.line)
		if out, err := run(t.Context(), c, "audit", "-config", "f", "--answers", log); cli.ExitCode(err) != 1 || !strings.Contains(out, c2.want+"\n  where  order "+c2.order) {
			t.Errorf("%s: got %v\n%s", name, err, out)
		}
	}
	write(true1, "{")
	if _, err := run(t.Context(), c, "audit", "-config", "f", "--answers", log); cli.ExitCode(err) != 2 || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v", err)
	}
	if _, err := run(t.Context(), c, "audit", "-config", "f"); cli.ExitCode(err) != 2 {
		t.Errorf("got %v", err)
	}
}

//go:build servers

package command

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// desk is a sale of ten, limit 3, and an operator who audits it on the command line.
type desk struct {
	t     *testing.T
	c     Config
	db    *sql.DB
	redis *reserve.Store
	book  *order.Store
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, c: backend(t)}
	must(t, d.c, "migrate", "-config", "f")
	must(t, d.c, strings.Fields("sale create -config f --stock 10 --price 1 --currency EUR --starts-at=-1m --ends-at +1h --per-user-limit 3 --title x")...)
	var err error
	if d.redis, err = reserve.Open(d.c.Redis, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.redis.Close)
	if err := d.redis.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.db = backendtest.OpenMySQL(t, d.c.MySQL, 2)
	d.book = order.NewStore(order.Config{DB: d.db, Redis: d.redis, Clock: new(clock.Clock), Log: d.c.Log, Register: prometheus.NewRegistry()})
	return d
}

func (d *desk) press(uid string, quantity int) string {
	d.t.Helper()
	id := wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), 1)
	if v, err := d.redis.Reserve(d.t.Context(), reserve.Request{Sale: 1, UID: uid, Quantity: quantity, OrderID: id, Epoch: 1}); err != nil || v.Answer != lua.Reserved {
		d.t.Fatalf("got %+v, %v", v, err)
	}
	return id
}

// settle brings what is queued to MySQL.
func (d *desk) settle() {
	d.t.Helper()
	entries, bad, err := d.redis.Outbox(d.t.Context(), 1)
	if err != nil || len(bad) > 0 {
		d.t.Fatal(bad, err)
	}
	for _, step := range []func(context.Context, []queued.Entry) error{d.book.Settle, d.book.Retire} {
		if err := step(d.t.Context(), entries); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *desk) exec(statement string, args ...any) {
	d.t.Helper()
	r, err := d.db.ExecContext(d.t.Context(), statement, args...)
	if err != nil {
		d.t.Fatalf("%s: %v", statement, err)
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		d.t.Fatalf("%s: %d rows, %v", statement, n, err)
	}
}

// command changes Redis by hand: it must change something.
func (d *desk) command(words ...string) {
	d.t.Helper()
	c := d.redis.Client()
	if err := c.Do(d.t.Context(), c.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build()).Error(); err != nil {
		d.t.Fatalf("%v: %v", words, err)
	}
}

// finds audits a sale that is not balanced and returns the one finding that begins with this equation; equations are those
// of all findings.
func (d *desk) finds(equation string, equations ...string) audit.Finding {
	d.t.Helper()
	out, err := run(d.t.Context(), d.c, "audit", "-config", "f", "--sale", "1", "--json")
	var r audit.Result
	if e := json.Unmarshal([]byte(out), &r); e != nil || cli.ExitCode(err) != 1 || r.Balanced {
		d.t.Fatalf("got %v, %v, want a sale that is not balanced and exit code 1\n%s", err, e, out)
	}
	var got []string
	var found []audit.Finding
	for _, f := range r.Findings {
		got = append(got, f.Equation)
		if strings.HasPrefix(f.Equation, equation) {
			found = append(found, f)
		}
	}
	if slices.Sort(equations); !slices.Equal(slices.Compact(got), equations) || len(found) != 1 {
		d.t.Fatalf("got %v, want one finding of %s, and all of %q", r.Findings, equation, equations)
	}
	return found[0]
}

// follow does what a finding says: the command in it.
func (d *desk) follow(f audit.Finding) {
	d.t.Helper()
	_, line, ok := strings.Cut(f.Fix, "backend rebuild ")
	if !ok {
		d.t.Fatalf("%+v names no command", f)
	}
	words := strings.Fields(line)
	must(d.t, d.c, append([]string{"rebuild", "-config", "f"}, words[:2]...)...)
}

// balanced audits a sale that has these units where it says.
func (d *desk) balanced(available, queued, locked int64) {
	d.t.Helper()
	var r audit.Result
	if err := json.Unmarshal([]byte(must(d.t, d.c, "audit", "-config", "f", "--sale", "1", "--json")), &r); err != nil {
		d.t.Fatal(err)
	}
	if got, want := [3]int64{r.Available, r.Queued, r.Locked}, [3]int64{available, queued, locked}; got != want {
		d.t.Errorf("available, queued, locked: got %v, want %v", got, want)
	}
}

func TestAnOrderRowDeletedByHandInMySQLIsFound(t *testing.T) {
	d := newDesk(t)
	ann := d.press("ann", 2)
	d.press("bob", 1)
	d.settle()
	d.balanced(7, 0, 3)
	d.exec(`CREATE TABLE kept AS SELECT * FROM orders WHERE id = ?`, ann)
	d.exec(`DELETE FROM orders WHERE id = ?`, ann)
	equations := []string{"R = L ∪ (O \\ M)", "locked + sold = |L|, |L| <= T", "slots = units of L", "sum of the ledger = change of the stock"}
	f := d.finds("R = L", equations...)
	if f.OrderID != ann || !strings.Contains(f.Detail, "uid ann holds 2 units") || !strings.HasPrefix(f.Fix, "put the row back") || !strings.Contains(f.Fix, "do not rebuild before") {
		t.Errorf("got %+v, want it to name ann's order, and to put the row back", f)
	}
	d.exec(`INSERT INTO orders SELECT * FROM kept`)
	d.balanced(7, 0, 3)
}

func TestAStockChangedByHandInRedisIsFound(t *testing.T) {
	d := newDesk(t)
	d.press("ann", 2)
	d.press("bob", 1)
	d.settle()
	d.balanced(7, 0, 3)
	d.command("HSET", d.redis.Client().Prefix()+"{sale:1}:state", "stock", "9")
	f := d.finds("S + |R|", "S + |R| = T in Redis")
	if f.Key != "{sale:1}:state" || f.Detail != "stock 9 + reserved 3 is not total 10" {
		t.Errorf("got %+v, want it to name the key and the sum", f)
	}
	d.follow(f)
	d.balanced(7, 0, 3)
}

// An order whose entry is gone, and that no broker holds, is queued again by a rebuild: its reservation has all that it needs.
func TestAnOutboxEntryDeletedByHandIsFound(t *testing.T) {
	d := newDesk(t)
	ann := d.press("ann", 2)
	d.press("bob", 1)
	d.balanced(7, 3, 0)
	queued, _, err := d.redis.Outbox(t.Context(), 1)
	if err != nil || queued[0].ID != ann {
		t.Fatal(queued, err)
	}
	d.command("XDEL", d.redis.OutboxKey(1), queued[0].Entry)
	f := d.finds("R = L", "R = L ∪ (O \\ M)")
	if f.OrderID != ann || f.Key != "{sale:1}:outbox" || !strings.Contains(f.Detail, "neither in the outbox nor in MySQL") || !strings.HasSuffix(f.Fix, "which queues it again") {
		t.Errorf("got %+v, want it to name ann's order, and what queues it again", f)
	}
	told := filepath.Join(t.TempDir(), "answers.jsonl")
	if err := os.WriteFile(told, fmt.Appendf(nil, `{"uid":"ann","sale":1,"status":202,"order_id":%q}`, ann), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t.Context(), d.c, "audit", "-config", "f", "--answers", told); cli.ExitCode(err) != 1 || !strings.Contains(out, "line 1: every 202 is an order in MySQL does not hold\n  where  order "+ann) {
		t.Errorf("got %v\n%s", err, out)
	}
	d.follow(f)
	d.balanced(7, 3, 0)
	d.settle() // ann's; bob's is adopted
	d.settle()
	d.balanced(7, 0, 3)
}

//go:build servers

package command

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// settled makes orders in MySQL, one of each buyer, and returns their ids.
func settled(t *testing.T, c Config, sale int64, uids ...string) []string {
	t.Helper()
	redis, err := reserve.Open(c.Redis, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	if err := redis.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	book := order.NewStore(order.Config{DB: backendtest.OpenMySQL(t, c.MySQL, 1), Redis: redis, Clock: new(clock.Clock), Log: c.Log, Register: prometheus.NewRegistry()})
	var ids []string
	for _, uid := range uids {
		ids = append(ids, wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale))
		if v, err := redis.Reserve(t.Context(), reserve.Request{Sale: sale, UID: uid, Quantity: 1, OrderID: ids[len(ids)-1], Epoch: 1}); err != nil || v.Answer != lua.Reserved {
			t.Fatalf("got %+v, %v", v, err)
		}
	}
	snap, err := redis.Snapshot(t.Context(), sale)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(book.Settle(t.Context(), snap.Outbox), book.Retire(t.Context(), snap.Outbox)); err != nil {
		t.Fatal(err)
	}
	return ids
}

func (c Config) steps(t *testing.T, steps [][2]string) {
	t.Helper()
	for _, step := range steps {
		if out := must(t, c, strings.Fields(step[0])...); !strings.Contains(out, step[1]) {
			t.Errorf("%s: got\n%s\nwant %q in it", step[0], out, step[1])
		}
	}
}

func TestASaleFromItsOrdersToTheArchive(t *testing.T) {
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	must(t, c, strings.Fields("sale create -config f --stock 10 --price 1 --currency EUR --starts-at=-1m --ends-at +1h --title x")...)
	ids := settled(t, c, 1, "ann", "bob")
	file := filepath.Join(t.TempDir(), "orders.csv")
	c.steps(t, [][2]string{
		{"orders search -config f --uid ann", ids[0]},
		{"orders search -config f --sale 1 --status pending_payment --json", `"uid": "bob"`},
		{"orders search -config f --sale 1 --limit 1", ids[1]},
		{"orders export -config f 1", "order_id,sale_id,uid,"},
		{"orders export -config f 1 --to " + file, ""},
		{"orders cancel -config f " + ids[0], "is cancelled (support)"},
		{"orders cancel -config f --json " + ids[0], `"status": "cancelled"`},
		{"sale close -config f 1", "closed for good"},
	})
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if rows, err := csv.NewReader(f).ReadAll(); err != nil || len(rows) != 3 || rows[1][0] != ids[0] || rows[2][2] != "bob" {
		t.Errorf("got %v, %v", rows, err)
	}
	if _, err := os.Stat(file + ".part"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the part: %v", err)
	}
	for line, want := range map[string]string{
		"sale archive -config f 1": "1 orders are pending_payment", "orders cancel -config f " + strings.Replace(ids[0], "-1", "-2", 1): "ORDER_NOT_FOUND",
		"orders export -config f 9 --to " + file: "no sale 9", "sale concentration -config f 1": "takes no orders",
	} {
		if _, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
	for line, want := range map[string]string{"orders search -config f --status queued": "status", "orders search -config f --uid a/b": "uid"} {
		if _, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a usage error about %s", line, err, want)
		}
	}
	c.steps(t, [][2]string{
		{"orders cancel -config f " + ids[1], "is cancelled"},
		{"sale archive -config f 1", "archived 2"},
		{"sale archive -config f 1 --json", `"archived_at": "2`},
		{"audit -config f --sale 1", "balanced"},
		{"orders search -config f --uid bob", "support"},
		{"audit-log -config f", "sale.archive"},
		{"audit-log -config f --limit 1 --json", `"entries"`},
	})
	if out := must(t, c, "audit-log", "-config", "f", "--target", "order "+ids[1]); !strings.Contains(out, "order.cancel") || strings.Contains(out, "sale.") {
		t.Errorf("got %s", out)
	}
}

// Row D13.
func TestListsOnTheCommandLine(t *testing.T) {
	t.Attr("row", "D13")
	c := backend(t)
	must(t, c, "migrate", "-config", "f")
	must(t, c, strings.Fields("sale create -config f --stock 10 --price 1 --currency EUR --starts-at=-1m --ends-at +1h --title x")...)
	const many = 2*eligibility.MaxChunk + 5
	var uids []string
	for i := range many {
		uids = append(uids, fmt.Sprintf("u%05d", i))
	}
	dir := t.TempDir()
	write := func(name string, lines ...string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	all := write("all", append([]string{"# registered", "", "  u00000  "}, uids...)...)
	fewer := write("fewer", append([]string{"new"}, uids[10:]...)...)
	bad := write("bad", "ann", "b b")
	c.steps(t, [][2]string{
		{"bans list -config f", ""},
		{"bans add -config f ann bob --key k", "2 added, 0 removed: the list has 2 uids"},
		{"bans add -config f ann bob --key k", "2 added, 0 removed: the list has 2 uids"}, // the first answer
		{"bans add -config f bob", "0 added, 0 removed"},
		{"bans remove -config f bob", "0 added, 1 removed: the list has 1 uids"},
		{"bans list -config f", "ann\n"},
		{"bans list -config f --json", `"size": 1`},
		{"bans add -config f --file " + all, fmt.Sprintf("%d added, 0 removed: the list has %d uids", many, many+1)},
		{"bans remove -config f --file " + all + " ann", fmt.Sprintf("0 added, %d removed: the list has 0 uids", many+1)},
		{"eligible list -config f 1 --json", `"active": false`},
		{"eligible set -config f 1 --file " + all, fmt.Sprintf("%d added, 0 removed: the list has %d uids", many, many)},
		{"eligible set -config f 1 --file " + all, fmt.Sprintf("0 added, 0 removed: the list has %d uids", many)},
		{"eligible set -config f 1 --file " + fewer, fmt.Sprintf("1 added, 10 removed: the list has %d uids", many-9)},
		{"eligible add -config f 1 ann", "1 added"},
		{"eligible remove -config f 1 ann new", "2 removed"},
	})
	if got := strings.Fields(must(t, c, strings.Fields("eligible list -config f 1")...)); !slices.Equal(got, uids[10:]) {
		t.Errorf("got %d uids, want %d", len(got), many-10)
	}
	c.steps(t, [][2]string{{"eligible lift -config f 1", "there is no list, anybody may buy"}, {"eligible list -config f 1", ""}})
	for line, exit := range map[string]int{"eligible add -config f 1 ann": 1, "eligible list -config f 9": 1, "bans add -config f --file " + bad: 2} {
		if out, err := run(t.Context(), c, strings.Fields(line)...); cli.ExitCode(err) != exit {
			t.Errorf("%s: got %v, exit code %d, want %d\n%s", line, err, cli.ExitCode(err), exit, out)
		}
	}
	if _, err := run(t.Context(), c, "bans", "add", "-config", "f", "--file", bad); err == nil || !strings.Contains(err.Error(), `line 2: "b b"`) {
		t.Errorf("got %v", err)
	}
}

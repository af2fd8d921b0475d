package e2e

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var writeRows = flag.Bool("write-rows", false, "write docs/rows.md anew")

// rows are the parts that the system is made of, by the ids that tests name them with.
var rows = []struct{ id, what string }{
	{"A1", "an order before the start or after the end of a sale is refused, each with its reason"},
	{"A2", "an order is refused when nothing is left"},
	{"A3", "no oversell at the database: a conditional decrement in the order's transaction"},
	{"A4", "a limit for each user, in Redis and by a unique key"},
	{"A5", "a distributed lock with an owner token, released by its owner alone"},
	{"A6", "the lock is re-entrant; who is refused learns the lease that is left"},
	{"A7", "the lock is renewed while its holder lives; protected writes carry a fencing token"},
	{"A8", "order ids unique across processes, ordered in time, without asking a database"},
	{"A9", "a bounded queue in the process: waits when empty, pushes back when full"},
	{"B1", "creating a sale writes the database and loads Redis"},
	{"B2", "one script decides, with an answer of its own for each case"},
	{"B3", "the slow write is asynchronous, and the death of a process loses nothing accepted"},
	{"B4", "a stream with a consumer group: entries of the dead are claimed, poison goes to the dead letters"},
	{"B5", "the consumer checks again in its transaction; a failed check ends in a row"},
	{"B6", "a cold sale is loaded, orders in flight subtracted; an unknown id is no load on the database"},
	{"B7", "operators see the queue and its dead letters, and replay them"},
	{"C1", "coupons: the category that a claim may ask for, publishing, validity, a limit for each user, used exactly once"},
	{"C2", "no coupon too many, with several processes issuing"},
	{"C3", "a version column as a selectable guard beside the conditional decrement"},
	{"C4", "a renewing lock where one is needed, its lease configurable, which outlives the crash of its holder"},
	{"D1", "the page: a greyed button, one order per x seconds, the server's clock"},
	{"D2", "a limit for each uid in the gateway's own memory"},
	{"D3", "a page cache; who is over the limit gets the page there is"},
	{"D4", "a bounded line before the database, told at once when the stock is gone"},
	{"D5", "reads come from the cache: MySQL is asked by what keeps it fresh, not by readers"},
	{"D6", "stock released in timed tranches"},
	{"D7", "readers see available or sold out, never a count"},
	{"D8", "ordering and paying are separate steps"},
	{"D9", "a local sold-out mark that clears when stock returns; a refused duplicate eats no stock; a restart resets none"},
	{"D10", "a global bucket that waits a bounded time for a token"},
	{"D11", "a request without a valid login is refused"},
	{"D12", "bounded, fair concurrency; a line too long for what is left is turned away; a sale's stock lives in Redis, where its script, one call at a time, stands for the compare-and-swap"},
	{"D13", "limits by address, bans and invitations that change at run time, a report of concentration"},
	{"E1", "available + locked + sold = total for each SKU, in MySQL and in Redis; of a sale that is its stock row in MySQL, and stock + reservations = total in Redis"},
	{"E2", "reading stock loads Redis once, however many ask"},
	{"E3", "a cart: each line on its own, and the answer says which"},
	{"E4", "the reduce script's four answers"},
	{"E5", "a ledger row for each change, with before and after"},
	{"E6", "Redis is rebuilt from the database and its ledger by one command"},
	{"E7", "idempotent by order number, seconds or days later"},
	{"E8", "every script runs on a Redis Cluster"},
	{"E9", "optimistic and pessimistic updates, each where it is right"},
	{"E10", "a SKU is replenished while it sells"},
}

// naming is how a comment names rows: "Row A1: ...", "Rows C4 and E2: ...", "Row E3, Row D2: ...". A comment alone shows nothing.
var naming = regexp.MustCompile(`\b[Rr]ows? ((?:[A-E]\d+(?:,? and |, |)(?:[Rr]ow )?)+)`)

// Every row has a test that says, when it runs, that it shows it, t.Attr("row", "A7") or for several "A7 C4", and docs/rows.md says
// which. Make test holds docs/rows.md against the tests that ran and passed.
func TestEveryRowHasItsTests(t *testing.T) {
	named := namedRows(t)
	var doc strings.Builder
	doc.WriteString("# Where each part is built and shown\n\n" +
		"Each part of the system, the packages that have tests of it, and the tests. Written from what the tests say of themselves,\n" +
		"`t.Attr(\"row\", ...)`, by `go test ./e2e -run TestEveryRowHasItsTests -write-rows`. `make check` holds it against their source,\n" +
		"`make test` against the tests that ran and passed.\n\n" +
		"| row | what must work | package | tests |\n|---|---|---|---|\n")
	for _, r := range rows {
		tests := named[r.id]
		delete(named, r.id)
		if len(tests) == 0 {
			t.Errorf("row %s (%s): no test names it", r.id, r.what)
		}
		for i, pkg := range slices.Sorted(maps.Keys(tests)) {
			id, what := r.id, r.what
			if i > 0 {
				id, what = "", ""
			}
			slices.Sort(tests[pkg])
			fmt.Fprintf(&doc, "| %s | %s | `%s` | %s |\n", id, what, pkg, strings.Join(tests[pkg], ", "))
		}
	}
	for id, tests := range named {
		t.Errorf("row %s is none, and named by %v", id, tests)
	}
	const path = "../docs/rows.md"
	if *writeRows {
		if err := os.WriteFile(path, []byte(doc.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != doc.String() {
		t.Errorf("docs/rows.md is not what the tests say (%v): go test ./e2e -run TestEveryRowHasItsTests -write-rows", err)
	}
}

// namedRows is row → package → tests.
func namedRows(t *testing.T) map[string]map[string][]string {
	t.Helper()
	named := map[string]map[string][]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "build" || d.Name() == ".run" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			shown := shownRows(f)
			for _, id := range shown {
				if named[id] == nil {
					named[id] = map[string][]string{}
				}
				if !slices.Contains(named[id][pkg], f.Name.Name) {
					named[id][pkg] = append(named[id][pkg], f.Name.Name)
				}
			}
			for _, m := range naming.FindAllStringSubmatch(strings.Join(strings.Fields(f.Doc.Text()), " "), -1) {
				for _, id := range regexp.MustCompile(`[A-E]\d+`).FindAllString(m[1], -1) {
					if !slices.Contains(shown, id) {
						t.Errorf("%s: the comment of %s names row %s, the test does not: add t.Attr(\"row\", %q) to it", path, f.Name.Name, id, id)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return named
}

// shownRows are the rows that a test says it shows: the fields of each t.Attr("row", "A7 C4") in it.
func shownRows(test *ast.FuncDecl) (ids []string) {
	ast.Inspect(test, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || method.Sel.Name != "Attr" {
			return true
		}
		key, ok := call.Args[0].(*ast.BasicLit)
		value, ok2 := call.Args[1].(*ast.BasicLit)
		if ok && ok2 && key.Value == `"row"` {
			ids = append(ids, strings.Fields(strings.Trim(value.Value, `"`))...)
		}
		return true
	})
	return ids
}

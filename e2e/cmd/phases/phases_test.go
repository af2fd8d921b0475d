package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkout makes a module of these files the working directory.
func checkout(t *testing.T, files map[string]string) {
	t.Helper()
	at := t.TempDir()
	files["go.mod"] = "module floodgate.internal\n\ngo 1.26\n"
	for name, text := range files {
		name = filepath.Join(at, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(at)
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// One run tells all: phases after one that failed, and beside it, run to their end; the table says of each what failed; what a failed
// test said is shown, and is in the phase's log.
func TestOneRunTellsAll(t *testing.T) {
	checkout(t, map[string]string{
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Attr(\"row\", \"A1 B2\") }\n\nfunc TestBad(t *testing.T) {\n\tt.Attr(\"row\", \"A2\")\n\tt.Run(\"sub\", func(t *testing.T) { t.Error(\"one and one is three\") })\n}\n",
		"b/b_test.go": "package b\n\nimport \"testing\"\n\nfunc TestBuilt(t *testing.T) { t.Nonsense() }\n",
		"c/c_test.go": "package c\n\nimport \"testing\"\n\nfunc TestLast(t *testing.T) {}\n",
		"d/d_test.go": "package d\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestEnds(t *testing.T) { os.Exit(3) }\n",
		"docs/rows.md": "| row | what must work | package | tests |\n|---|---|---|---|\n| A1 | x | `a` | TestGood |\n|  |  | `c` | TestLast |\n" +
			"| A2 | y | `a` | TestBad |\n",
	})
	lanes := [][]phase{
		{{name: "first", packages: []string{"./a"}}, {name: "second", packages: []string{"./..."}, but: []string{"./a", "./d"}}},
		{{name: "beside", packages: []string{"./d"}}, {name: "nowhere", packages: []string{"./e"}}, {name: "last", packages: []string{"./c"}}},
		{{name: "plain", command: []string{"sh", "-c", "echo badly formatted; exit 3"}}, {name: "fine", command: []string{"true"}}},
	}
	var out strings.Builder
	results := runLanes(t.Context(), lanes, &out)
	if !strings.Contains(out.String(), "one and one is three") || !strings.Contains(out.String(), "t.Nonsense undefined") ||
		!strings.Contains(out.String(), "badly formatted") {
		t.Errorf("what failed is not shown:\n%s", out.String())
	}
	var text strings.Builder
	if table(&text, append(results, checkRows(results))) {
		t.Error("all is said to be good")
	}
	got := strings.Fields(text.String())
	// The columns of time are left out.
	want := strings.Fields(`phase result tests took CPU
		first FAILED 1 T s T s
			floodgate.internal/a TestBad/sub
		second FAILED 1 T s T s
			floodgate.internal/b
		beside FAILED 0 T s T s
			floodgate.internal/d TestEnds
		nowhere FAILED 0 T s T s`)
	for i, field := range want {
		if field != "T" && (i >= len(got) || got[i] != field) {
			t.Fatalf("got\n%s\nwant %q as field %d", text.String(), field, i)
		}
	}
	for _, line := range []string{
		"last      ok          1", "sh -c echo badly formatted; exit 3: exit status 3", "fine      ok", "A1 c TestLast: docs/rows.md says", "A2 a TestBad: docs/rows.md says", "B2 a TestGood: it ran, and docs/rows.md does not have it",
	} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("got\n%s\nwant %q in it", text.String(), line)
		}
	}
	if strings.Contains(text.String(), "A1 a TestGood") {
		t.Errorf("a row that was shown is missed:\n%s", text.String())
	}
	log, err := os.ReadFile(filepath.Join(dir, "first.log"))
	if err != nil || !strings.Contains(string(log), "one and one is three") || !strings.Contains(string(log), "go test -json") {
		t.Errorf("the log holds %q, %v", log, err)
	}
}

// Without a failure the table is short and all is good.
func TestAllIsGood(t *testing.T) {
	checkout(t, map[string]string{
		"a/a_test.go":  "package a\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {\n\tt.Run(\"sub\", func(t *testing.T) { t.Attr(\"row\", \"A1\") })\n}\n",
		"docs/rows.md": "| A1 | x | `a` | TestGood |\n",
	})
	var out, text strings.Builder
	results := runLanes(t.Context(), [][]phase{{{name: "only", packages: []string{"./..."}}}}, &out)
	if !table(&text, append(results, checkRows(results))) || len(strings.Split(strings.TrimSpace(text.String()), "\n")) != 3 {
		t.Errorf("got\n%s\n%s", text.String(), out.String())
	}
}

func TestChoose(t *testing.T) {
	chosen := func(names ...string) string {
		t.Helper()
		some, err := choose(names)
		if err != nil || len(some) != len(lanes) {
			t.Fatalf("got %v, %v", some, err)
		}
		var found []string
		for _, lane := range some {
			for _, p := range lane {
				found = append(found, p.name)
			}
		}
		return strings.Join(found, " ")
	}
	if got := chosen("e2e", "model"); got != "model e2e" {
		t.Errorf("got %q", got)
	}
	if got := chosen("cluster"); got != "cluster" {
		t.Errorf("got %q", got)
	}
	// What cluster and nodes run is in other phases, too.
	if got := chosen(); got != "scripts modules planted lint model e2e deploy faults" {
		t.Errorf("got %q", got)
	}
	if _, err := choose([]string{"e2e", "nonsense"}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v, want it to name what is no phase", err)
	}
}

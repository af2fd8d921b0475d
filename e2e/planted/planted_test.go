//go:build servers

package planted

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/e2e/made"
)

// workers is how many bugs are tried at the same time, each in a tree of its own.
const workers = 2

// bench is where bugs are tried.
type bench struct {
	trees chan tree
	// scripts is held by who needs Redis to keep its scripts, and locked by who makes it forget them.
	scripts sync.RWMutex

	mu      sync.Mutex // guards what follows
	results map[string]caught
	tried   int
}

// on gives a tree to f.
func (b *bench) on(f func(tree)) {
	r := <-b.trees
	defer func() { b.trees <- r }()
	f(r)
}

// TestEveryPlantedBugIsCaught first shows that the named tests, and the day, pass in a copy of the tree as it is.
func TestEveryPlantedBugIsCaught(t *testing.T) {
	began, by := time.Now(), made.By("go test -tags servers ./e2e/planted")
	all := bugs(t)
	b := &bench{trees: make(chan tree, workers), results: map[string]caught{}}
	for range workers {
		b.trees <- newTree(t)
	}
	bin := t.TempDir()
	b.on(func(r tree) {
		if err := r.build(t.Context(), bin); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("unchanged", func(t *testing.T) { b.unchanged(t, all, bin) })
	if t.Failed() {
		t.Fatal("without a bug the tests do not pass: what they say of one means nothing")
	}
	t.Run("planted", func(t *testing.T) {
		for _, bug := range all {
			t.Run(bug.name, func(t *testing.T) {
				t.Parallel()
				b.on(func(r tree) { b.try(t, r, bug, bin) })
			})
		}
	})
	if b.tried < len(all) { // -run chose some
		return
	}
	text := table(by, all, b.results, time.Since(began))
	file := filepath.Join(root(t), "build", "planted.md")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unchanged runs every named test, package by package, and a day of each kind.
func (b *bench) unchanged(t *testing.T, all []bug, bin string) {
	var days []string
	tests, alone := map[string][]string{}, map[string]bool{}
	for _, bug := range all {
		if !slices.Contains(tests[bug.pkg], bug.test) {
			tests[bug.pkg] = append(tests[bug.pkg], bug.test)
		}
		alone[bug.pkg] = alone[bug.pkg] || bug.alone
		if bug.day != "" && !slices.Contains(days, bug.day) {
			days = append(days, bug.day)
		}
	}
	for _, kind := range days {
		t.Run("a day with "+kind, func(t *testing.T) {
			t.Parallel()
			b.on(func(r tree) {
				b.scripts.RLock()
				defer b.scripts.RUnlock()
				d := newDay(t, r, bin, bin, kind)
				d.live()
				d.untilBalanced()
			})
		})
	}
	for pkg := range tests {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			b.on(func(r tree) {
				if alone[pkg] {
					b.scripts.Lock()
					defer b.scripts.Unlock()
				} else {
					b.scripts.RLock()
					defer b.scripts.RUnlock()
				}
				output, failed, err := r.run(pkg, tests[pkg])
				if err != nil || failed {
					t.Fatalf("%v\n%s", err, output)
				}
			})
		})
	}
}

// try plants a bug and asks who notices.
func (b *bench) try(t *testing.T, r tree, bug bug, bin string) {
	b.mu.Lock()
	b.tried++
	b.mu.Unlock()
	undo, err := r.plant(bug)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := undo(); err != nil {
			panic("BUG: a planted bug cannot be taken out again: " + err.Error())
		}
	}()
	var c caught
	if c.said = b.test(t, r, bug); t.Failed() {
		return
	}
	if bug.day != "" {
		if c.found = b.day(t, r, bug, bin); t.Failed() {
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results[bug.name] = c
}

// test returns the line with which the named test caught the bug.
func (b *bench) test(t *testing.T, r tree, bug bug) string {
	if bug.alone {
		b.scripts.Lock()
		defer b.scripts.Unlock()
	} else {
		b.scripts.RLock()
		defer b.scripts.RUnlock()
	}
	began := time.Now()
	output, failed, err := r.run(bug.pkg, []string{bug.test})
	switch {
	case err != nil:
		t.Fatalf("with the bug planted: %v\n%s", err, output)
	case !failed:
		t.Fatalf("NOT CAUGHT: %s passes with the bug planted (%s)", bug.test, bug.what)
	case !regexp.MustCompile(`(?m)^\s*--- FAIL: ` + regexp.QuoteMeta(bug.test) + ` `).MatchString(output):
		t.Fatalf("the package failed, but not %s:\n%s", bug.test, output)
	}
	said := lineWith(output, bug.says)
	if said == "" {
		t.Fatalf("%s fails, but does not say %q:\n%s", bug.test, bug.says, output)
	}
	t.Logf("%.1f s: caught by %s: %s", time.Since(began).Seconds(), bug.test, said)
	return said
}

// day returns the finding with which the auditor caught the bug.
func (b *bench) day(t *testing.T, r tree, bug bug, bin string) string {
	b.scripts.RLock()
	defer b.scripts.RUnlock()
	began := time.Now()
	mine := filepath.Join(r.dir, "build")
	if err := r.build(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	d := newDay(t, r, mine, bin, bug.day)
	d.live()
	found := d.untilFound(bug.finds)
	t.Logf("%.1f s: found by the auditor: %s", time.Since(began).Seconds(), strings.ReplaceAll(found, "\n", " "))
	return found
}

package faults

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

var mark = regexp.MustCompile(`failpoint\.(?:Hit|Halfway|Sent|Wrote)\("([^"]+)"`)

// points are the names of all failpoints in the sources of the binaries.
func points(t *testing.T) []string {
	t.Helper()
	root, err := stack.Root()
	world.Must(t, err)
	var names []string
	for _, module := range []string{"backend", "gateway", "shared"} {
		err := filepath.WalkDir(filepath.Join(root, module), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range mark.FindAllSubmatch(b, -1) {
				names = append(names, string(m[1]))
			}
			return err
		})
		world.Must(t, err)
	}
	slices.Sort(names)
	if unique := slices.Compact(slices.Clone(names)); len(unique) != len(names) {
		t.Errorf("a failpoint's name is used twice: %v", names)
	}
	return names
}

func read(t *testing.T, dir string) (both []byte) {
	t.Helper()
	for _, name := range []string{"backend", "gateway"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		world.Must(t, err)
		both = append(both, b...)
	}
	return both
}

// TestProductionHasNoFailpoints holds the default build against the one with the tag: no name of a failpoint, no function
// of the package and not the variable's name is in it.
func TestProductionHasNoFailpoints(t *testing.T) {
	plain, tagged := t.TempDir(), t.TempDir()
	world.Must(t, world.Build(plain))
	world.Must(t, world.Build(tagged, "-tags", "failpoint"))
	without, with := read(t, plain), read(t, tagged)
	names := points(t)
	if len(names) < 30 {
		t.Errorf("only %d failpoints are in the sources: %v", len(names), names)
	}
	for _, s := range append(names, "FLOODGATE_FAILPOINT", "shared/failpoint.") {
		if !bytes.Contains(with, []byte(s)) {
			t.Errorf("the build with the tag does not hold %q", s)
		}
		if bytes.Contains(without, []byte(s)) {
			t.Errorf("the default build holds %q", s)
		}
	}
}

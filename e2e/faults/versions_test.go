//go:build servers

package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// next is what a next version changes that an older one beside it meets: the text of a script, so its name in Redis; the format of a
// message of several orders; a table, by a migration.
var next = []struct{ file, old, new string }{
	{"lua/sale_reserve.lua", "local ", "-- the next version\nlocal "},
	{"backend/broker/message.go", "int32(1)", "int32(2)"},
	{"backend/store/migrations/90000_next.sql", "", "-- +goose Up\nALTER TABLE orders ADD COLUMN of_the_next_version INT NOT NULL DEFAULT 7;\n"},
}

// buildNext makes the binaries of a next version, from the tree as it is and an overlay.
func buildNext(t *testing.T, dir string) {
	t.Helper()
	root, err := stack.Root()
	world.Must(t, err)
	overlay := map[string]map[string]string{"Replace": {}}
	for i, c := range next {
		path := filepath.Join(root, c.file)
		text := []byte{}
		if c.old != "" {
			text, err = os.ReadFile(path)
			world.Must(t, err)
		}
		changed := strings.Replace(string(text), c.old, c.new, 1)
		if changed == string(text) {
			t.Fatalf("%s has no %q", c.file, c.old)
		}
		replacement := filepath.Join(dir, fmt.Sprint("next-", i))
		world.Must(t, os.WriteFile(replacement, []byte(changed), 0o600))
		overlay["Replace"][path] = replacement
	}
	b, err := json.Marshal(overlay)
	world.Must(t, err)
	file := filepath.Join(dir, "overlay.json")
	world.Must(t, os.WriteFile(file, b, 0o600))
	world.Must(t, world.Build(dir, "-overlay", file))
	backend, err := os.ReadFile(filepath.Join(dir, "backend"))
	world.Must(t, err)
	if !bytes.Contains(backend, []byte(next[0].new)) {
		t.Fatalf("the next version does not hold %q", next[0].new)
	}
}

// upgraded rolls a system of several of each to a next version, part by part, and back, in the order of docs/upgrading.md. In between, members of
// both versions work side by side.
func upgraded(t *testing.T, w *system) disorder {
	dir := t.TempDir()
	buildNext(t, dir)
	newer := *w.World
	newer.Bin = dir
	var order []world.Part // of the upgrade
	for _, name := range []string{"consumer", "timer", "relay", "api", "gateway"} {
		for _, part := range w.Parts {
			if part.Name == name {
				order = append(order, part)
			}
		}
	}
	replace := func(s *trial, of *world.World, part world.Part, i int) {
		s.Helper()
		m := part.Members[i]
		var args []string
		if part.Name != "gateway" {
			args = []string{"-roles", part.Name}
		}
		world.Must(s.T, m.Stop(s.ctx))
		m.Process = of.Process(m.Name(), nil, args...)
		world.Must(s.T, m.Start(s.ctx))
		part.Members[i] = m
	}
	return disorder{
		what: "the same: a next version comes, and goes again", injected: "SIGTERM and the other version started, one after the other", times: 2, twice: true,
		strike: func(s *trial) {
			if len(order) != len(w.Parts) {
				s.Fatalf("%d of %d parts are upgraded", len(order), len(w.Parts))
			}
			_, err := world.Command(s.ctx, filepath.Join(dir, "backend"), "migrate", "-config", w.File("backend.yaml"))
			world.Must(s.T, err)
			world.Must(s.T, w.Books.DB.QueryRowContext(s.ctx, "SELECT MAX(of_the_next_version) FROM orders").Err())
			s.settling(100) // by those that know nothing of it
			for _, part := range order {
				for i := range part.Members {
					replace(s, &newer, part, i)
					s.settling(50)
				}
			}
			for j := range order {
				part := order[len(order)-1-j]
				for i := range part.Members {
					replace(s, w.World, part, i)
					s.settling(50)
				}
			}
		},
		heal: func(*trial) {},
	}
}

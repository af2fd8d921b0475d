package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// installed returns copies of the units whose programs are there.
func installed(t *testing.T) []string {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze: build/stack install deploy")
	}
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("got %v, %v, want two units", units, err)
	}
	dir := t.TempDir()
	for _, program := range []string{"gateway", "backend"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		units[i] = filepath.Join(dir, filepath.Base(unit))
		if err := os.WriteFile(units[i], []byte(strings.ReplaceAll(string(text), "/usr/local/bin", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return units
}

// systemd finds nothing wrong with the units; it would say so of a key that it does not know and of a program that is not there.
func TestUnits(t *testing.T) {
	for _, unit := range installed(t) {
		out, err := exec.Command("systemd-analyze", "verify", unit).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", filepath.Base(unit), err, out)
		}
	}
}

// What systemd says of a unit's exposure, from 0 (none) to 10, is at most 2. The threshold is in tenths.
func TestUnitsAreConfined(t *testing.T) {
	for _, unit := range installed(t) {
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(unit), err, out)
		}
	}
}

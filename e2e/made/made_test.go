package made

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A page names the commit, and says so where the tree differs from it; documents do not count.
func TestCommit(t *testing.T) {
	dir := t.TempDir()
	if got := commitOf(dir); got != "unknown" {
		t.Errorf("outside of a checkout: got %q, want unknown", got)
	}
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b.example"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q")
	write("main.go", "package main\n")
	write("docs/speed.md", "old\n")
	git("add", ".")
	git("commit", "-q", "-m", "a commit")
	commit := git("rev-parse", "--short=12", "HEAD")
	for _, step := range []struct{ write, want string }{
		{"", commit}, {"docs/speed.md", commit}, {"README.md", commit}, {"new.go", commit + " with changes"},
	} {
		if step.write != "" {
			write(step.write, "new\n")
		}
		if got := commitOf(dir); got != step.want {
			t.Errorf("after a change of %q: got %q, want %q", step.write, got, step.want)
		}
	}
	write("main.go", "package main // changed\n")
	if err := os.Remove(filepath.Join(dir, "new.go")); err != nil {
		t.Fatal(err)
	}
	if got := commitOf(dir); got != commit+" with changes" {
		t.Errorf("after a change of main.go: got %q", got)
	}
}

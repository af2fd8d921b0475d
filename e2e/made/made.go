// Package made says where a generated page comes from: the command, the day, the commit and the machine.
package made

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"floodgate.internal/e2e/stack"
)

// Commit names the checkout's commit by 12 digits. " with changes" follows where a file that git does not ignore differs from it,
// documents aside: a page that was copied to docs/ changes nothing that is measured. Without git it is "unknown".
func Commit() string {
	root, err := stack.Root()
	if err != nil {
		return "unknown"
	}
	return commitOf(root)
}

func commitOf(dir string) string {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	changed, err := git("status", "--porcelain", "--", ".", ":(exclude)docs", ":(exclude)*.md")
	if err != nil || changed != "" {
		return commit + " with changes"
	}
	return commit
}

// By is a page's sentence on itself, for a run that begins now: ask for it before the run.
func By(command string) string {
	return fmt.Sprintf("Made by `%s` on %s UTC, at commit %s, on %d processors.", command, time.Now().UTC().Format("2006-01-02 15:04"), Commit(), runtime.NumCPU())
}

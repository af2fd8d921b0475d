//go:build servers

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"floodgate.internal/e2e/world"
)

// TestTheCommandsOfThePagesRun runs what a newcomer copies: every block marked sh of these pages, from top to bottom, in one shell on
// one system. A command that fails ends it.
func TestTheCommandsOfThePagesRun(t *testing.T) {
	t.Parallel()
	w := newSystem(t, world.Options{})
	dir := t.TempDir()
	w.must(os.Symlink(w.Bin, filepath.Join(dir, "build")))
	w.must(os.Symlink(w.Dir, filepath.Join(dir, ".run")))
	address := strings.NewReplacer("http://127.0.0.1:8080", w.PublicURL(), "http://127.0.0.1:8081", w.Ports.OpsURL())
	var script strings.Builder
	for _, name := range []string{"first-sale.md", "first-hour.md", "shop.md", "running-a-sale.md"} {
		page, err := os.ReadFile(filepath.Join("../docs", name))
		w.must(err)
		blocks := strings.Split(string(page), "\n```sh\n")[1:]
		if len(blocks) == 0 {
			t.Errorf("docs/%s has no block marked sh", name)
		}
		for _, b := range blocks {
			text, _, ended := strings.Cut(b, "\n```")
			if !ended {
				t.Fatalf("docs/%s: a block does not end", name)
			}
			script.WriteString(address.Replace(text) + "\n")
		}
	}
	cmd := exec.CommandContext(w.ctx, "bash", "-eux", "-o", "pipefail", "-c", script.String())
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v after\n%s", err, out.String())
	}
	if got := out.String(); !strings.Contains(got, `"status":"paid"`) || !strings.Contains(got, `"result":"refund_due"`) {
		t.Errorf("the first order is not paid, or a payment for it once more is not to be given back:\n%s", got)
	}
}

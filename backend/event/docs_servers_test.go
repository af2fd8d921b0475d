//go:build servers

package event

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The shell commands of docs/events.md come to the signature that was sent.
func TestTheShellVerifiesASignature(t *testing.T) {
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "\n```sh\n")
	block, _, ended := strings.Cut(block, "\n```")
	if !ended {
		t.Fatal("docs/events.md has no block marked sh")
	}
	dir := t.TempDir()
	cmd := exec.Command("bash", "-eu", "-o", "pipefail", "-c", block)
	cmd.Dir = dir
	var sent string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "body.json"), body, 0o600); err != nil {
			t.Error(err)
		}
		sent = r.Header.Get("webhook-signature")
		cmd.Env = append(os.Environ(), "SHOP_WEBHOOK_SECRET="+string(whsec(32)), "id="+r.Header.Get("webhook-id"), "timestamp="+r.Header.Get("webhook-timestamp"))
	}))
	defer s.Close()
	if err := try(t, s.URL, true); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || "v1,"+strings.TrimSpace(string(out)) != sent {
		t.Errorf("got %q, %v; want %q", out, err, sent)
	}
}

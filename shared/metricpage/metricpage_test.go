package metricpage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// heard is a test that only notes its errors.
type heard struct {
	testing.TB
	errors []string
}

func (h *heard) Helper() {}
func (h *heard) Errorf(format string, args ...any) {
	h.errors = append(h.errors, fmt.Sprintf(format, args...))
}

func TestHold(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "a_size_bytes", Help: "How \"big\"."}),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "a_done_total", Help: "Done."}, []string{"x", "y"}), // has no value
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_b", Help: "Another's."}))
	page := filepath.Join(t.TempDir(), "metrics.md")
	text := "# Page\n<!-- a -->\n<!-- end of a -->\nend\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	hold := func(write bool) string {
		h := &heard{TB: t}
		Hold(h, page, "a", write, reg)
		return strings.Join(h.errors, "\n")
	}
	if got := hold(false); !strings.Contains(got, "lacks:\n| `a_done_total` | counter | x, y | Done. |") {
		t.Errorf("a metric without a row: got %q", got)
	}
	if got := hold(true); got != "" {
		t.Errorf("got %q", got)
	}
	if got := hold(false); got != "" {
		t.Errorf("as it was written: got %q", got)
	}
	replace := func(old, new string) {
		t.Helper()
		b, err := os.ReadFile(page)
		if err != nil || !strings.Contains(string(b), old) {
			t.Fatalf("got %q, %v, want %q in it", b, err, old)
		}
		if err := os.WriteFile(page, []byte(strings.Replace(string(b), old, new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("| Done. |  |\n", "| Done. | Many are good. |\n| `a_gone` | gauge |  | Gone. |  |\n")
	if got := hold(false); !strings.Contains(got, "has, and a has not:\n| `a_gone`") || strings.Contains(got, "Many are good") {
		t.Errorf("a row without a metric: got %q", got)
	}
	hold(true)
	if got, err := os.ReadFile(page); err != nil || !strings.Contains(string(got), "| Many are good. |") || strings.Contains(string(got), "a_gone") || !strings.HasSuffix(string(got), "\nend\n") {
		t.Errorf("written anew: got %s, %v", got, err)
	}
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "a_bad_total", Help: "A gauge."}))
	if got := hold(true); !strings.Contains(got, "a_bad_total is a gauge") {
		t.Errorf("got %q", got)
	}
}

package backend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No error of a configuration shows a secret, or what came from the environment, whatever is wrong with it.
func TestNoErrorShowsASecret(t *testing.T) {
	setSample(t)
	sample, err := os.ReadFile("../configs/backend.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const canary = "c4nary9f2e"
	file := filepath.Join(t.TempDir(), "backend.yaml")
	refused := 0
	try := func(what, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadConfig(file)
		if err == nil {
			return
		}
		refused++
		if strings.Contains(strings.ToLower(err.Error()), canary) || !strings.Contains(err.Error(), file+": ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	lines := strings.Split(string(sample), "\n")
	for i, line := range lines {
		name, value, ok := strings.Cut(line, ": ")
		if !ok || strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		put := func(value string) string {
			return strings.Join(append(append(append([]string(nil), lines[:i]...), name+": "+value), lines[i+1:]...), "\n")
		}
		for k, v := range []string{canary, "$" + canary, "u:" + canary + "@h", "[" + canary + "]", "{" + canary + ": 1}", "amqp://u:" + canary + "@%zz", "\"" + canary, "u:" + canary + "@tcp(h)/", "http://" + canary} {
			t.Setenv("LEAK", v)
			styles := []string{`"${LEAK}"`, "[${LEAK}]", `["${LEAK}"]`, "{a: ${LEAK}}"}
			for _, style := range []string{"${LEAK}", styles[(i+k)%len(styles)]} { // each value in each style, on some line
				try(fmt.Sprintf("%s: %s of %q", name, style, v), put(style))
			}
		}
		if strings.Contains(value, "${") { // the sample's secrets
			for _, v := range []string{canary, "$" + canary, "*" + canary, "!" + canary, "@" + canary, "\"" + canary, "[" + canary, "{" + canary, canary + ": x", "{" + canary + ": x}", "[" + canary + "]", canary + "\n" + canary, "dev-" + canary, "!!int " + canary, "'" + canary + "' x"} {
				try(fmt.Sprintf("%s: %q", name, v), put(v))
			}
		}
	}
	if refused < 500 {
		t.Errorf("%d files were refused: this test tries next to nothing", refused)
	}
}

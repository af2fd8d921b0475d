package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"floodgate.internal/backend"
	"floodgate.internal/gateway"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/problem"
)

var writeReference = flag.Bool("write-reference", false, "write the reference pages of docs/ anew")

// The reference pages say what the code does: every configuration key, problem code and command.
func TestReferencePages(t *testing.T) {
	const made = "\nMade of the code: `go test -count=1 ./e2e -run TestReferencePages -write-reference`.\n\n"
	for name, write := range map[string]func(*bytes.Buffer) error{
		"keys.md": func(b *bytes.Buffer) error {
			b.WriteString("# Which keys do the configuration files have?\n\nThe samples `configs/gateway.yaml` and `configs/backend.yaml` are commented the same way. Any\nvalue may come from the environment, `${NAME}`. A key that is not here is an error.\n" + made + "## The gateway's file\n\n")
			if err := conf.Reference(b, gateway.DefaultConfig(), "../configs/gateway.yaml"); err != nil {
				return err
			}
			b.WriteString("\n## The backend's file\n\n")
			return conf.Reference(b, backend.DefaultConfig(), "../configs/backend.yaml")
		},
		"problems.md": func(b *bytes.Buffer) error {
			b.WriteString("# What does each problem code mean, and what does a client do?\n\nEvery refusal is `application/problem+json` with a `code`. 429 and 503 carry Retry-After.\n" + made)
			return problem.Reference(b)
		},
		"commands.md": func(b *bytes.Buffer) error {
			b.WriteString("# Which commands are there?\n\nThe gateway and the backend serve; their other commands are for operators. `gateway man`\nand `backend man` print manual pages (`backend man | man -l -`), `completion bash`, `zsh` or `fish`\na script for the shell.\n" + made)
			err := gateway.Run(t.Context(), []string{"man", "--markdown"}, b, b)
			if err == nil {
				b.WriteString("\n")
				err = backend.Run(t.Context(), []string{"man", "--markdown"}, b, b)
			}
			return err
		},
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if *writeReference {
			if err := os.WriteFile("../docs/"+name, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		there, err := os.ReadFile("../docs/" + name)
		if err != nil || !bytes.Equal(there, b.Bytes()) {
			t.Errorf("docs/%s is not what the code says, %v: %s%s", name, err, firstDifference(string(there), b.String()), made)
		}
	}
}

// firstDifference is the first line in which two texts differ.
func firstDifference(a, b string) string {
	old, new := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(old), len(new)) {
		if old[i] != new[i] {
			return fmt.Sprintf("line %d is %q, and should be %q", i+1, old[i], new[i])
		}
	}
	return "one is longer"
}

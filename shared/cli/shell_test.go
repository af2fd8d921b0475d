package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// shelled is a grammar with something of everything. Its words would be requests, escapes or the end of a quotation.
type shelled struct {
	Serve struct {
		Config string `required:"" placeholder:"FILE" help:"The file."`
	} `cmd:"" default:"withargs" help:"Serve."`
	Sale struct {
		Create struct {
			Kind  string `enum:"goods,coupon" default:"goods" help:"'Goods' or \\coupon."`
			Title string `help:".TH is no request"`
			JSON  bool   `name:"json" help:"JSON."`
		} `cmd:"" help:"Make one: it's $(date) and 'quoted'."`
		List struct{} `cmd:"" help:"List."`
	} `cmd:"" help:"Sales."`
	Secret     struct{}          `cmd:"" hidden:"" help:"Not told."`
	Completion CompletionCommand `cmd:"" help:"Complete."`
	Man        ManCommand        `cmd:"" help:"Manual."`
}

// printed is what the program prints.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var g shelled
	var out bytes.Buffer
	kc, err := Parse(&g, args, &out, &out, kong.Name("prog"), kong.Description("A program.\n\nMore of it."))
	if err == nil {
		err = kc.Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "prog.bash")
	for name, text := range map[string]string{script: printed(t, "completion", "bash"), filepath.Join(dir, "some.yaml"): ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"prog ":                     "completion man sale serve --config",
		"prog s":                    "sale serve",
		"prog sale ":                "create list",
		"prog sale c":               "create",
		"prog sale create --":       "--json --kind --title",
		"prog sale create --kind ":  "coupon goods",
		"prog sale create -kind g":  "goods",
		"prog sale create --kind =": "coupon goods",
		"prog sale create --title ": "",
		"prog --config so":          "some.yaml",
		"prog serve --config so":    "some.yaml",
		"prog completion ":          "bash fish zsh",
		"prog sale sale ":           "create list",
	} {
		words := strings.Split(line, " ")
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = quote(w)
		}
		run := exec.Command(bash, "--norc", "-c", fmt.Sprintf(`. %s; COMP_WORDS=(%s); COMP_CWORD=%d; _prog; printf '%%s\n' "${COMPREPLY[@]}"`, script, strings.Join(quoted, " "), len(words)-1))
		run.Dir = dir
		out, err := run.CombinedOutput()
		got := strings.Fields(string(out))
		if err != nil || !sameWords(got, strings.Fields(want)) {
			t.Errorf("%q: got %q, %v; want %q", line, got, err, want)
		}
	}
}

func sameWords(got, want []string) bool {
	if len(got) != len(want) {
		return false
	}
	have := map[string]bool{}
	for _, w := range got {
		have[w] = true
	}
	for _, w := range want {
		if !have[w] {
			return false
		}
	}
	return true
}

// The scripts of the other shells hold each command and flag, nothing that is hidden, and are well formed by the shell where it is there.
func TestOtherShellsComplete(t *testing.T) {
	for _, shell := range []string{"zsh", "fish"} {
		text := printed(t, "completion", shell)
		for _, word := range []string{"serve", "sale", "create", "list", "completion", "man", "config", "kind", "title", "json"} {
			if !strings.Contains(text, word) {
				t.Errorf("%s: %s is missing", shell, word)
			}
		}
		if strings.Contains(text, "secret") {
			t.Errorf("%s: it tells of what is hidden", shell)
		}
		if path, err := exec.LookPath(shell); err == nil {
			run := exec.Command(path, "-n")
			run.Stdin = strings.NewReader(text)
			if out, err := run.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", shell, err, out)
			}
		}
	}
}

func TestThePageIsWellFormed(t *testing.T) {
	text := printed(t, "man")
	for _, word := range []string{".TH PROG 1", "prog \\- A program.", "More of it.", `.SS "sale create"`, "prog sale create [flags]", `\-\-kind=KIND`, `'Goods' or \ecoupon. Default: goods.`, `\&.TH is no request`} {
		if !strings.Contains(text, word) {
			t.Errorf("there is no %q in\n%s", word, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("it tells of what is hidden")
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("there is no groff to read it")
	}
	run := exec.Command(groff, "-man", "-Tascii", "-ww", "-z")
	run.Stdin = strings.NewReader(text)
	if out, err := run.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("got %v: %s", err, out)
	}
}

func TestTheMarkdownHasEveryCommand(t *testing.T) {
	text := printed(t, "man", "--markdown")
	for _, word := range []string{"## prog\n", "### prog sale create\n", "prog serve --config=FILE\n", "- `--config=FILE`: The file. Required.", "- `<shell>`: bash, zsh or fish."} {
		if !strings.Contains(text, word) {
			t.Errorf("there is no %q in\n%s", word, text)
		}
	}
}

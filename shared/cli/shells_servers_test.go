//go:build servers

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lines is what somebody has written, up to the cursor, and what the shells offer then. An empty word is the last of its line.
var lines = []struct{ line, want string }{
	{"prog s", "sale serve"},
	{"prog sale ", "create list"},
	{"prog sale c", "create"},
	{"prog sale create --", "--json --kind --title"},
	{"prog sale create --kind ", "coupon goods"},
	{"prog sale create -kind g", "goods"},
	{"prog sale create --title ", ""},
	{"prog --config so", "some.yaml"},
	{"prog serve --config so", "some.yaml"},
	{"prog serve -config so", "some.yaml"},
	{"prog completion ", "bash fish zsh"},
	{"prog sale sale ", "create list"},
	{"prog sale create --kind=", "--kind=coupon --kind=goods"},
	{"prog serve --config=so", "--config=some.yaml"},
}

// complete runs a shell in a directory with the program's completion and a file, and returns what it prints.
func complete(t *testing.T, shell, script string, files map[string]string) string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Fatalf("%v: build/stack install shells", err)
	}
	dir := t.TempDir()
	files["completion"], files["some.yaml"] = printed(t, "completion", shell), ""
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.Command(path, "-c", script)
	run.Dir = dir
	run.Env = append(os.Environ(), "HOME="+dir, "ZDOTDIR="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir, "TERM=dumb")
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func offered(t *testing.T, shell string, answers []string) {
	t.Helper()
	if len(answers) != len(lines) {
		t.Fatalf("got %d answers to %d lines: %q", len(answers), len(lines), answers)
	}
	for i, l := range lines {
		got, want := strings.Fields(answers[i]), strings.Fields(l.want)
		slices.Sort(got)
		if !slices.Equal(slices.Compact(got), want) {
			t.Errorf("%s, %q: got %q, want %q", shell, l.line, got, want)
		}
	}
}

func TestFishCompletes(t *testing.T) {
	var script strings.Builder
	script.WriteString("source completion\n")
	for _, l := range lines {
		script.WriteString("complete -C " + quote(l.line) + " | string replace -r '\\t.*' ''; echo END\n")
	}
	offered(t, "fish", strings.Split(strings.TrimSuffix(complete(t, "fish", script.String(), map[string]string{}), "END\n"), "END\n"))
}

// zshInner is what a zsh at a terminal reads first: what completion would offer goes to a pipe.
const zshInner = `PROMPT= RPROMPT=
autoload -Uz compinit && compinit -u -D
source ./completion
exec 3> offers
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
  local -a hits
  builtin compadd -A hits "$@"
  local before=${IPREFIX}
  (( $#hits )) && print -rlu3 -- "$before"${^hits}
  return $(( $#hits == 0 ))
}
probe() { zle complete-word; BUFFER=; print -u3 END }
zle -N probe
bindkey '^T' probe
`

// zshOuter types the lines at it, and prints what comes through the pipe.
const zshOuter = `zmodload zsh/zpty && mkfifo offers && zpty inner zsh -f -i && zpty -w inner 'source ./inner'
exec 3< offers
while IFS= read -r line <&4; do
  zpty -w -n inner "$line"$'\x14'
  while IFS= read -r answer <&3; do print -r -- "$answer"; [[ $answer == END ]] && break; done
done 4< lines
zpty -d inner
`

func TestZshCompletes(t *testing.T) {
	var typed strings.Builder
	for _, l := range lines {
		typed.WriteString(l.line + "\n")
	}
	out := complete(t, "zsh", zshOuter, map[string]string{"inner": zshInner, "lines": typed.String()})
	offered(t, "zsh", strings.Split(strings.TrimSuffix(out, "END\n"), "END\n"))
}

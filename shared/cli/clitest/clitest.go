// Package clitest holds a program's commands against what is printed of them.
package clitest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Described fails the test for each command, and each flag of one, that is not in the completion of every shell, in the manual page and
// in the help. run is the program.
func Described(t *testing.T, commands *kong.Application, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	t.Helper()
	printed := func(args ...string) string {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out, &out); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		return out.String()
	}
	shells := []string{"bash", "zsh", "fish"}
	texts := map[string]string{"man": strings.ReplaceAll(printed("man"), `\-`, "-")}
	for _, shell := range shells {
		texts[shell] = printed("completion", shell)
	}
	for _, leaf := range commands.Leaves(true) {
		path := strings.TrimPrefix(leaf.Path(), commands.Name+" ")
		help := printed(append(strings.Fields(path), "--help")...)
		if !strings.Contains(strings.Join(strings.Fields(help), " "), leaf.Help) ||
			!strings.Contains(texts["man"], "\n.SS \""+path+"\"\n"+strings.ReplaceAll(leaf.Help, `\`, `\e`)+"\n") {
			t.Errorf("%s: help or manual do not say %q", path, leaf.Help)
		}
		for _, shell := range shells {
			if !strings.Contains(texts[shell], "' "+path+"'") {
				t.Errorf("%s is not in the completion of %s", path, shell)
			}
		}
		for _, f := range leaf.Flags {
			for name, text := range texts {
				flag := "--" + f.Name
				if name == "fish" {
					flag = " -l " + f.Name + " "
				}
				if !strings.Contains(text, flag) || !strings.Contains(help, "--"+f.Name) {
					t.Errorf("%s --%s is not in %s or not in the help", path, f.Name, name)
				}
			}
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"completion", "tcsh"}, &out, &out); err == nil {
		t.Error("there is a completion for tcsh")
	}
}

package backend

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"floodgate.internal/shared/version"
)

// Every command, and every flag of it, is in the completion of each shell, in the manual page and in the help.
func TestEveryCommandIsCompletedAndDescribed(t *testing.T) {
	var g grammar
	k, err := kong.New(&g, kong.Vars{"version": version.This().Line("backend")})
	if err != nil {
		t.Fatal(err)
	}
	printed := func(args ...string) string {
		var out bytes.Buffer
		if err := Run(t.Context(), args, &out, &out); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		return out.String()
	}
	texts := map[string]string{"man": strings.ReplaceAll(printed("man"), `\-`, "-")}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		texts[shell] = printed("completion", shell)
	}
	for _, leaf := range k.Model.Leaves(true) {
		path := strings.TrimPrefix(leaf.Path(), k.Model.Name+" ")
		help := printed(append(strings.Fields(path), "--help")...)
		if !strings.Contains(strings.Join(strings.Fields(help), " "), leaf.Help) || !strings.Contains(texts["man"], "\n.SS \""+path+"\"\n"+strings.ReplaceAll(leaf.Help, `\`, `\e`)+"\n") {
			t.Errorf("%s: help or manual do not say %q", path, leaf.Help)
		}
		for _, shell := range []string{"bash", "zsh", "fish"} {
			if !strings.Contains(texts[shell], "' "+path+"'") {
				t.Errorf("%s is not in the completion of %s", path, shell)
			}
		}
		for _, f := range leaf.Flags {
			for name, text := range texts {
				if flag := map[bool]string{true: " -l " + f.Name + " ", false: "--" + f.Name}[name == "fish"]; !strings.Contains(text, flag) || !strings.Contains(help, "--"+f.Name) {
					t.Errorf("%s --%s is not in %s or not in the help", path, f.Name, name)
				}
			}
		}
	}
	var out bytes.Buffer
	if err := Run(t.Context(), []string{"completion", "tcsh"}, &out, &out); err == nil {
		t.Error("there is a completion for tcsh")
	}
}

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// CompletionCommand is the command "completion".
type CompletionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints a script that completes the program's commands, flags and files in a shell.
func (c CompletionCommand) Run(kc *kong.Context) error {
	return completion(kc.Stdout, kc.Model, c.Shell)
}

// Help says how it is used.
func (CompletionCommand) Help() string {
	return `Examples, for the program NAME:
  bash: source <(NAME completion bash)
  zsh, after compinit: source <(NAME completion zsh)
  fish: NAME completion fish | source`
}

// The scripts first find the command that the words before the cursor name, as " sale create". With NAME for the program's name.
const (
	bashHead = `_NAME() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at= words= i
  if [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [[ $cur == = ]]; then before=${COMP_WORDS[COMP_CWORD-1]} cur=; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${COMP_WORDS[i]}" in
      PATHS) at="$at ${COMP_WORDS[i]}" ;;
    esac
  done
`
	zshHead = `#compdef NAME
_NAME() {
  local at= word before=${words[CURRENT-1]}
  for word in "${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
      PATHS) at="$at $word" ;;
    esac
  done
  if [[ $PREFIX == -*=* ]]; then before=${PREFIX%%=*}; compset -P '*='; fi
`
	fishHead = `function __NAME_at
  set -l at ''
  for word in (commandline -opc)[2..-1]
    switch "$at $word"
      case PATHS
        set at "$at $word"
    end
  end
  test "$at" = "$argv[1]"
end
complete -c NAME -f
`
)

func completion(w io.Writer, app *kong.Application, shell string) error {
	all := commands(app.Node).all()
	var paths []string
	for _, c := range all[1:] {
		paths = append(paths, quote(" "+c.Path))
	}
	var b strings.Builder
	head := func(text, separator string) {
		b.WriteString(strings.NewReplacer("NAME", app.Name, "PATHS", strings.Join(paths, separator)).Replace(text))
	}
	switch shell {
	case "bash":
		head(bashHead, "|")
		values(&b, all, `  case "$at $before" in`, "    %s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", "    %s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", "    %s) return ;;\n")
		b.WriteString("  case $at in\n")
		for _, c := range all {
			fmt.Fprintf(&b, "    %s) words=%s ;;\n", quote(at(c)), quote(strings.Join(words(c), " ")))
		}
		fmt.Fprintf(&b, "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _%s %s\n", app.Name, app.Name)
	case "zsh":
		head(zshHead, "|")
		values(&b, all, `  case "$at $before" in`, "    %s) _files; return ;;\n", "    %s) compadd -- %s; return ;;\n", "    %s) return ;;\n")
		b.WriteString("  case $at in\n")
		for _, c := range all {
			fmt.Fprintf(&b, "    %s) compadd -- %s ;;\n", quote(at(c)), strings.Join(words(c), " "))
		}
		fmt.Fprintf(&b, "  esac\n}\ncompdef _%s %s\n", app.Name, app.Name)
	default:
		head(fishHead, " ")
		for _, c := range all {
			here := fmt.Sprintf("complete -c %s -n %s", app.Name, quote("__"+app.Name+"_at "+quote(at(c))))
			for _, child := range c.Children {
				fmt.Fprintf(&b, "%s -a %s -d %s\n", here, child.name(), quote(child.Help))
			}
			for _, a := range c.args {
				if a.Enum != "" {
					fmt.Fprintf(&b, "%s -a %s -d %s\n", here, quote(strings.ReplaceAll(a.Enum, ",", " ")), quote(a.Help))
				}
			}
			for _, f := range c.Flags {
				takes := " -x"
				switch {
				case f.IsBool() || f.IsCounter():
					takes = ""
				case takesFile(f):
					takes = " -r -F"
				case f.Enum != "":
					takes = " -x -a " + quote(strings.ReplaceAll(f.Enum, ",", " "))
				}
				fmt.Fprintf(&b, "%s -l %s -o %s%s -d %s\n", here, f.Name, f.Name, takes, quote(f.Help))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// at is what the scripts have found for a command: "" for the program.
func at(c *command) string {
	if c.Path == "" {
		return ""
	}
	return " " + c.Path
}

// words are what may follow a command.
func words(c *command) (list []string) {
	for _, child := range c.Children {
		list = append(list, child.name())
	}
	for _, a := range c.args {
		if a.Enum != "" {
			list = append(list, strings.Split(a.Enum, ",")...)
		}
	}
	for _, f := range c.Flags {
		list = append(list, "--"+f.Name)
	}
	return list
}

// values writes a case for each flag that takes a value: a file, one of a few words, or something that cannot be completed.
func values(b *strings.Builder, all []*command, begin, file, few, other string) {
	b.WriteString(begin + "\n")
	for _, c := range all {
		for _, f := range c.Flags {
			name := quote(at(c)+" --"+f.Name) + "|" + quote(at(c)+" -"+f.Name)
			switch {
			case f.IsBool() || f.IsCounter():
			case takesFile(f):
				fmt.Fprintf(b, file, name)
			case f.Enum != "":
				fmt.Fprintf(b, few, name, strings.ReplaceAll(f.Enum, ",", " "))
			default:
				fmt.Fprintf(b, other, name)
			}
		}
	}
	b.WriteString("  esac\n")
}

// quote is text as one word of each of the shells.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'"'"'`) + "'" }

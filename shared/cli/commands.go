package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// command is one command of a grammar, or the program itself, as completion, man page and reference show it.
type command struct {
	Path     string // "sale create"; "" for the program
	Summary  string // the command line, without the flags that may be left out
	Help     string
	Detail   string
	Children []*command
	Flags    []*kong.Flag // those of the commands above it included; not --help, and --version of the program alone
	args     []*kong.Positional
}

// commands is the tree of a program's commands. What --help hides is left out.
func commands(n *kong.Node) *command {
	c := &command{Help: n.Help, Detail: n.Detail, args: n.Positional}
	if n.Type != kong.ApplicationNode {
		c.Path = strings.TrimSpace(strings.TrimPrefix(n.FullPath(), root(n).Name))
	}
	c.Summary = strings.TrimSpace(root(n).Name + " " + strings.TrimPrefix(n.Summary(), root(n).Name))
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if f.Name != "help" && (f.Name != "version" || c.Path == "") {
				c.Flags = append(c.Flags, f)
			}
		}
	}
	for _, child := range n.Children {
		if !child.Hidden {
			c.Children = append(c.Children, commands(child))
		}
	}
	if n.DefaultCmd != nil { // its flags may stand without its name
		for _, f := range n.DefaultCmd.Flags {
			if !f.Hidden && !slices.Contains(c.Flags, f) {
				c.Flags = append(c.Flags, f)
			}
		}
	}
	return c
}

func root(n *kong.Node) *kong.Node {
	for n.Parent != nil {
		n = n.Parent
	}
	return n
}

// all is c and every command below it, each after its parent.
func (c *command) all() []*command {
	list := []*command{c}
	for _, child := range c.Children {
		list = append(list, child.all()...)
	}
	return list
}

// name is the command's own, without its parents'.
func (c *command) name() string { return c.Path[strings.LastIndexByte(c.Path, ' ')+1:] }

// shown is a flag with what it takes: "--config=FILE".
func shown(f *kong.Flag) string {
	if f.IsBool() || f.IsCounter() {
		return "--" + f.Name
	}
	if f.HasDefault && f.PlaceHolder == "" {
		return "--" + f.Name + "=" + strings.ToUpper(f.Name)
	}
	return "--" + f.Name + "=" + f.FormatPlaceHolder()
}

// told is what a flag is for, with what it is where it is left out, and the variable that it comes from.
func told(f *kong.Flag) string {
	text := f.Help
	if f.Required {
		text += " Required."
	}
	if f.HasDefault && f.Default != "" {
		text += " Default: " + f.Default + "."
	}
	for _, env := range f.Envs {
		text += " From the environment: " + env + "."
	}
	return text
}

// takesFile: what the flag takes is a file's name, by its placeholder.
func takesFile(f *kong.Flag) bool { return f.PlaceHolder == "FILE" || f.PlaceHolder == "LOG" }

// markdown writes of every command of a program what it is for, its flags, its examples.
func markdown(w io.Writer, app *kong.Application) error {
	var b strings.Builder
	for _, c := range commands(app.Node).all() {
		if c.Path == "" {
			fmt.Fprintf(&b, "## %s\n\n%s\n\n%s\n\n", app.Name, strings.TrimSpace(app.Help), "`"+app.Name+" --help`, `"+app.Name+" COMMAND --help` and `"+app.Name+" --version` say the same.")
			continue
		}
		if len(c.Children) > 0 {
			continue
		}
		fmt.Fprintf(&b, "### %s %s\n\n%s\n\n```\n%s\n```\n\n", app.Name, c.Path, c.Help, c.Summary)
		for _, a := range c.args {
			fmt.Fprintf(&b, "- `%s`: %s\n", a.Summary(), a.Help)
		}
		for _, f := range c.Flags {
			fmt.Fprintf(&b, "- `%s`: %s\n", shown(f), told(f))
		}
		if c.Detail != "" {
			fmt.Fprintf(&b, "\n```\n%s\n```\n", c.Detail)
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, strings.TrimSpace(b.String())+"\n")
	return err
}

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// ManCommand is the command "man".
type ManCommand struct {
	Markdown bool `help:"Print Markdown: a part of docs/commands.md."`
}

// Run prints the program's manual page, section 1, as roff with the macros of man(7).
func (c ManCommand) Run(kc *kong.Context) error {
	if c.Markdown {
		return markdown(kc.Stdout, kc.Model)
	}
	return man(kc.Stdout, kc.Model)
}

func man(w io.Writer, app *kong.Application) error {
	var b strings.Builder
	top := commands(app.Node)
	first, rest, _ := strings.Cut(strings.TrimSpace(app.Help), "\n")
	fmt.Fprintf(&b, ".TH %s 1 \"\" Floodgate \"Floodgate's manual\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(app.Name), roff(app.Name), roff(first))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n%s\n", roff(app.Name), roff(strings.TrimSpace(strings.TrimPrefix(top.Summary, app.Name))))
	if rest = strings.TrimSpace(rest); rest != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff(rest))
	}
	b.WriteString(".SH COMMANDS\n")
	for _, c := range top.all()[1:] {
		if len(c.Children) > 0 {
			continue
		}
		fmt.Fprintf(&b, ".SS \"%s\"\n%s\n.PP\n.nf\n%s\n.fi\n", roff(c.Path), roff(c.Help), roff(c.Summary))
		for _, a := range c.args {
			fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(a.Summary()), roff(a.Help))
		}
		for _, f := range c.Flags {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(shown(f)), roff(told(f)))
		}
		if c.Detail != "" {
			fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(c.Detail))
		}
	}
	b.WriteString(".SH EXIT STATUS\n.TP\n.B 0\nDone.\n.TP\n.B 1\nIt failed, or what it looked at is not as it should be.\n.TP\n.B 2\nThe command line or the configuration is wrong.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// roff is text as it stands in a page: nothing of it is a request or an escape.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

type grammar struct {
	Serve struct {
		Config string `required:"" help:"Configuration file."`
	} `cmd:"" default:"withargs" help:"Serve."`
	Mint struct {
		UID int `name:"uid" default:"1" help:"Whose."`
	} `cmd:"" help:"Mint."`
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args    []string
		command string
	}{
		{[]string{"-config", "a.yaml"}, "serve"},
		{[]string{"--config=a.yaml"}, "serve"},
		{[]string{"mint", "-uid=-5"}, "mint"},
		{[]string{"mint", "-uid=7"}, "mint"},
	} {
		var g grammar
		kc, err := Parse(&g, c.args, &bytes.Buffer{}, &bytes.Buffer{})
		if err != nil || kc.Command() != c.command {
			t.Errorf("%q: got %v, %v; want %s", c.args, kc, err, c.command)
		}
	}
}

func TestParseErrorsAreUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"mint", "-uid", "x"}, {"mint", "-nonsense"}, {"bogus"}} {
		var g grammar
		if _, err := Parse(&g, args, &bytes.Buffer{}, &bytes.Buffer{}); ExitCode(err) != 2 {
			t.Errorf("%q: got %v, want a usage error", args, err)
		}
	}
}

func TestHelpPrintsAndReturnsNothing(t *testing.T) {
	var g grammar
	var out bytes.Buffer
	kc, err := Parse(&g, []string{"-help"}, &out, &out)
	if kc != nil || err != nil || !strings.Contains(out.String(), "Mint.") {
		t.Errorf("got %v, %v, %q", kc, err, out.String())
	}
}

func TestExitCode(t *testing.T) {
	for want, err := range map[int]error{0: nil, 1: errors.New("broke"), 2: fmt.Errorf("config: %w", Usage("bad"))} {
		if got := ExitCode(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"floodgate.internal/shared/cli"
)

func TestBadCommandLines(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "demo"},
		{[]string{"dmeo"}, "dmeo"},
		{[]string{"demo", "-stock", "0"}, "-stock: 0"},
		{[]string{"demo", "-stock", "x"}, "stock"},
		{[]string{"demo", "-shoppers", "999"}, "-shoppers: 999"},
		{[]string{"demo", "-timeout", "0s"}, "-timeout: 0s"},
		{[]string{"run", "-port", "1"}, "-port"},
	} {
		var out, errs bytes.Buffer
		err := execute(t.Context(), c.args, &out, &errs)
		if err == nil || cli.ExitCode(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, exit code %d; want 2 and a message with %q", c.args, err, cli.ExitCode(err), c.want)
		}
	}
}

func TestInterruptedBeforeItIsUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := interrupted(ctx, ctx.Err()); err != nil {
		t.Errorf("got %v, want nil: it ends by Ctrl-C", err)
	}
	if err := interrupted(t.Context(), context.Canceled); err == nil {
		t.Error("got nil without a Ctrl-C")
	}
}

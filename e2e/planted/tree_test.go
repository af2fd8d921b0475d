//go:build servers

package planted

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// command is the go command in the tree. Paths are trimmed, so that both trees share what is built.
func (r tree) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{verb, "-trimpath"}, args...)...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK="+filepath.Join(r.dir, "go.work"))
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// build makes the binaries of a system in bin.
func (r tree) build(ctx context.Context, bin string) error {
	cmd := r.command(ctx, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", bin+"/", "./gateway/cmd/gateway", "./backend/cmd/backend")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// atMost bounds one run of go test, building included: far more than it takes.
const atMost = 5 * time.Minute

// run runs tests of one package and returns their output, also when they fail. An error is that they did not run.
func (r tree) run(pkg string, tests []string) (output string, failed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	cmd := r.command(ctx, "test", "-tags", "servers", "-count=1", "-vet=off", "-v", "-timeout", "4m", "-run", pattern(tests), pkg)
	out, err := cmd.CombinedOutput()
	output = string(out)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return output, true, fmt.Errorf("it does not end: %w", ctx.Err())
	case err != nil && !errors.As(err, &exit):
		return output, true, err
	}
	for _, broken := range []string{"[build failed]", "[setup failed]", "is not set: this test needs the real servers", "panic: test timed out"} {
		if strings.Contains(output, broken) {
			return output, true, fmt.Errorf("%s: %s", pkg, broken)
		}
	}
	for _, test := range tests {
		if !regexp.MustCompile(`(?m)^=== RUN +` + regexp.QuoteMeta(test) + `$`).MatchString(output) {
			return output, true, fmt.Errorf("there is no %s in %s, or it did not run", test, pkg)
		}
	}
	return output, err != nil, nil
}

// pattern is what -run takes for these tests: of subtests those that any of them names.
func pattern(tests []string) string {
	var tops, subs []string
	for _, test := range tests {
		top, sub, nested := strings.Cut(test, "/")
		tops = append(tops, regexp.QuoteMeta(top))
		if nested {
			subs = append(subs, regexp.QuoteMeta(sub))
		}
	}
	p := "^(" + strings.Join(tops, "|") + ")$"
	if len(tests) == 1 && len(subs) == 1 {
		p += "/^" + subs[0] + "$"
	}
	return p
}

// lineWith is the first line of the text that holds the words, without what go test puts before it and with single spaces;
// "" if there is none.
func lineWith(text, words string) string {
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); strings.Contains(line, words) {
			return position.ReplaceAllString(line, "")
		}
	}
	return ""
}

var position = regexp.MustCompile(`^\S+_test\.go:\d+: `)

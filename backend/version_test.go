package backend

import (
	"regexp"
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	line := regexp.MustCompile(`^backend \S+ \(\S+, go ` + regexp.QuoteMeta(strings.TrimPrefix(runtime.Version(), "go")) + `\)\n$`)
	for _, flag := range []string{"--version", "-version"} {
		var out, errs strings.Builder
		if err := Run(t.Context(), []string{flag}, &out, &errs); err != nil || !line.MatchString(out.String()) || errs.Len() > 0 {
			t.Errorf("%s: got %q, %v, stderr %q", flag, out.String(), err, errs.String())
		}
	}
}

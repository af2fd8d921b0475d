package gateway

import (
	"bytes"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	line := regexp.MustCompile(`^gateway \S+ \(\S+, go ` + regexp.QuoteMeta(strings.TrimPrefix(runtime.Version(), "go")) + `\)\n$`)
	for _, flag := range []string{"--version", "-version"} {
		var out, errs bytes.Buffer
		if err := Run(t.Context(), []string{flag}, &out, &errs); err != nil || !line.MatchString(out.String()) || errs.Len() > 0 {
			t.Errorf("%s: got %q, %v, stderr %q", flag, &out, err, &errs)
		}
	}
}

func TestBuildInfo(t *testing.T) {
	g := run(t, []string{newPeer(t).addr})
	want := regexp.MustCompile(`(?m)^gateway_build_info\{commit="[^"]+",goversion="` + regexp.QuoteMeta(runtime.Version()) + `",version="[^"]+"\} 1$`)
	if got := g.do("GET", "http://"+g.ops+"/metrics").body; !want.MatchString(got) {
		t.Errorf("got %s, want %s", got, want)
	}
}

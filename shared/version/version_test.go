package version

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestOf(t *testing.T) {
	stamped := func(version, revision, modified string) *debug.BuildInfo {
		i := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}}
		i.Main.Version = version
		return i
	}
	for _, c := range []struct {
		version, commit string
		info            *debug.BuildInfo
		want            string
	}{
		{"", "", nil, "gateway devel (unknown, go 1.26.3)"},
		{"", "", &debug.BuildInfo{}, "gateway devel (unknown, go 1.26.3)"},
		{"", "", stamped("(devel)", "", ""), "gateway devel (unknown, go 1.26.3)"},
		{"", "", stamped("v0.0.0-20260820222146-c27c302e5fc3", "c27c302e5fc39f0e", "true"), "gateway devel (c27c302e5fc3-dirty, go 1.26.3)"},
		{"", "", stamped("v1.2.0", "c27c302e5fc39f0e", "false"), "gateway v1.2.0 (c27c302e5fc3, go 1.26.3)"},
		{"v1.3.0-2-gabcdef012345", "abcdef012345", stamped("v1.2.0", "c27c302e5fc39f0e", "true"), "gateway v1.3.0-2-gabcdef012345 (abcdef012345, go 1.26.3)"},
		{"", "abcdef012345-dirty", stamped("(devel)", "", ""), "gateway devel (abcdef012345-dirty, go 1.26.3)"},
	} {
		b := of(c.version, c.commit, c.info)
		b.Go = "go1.26.3"
		if got := b.Line("gateway"); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestMetric(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(Build{Version: "v1", Commit: "c", Go: "go1.26"}.Metric("gateway"))
	all, err := reg.Gather()
	if err != nil || len(all) != 1 {
		t.Fatalf("got %v, %v", all, err)
	}
	got := strings.Join(strings.Fields(all[0].String()), " ")
	for _, want := range []string{`name:"gateway_build_info"`, `name:"version" value:"v1"`, `name:"commit" value:"c"`, `name:"goversion" value:"go1.26"`, "gauge:{value:1}"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want it to hold %s", got, want)
		}
	}
}

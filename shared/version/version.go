// Package version says which build of Floodgate a binary is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// The Makefile has the linker set these (-X). They are empty in a binary that was built in another way.
var linkedVersion, linkedCommit string

// What is said where a build does not say it.
const (
	unreleased    = "devel"
	unknownCommit = "unknown"
)

// Build is what is known of a binary.
type Build struct {
	Version string // the tag and what follows on it, see git describe; "devel" where there is none
	Commit  string // 12 digits, with -dirty where files had been changed; "unknown" where nobody said
	Go      string // as runtime.Version says it
}

// This is the running binary's build: what the linker set, or else what the go command stamped.
func This() Build {
	info, _ := debug.ReadBuildInfo()
	return of(linkedVersion, linkedCommit, info)
}

func of(version, commit string, info *debug.BuildInfo) Build {
	b := Build{Version: unreleased, Commit: unknownCommit, Go: runtime.Version()}
	if info != nil {
		// A pseudo-version is made of the commit alone, so it is no more than devel says.
		if v := info.Main.Version; v != "" && !strings.HasPrefix(v, "(") && !strings.HasPrefix(v, "v0.0.0-") {
			b.Version = v
		}
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if revision := settings["vcs.revision"]; revision != "" {
			b.Commit = revision[:min(len(revision), 12)]
			if settings["vcs.modified"] == "true" {
				b.Commit += "-dirty"
			}
		}
	}
	if version != "" {
		b.Version = version
	}
	if commit != "" {
		b.Commit = commit
	}
	return b
}

// Line is what --version prints of the binary called name, without a line end.
func (b Build) Line(name string) string {
	return fmt.Sprintf("%s %s (%s, go %s)", name, b.Version, b.Commit, strings.TrimPrefix(b.Go, "go"))
}

// Metric is NAME_build_info{version,commit,goversion}, which is always 1.
func (b Build) Metric(name string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: name + "_build_info", Help: "1, with the build of the running binary.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	}, func() float64 { return 1 })
}

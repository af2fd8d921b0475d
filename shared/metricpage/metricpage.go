// Package metricpage holds docs/metrics.md and the registries of the binaries together. Only tests import it.
package metricpage

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// desc is how a Desc prints itself: it has no other way to say what it is.
var desc = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// constLabel is one label in constLabels.
var constLabel = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)

type metric struct{ kind, labels, help string }

// Hold fails the test unless the binary's section of the page has exactly the metrics of the registries whose names begin with the
// binary's, with their type, labels and help. A label vector that has no value yet counts, too; its type is a counter's if its name
// ends in _total, and else a gauge's. With write, the section is written anew: of its rows only the last column, what a value means to
// an operator, is kept.
func Hold(t testing.TB, path, binary string, write bool, registries ...*prometheus.Registry) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+binary+" -->\n", "<!-- end of "+binary+" -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	section, tail, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no section between %q and %q", path, begin, end)
	}
	meanings := map[string]string{}
	for line := range strings.Lines(section) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) == 5 {
			meanings[strings.Trim(cells[0], "|` ")] = strings.TrimSpace(strings.TrimSuffix(cells[4], "|"))
		}
	}
	all := metricsOf(t, binary+"_", registries)
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning | what a value says |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, m.kind, m.labels, m.help, meanings[name])
	}
	if b.String() == section {
		return
	}
	if write {
		if err := os.WriteFile(path, []byte(head+begin+b.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was, is := strings.Split(section, "\n"), strings.Split(b.String(), "\n")
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("%s lacks:\n%s", path, line)
		}
	}
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("%s has, and %s has not:\n%s", path, binary, line)
		}
	}
	t.Errorf("write it anew: run this test with -write-metrics")
}

func metricsOf(t testing.TB, prefix string, registries []*prometheus.Registry) map[string]metric {
	t.Helper()
	all, kinds := map[string]metric{}, map[string]string{}
	for _, reg := range registries {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			kinds[f.GetName()] = strings.ToLower(f.GetType().String())
		}
		descs := make(chan *prometheus.Desc)
		go func() {
			defer close(descs)
			reg.Describe(descs)
		}()
		for d := range descs {
			parts := desc.FindStringSubmatch(d.String())
			if parts == nil {
				t.Errorf("cannot read %s", d)
				continue
			}
			name := parts[1]
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			var labels []string
			for _, c := range constLabel.FindAllStringSubmatch(parts[3], -1) {
				labels = append(labels, c[1])
			}
			for l := range strings.SplitSeq(parts[4], ",") {
				if l = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(l), "c("), ")"); l != "" {
					labels = append(labels, l)
				}
			}
			m := metric{labels: strings.Join(labels, ", "), help: strings.NewReplacer("|", "\\|", `\"`, `"`).Replace(parts[2])}
			all[name] = m
		}
	}
	for name, m := range all {
		m.kind = kinds[name]
		if m.kind == "" {
			m.kind = "gauge"
			if strings.HasSuffix(name, "_total") {
				m.kind = "counter"
			}
		}
		if (m.kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s: the names of counters, and theirs alone, end in _total", name, m.kind)
		}
		all[name] = m
	}
	return all
}

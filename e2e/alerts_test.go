package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"floodgate.internal/e2e/world"
)

// alertRule is one of configs/alerts.yml.
type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	text, err := os.ReadFile("../configs/alerts.yml")
	world.Must(t, err)
	var file struct {
		Groups []struct {
			Rules []alertRule `yaml:"rules"`
		} `yaml:"groups"`
	}
	world.Must(t, yaml.Unmarshal(text, &file))
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) == 0 {
		t.Fatalf("got %+v, want one group of rules", file)
	}
	return file.Groups[0].Rules
}

// dashboard is one of configs/grafana.
type dashboard struct {
	UID    string `json:"uid"`
	Panels []struct {
		Title       string `json:"title"`
		Description string `json:"description"`
		Targets     []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query string `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

// dashboards are those of configs/grafana, by their files.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("../configs/grafana/*.json")
	world.Must(t, err)
	all := map[string]dashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		world.Must(t, err)
		var d dashboard
		world.Must(t, json.Unmarshal(text, &d))
		if len(d.Panels) == 0 || d.UID == "" {
			t.Fatalf("%s: got %+v, want panels and an uid", file, d)
		}
		all[filepath.Base(file)] = d
	}
	if len(all) != 2 {
		t.Fatalf("got %d dashboards, want one for a sale and one for the system", len(all))
	}
	return all
}

// Each alert has a runbook in docs/alerts.md that says what it means, what to look at and what to do; each runbook has its alert.
func TestEveryAlertHasItsRunbook(t *testing.T) {
	page, err := os.ReadFile("../docs/alerts.md")
	world.Must(t, err)
	books := map[string]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		books[name] = text
	}
	for _, r := range alertRules(t) {
		book, ok := books[r.Alert]
		delete(books, r.Alert)
		if !ok {
			t.Errorf("%s has no runbook", r.Alert)
		}
		for _, part := range []string{"\n*It means:* ", "\n*Look at:* ", "\n*Do:* "} {
			if !strings.Contains(book, part) {
				t.Errorf("the runbook of %s has no %q", r.Alert, part)
			}
		}
		if got, want := r.Annotations["runbook_url"], "docs/alerts.md#"+strings.ToLower(r.Alert); got != want {
			t.Errorf("%s: runbook_url is %q, want %q", r.Alert, got, want)
		}
		if s := r.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s: severity is %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
	}
	for name := range books {
		t.Errorf("the runbook %s has no alert", name)
	}
}

var (
	documented = regexp.MustCompile("(?m)^\\| `((?:gateway|backend)_[a-z_]+)` \\| ([a-z]+) \\|")
	named      = regexp.MustCompile(`\b(?:gateway|backend)_[a-z_]+\b`)
	matched    = regexp.MustCompile(`"[^"]*"`)
)

// Every metric that a rule, a dashboard or a runbook names is one of docs/metrics.md, which tests of both binaries hold against
// their registries.
func TestAlertsAndDashboardsNameMetricsThatExist(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	world.Must(t, err)
	var known []string
	for _, m := range documented.FindAllStringSubmatch(string(page), -1) {
		known = append(known, m[1])
		if m[2] == "histogram" {
			known = append(known, m[1]+"_bucket", m[1]+"_sum", m[1]+"_count")
		}
	}
	if len(known) < 100 {
		t.Fatalf("docs/metrics.md has only %d metrics", len(known))
	}
	hold := func(where, text string) {
		for _, name := range named.FindAllString(matched.ReplaceAllString(text, `""`), -1) {
			if !slices.Contains(known, name) && name != "backend_tls" { // a section of the gateway's configuration
				t.Errorf("%s names %s, which docs/metrics.md does not know", where, name)
			}
		}
	}
	for _, r := range alertRules(t) {
		hold(r.Alert, r.Expr)
	}
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				hold(file+", "+p.Title, target.Expr)
			}
		}
		for _, v := range d.Templating.List {
			hold(file+", "+v.Name, v.Query)
		}
	}
	for _, doc := range []string{"alerts.md", "observing.md", "operating.md"} {
		text, err := os.ReadFile("../docs/" + doc)
		world.Must(t, err)
		hold(doc, string(text))
	}
}

package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The fields of CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json/) that are used here.
type (
	document struct {
		Format       string       `json:"bomFormat"`
		Spec         string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		URL        string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

// bill is the software bill of materials of these binaries, from what the linker wrote into them: each module and Go's own library.
// Floodgate's own modules are no component: they are the release.
func bill(version string, at time.Time, binaries []string) ([]byte, error) {
	d := document{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{Timestamp: at.UTC().Format(time.RFC3339),
		Component: component{Type: "application", Ref: "floodgate", Name: "floodgate", Version: version}}}
	release := dependency{Ref: "floodgate"}
	modules := map[string]component{}
	for _, file := range binaries {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		name := filepath.Base(file)
		release.DependsOn = append(release.DependsOn, name)
		d.Components = append(d.Components, component{Type: "application", Ref: name, Name: name, Version: version})
		std := module("stdlib", strings.TrimPrefix(info.GoVersion, "go"), "")
		modules[std.Ref] = std
		uses := dependency{Ref: name, DependsOn: []string{std.Ref}}
		for _, m := range info.Deps {
			if strings.HasPrefix(m.Path, "floodgate.internal/") {
				continue
			}
			if m.Replace != nil {
				m = m.Replace
			}
			c := module(m.Path, m.Version, m.Sum)
			modules[c.Ref] = c
			uses.DependsOn = append(uses.DependsOn, c.Ref)
		}
		d.Dependencies = append(d.Dependencies, uses)
	}
	d.Dependencies = append(d.Dependencies, release)
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		d.Components = append(d.Components, modules[ref])
	}
	b, err := json.MarshalIndent(d, "", "  ")
	return append(b, '\n'), err
}

// module is a Go module, by its package URL (https://github.com/package-url/purl-spec). sum is that of go.sum.
func module(path, version, sum string) component {
	at := "pkg:golang/" + path + "@" + url.PathEscape(version)
	c := component{Type: "library", Ref: at, Name: path, Version: version, URL: at}
	if sum != "" {
		c.Properties = []property{{Name: "go.sum", Value: sum}}
	}
	return c
}

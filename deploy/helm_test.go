//go:build helm

package deploy

import (
	"path"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Helm itself renders what render renders. Not part of make test, for what it takes to compile: make helm.
func TestHelm(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			c := loadChart(t)
			caps := *chartutil.DefaultCapabilities
			values, err := chartutil.ToRenderValues(c, over(sample(t), parseValues(t, variant)), chartutil.ReleaseOptions{Name: "floodgate", Namespace: "shop"}, &caps)
			if err != nil {
				t.Fatal(err)
			}
			got, err := engine.Render(c, values)
			if err != nil {
				t.Fatal(err)
			}
			want := renderVariant(t, variant)
			for file, text := range want {
				if got["floodgate/templates/"+file] != text {
					t.Errorf("%s: Helm makes\n%s\nrender makes\n%s", path.Base(file), got["floodgate/templates/"+file], text)
				}
			}
		})
	}
}

package conf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTheReferenceHasEveryKey(t *testing.T) {
	type entry struct {
		Name  string `yaml:"name"`
		Token Secret `yaml:"token"`
	}
	type inner struct {
		Wait time.Duration `yaml:"wait"`
		Mode string        `yaml:"mode" enum:",a,b"`
		Rate float64       `yaml:"rate"`
	}
	var c struct {
		On    bool    `yaml:"on"`
		Max   int     `yaml:"max"`
		Inner inner   `yaml:"inner"`
		List  []entry `yaml:"list"`
		Names []string
		Hosts []string `yaml:"hosts"`
	}
	c.Max, c.Inner.Wait, c.Inner.Rate = 100_000_000, time.Minute, 0.2
	sample := filepath.Join(t.TempDir(), "sample.yaml")
	if err := os.WriteFile(sample, []byte("# Whether | it is on.\non: true\ninner:\n  wait: 1m # how long\nlist:\n  - name: x # whose\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Reference(&b, &c, sample); err != nil {
		t.Fatal(err)
	}
	want := `| key | type | default | |
|---|---|---|---|
| ` + "`hosts` | list of text | |  |" + `
| ` + "`inner.mode` | one of a, b |  |  |" + `
| ` + "`inner.rate` | number | `0.2` |  |" + `
| ` + "`inner.wait` | duration | `1m0s` | how long |" + `
| ` + "`list` | list of sections | |  |" + `
| ` + "`list[].name` | text |  | whose |" + `
| ` + "`list[].token` | secret |  |  |" + `
| ` + "`max` | integer | `100000000` |  |" + `
| ` + "`on` | boolean | `false` | Whether \\| it is on. |" + `
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
	if err := Reference(&b, &c, sample+".not"); err == nil {
		t.Error("a sample that is not there")
	}
}

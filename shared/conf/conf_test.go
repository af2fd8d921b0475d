package conf

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

type sample struct {
	Name   string        `yaml:"name"`
	Port   int           `yaml:"port"`
	Wait   time.Duration `yaml:"wait"`
	Token  Secret        `yaml:"token"`
	Nested struct {
		Items []string `yaml:"items"`
	} `yaml:"nested"`
}

func TestParseExpandsTheEnvironmentInValuesOnly(t *testing.T) {
	t.Setenv("CONF_PORT", "8080")
	t.Setenv("CONF_EVIL", "x\nport: 1")
	s := sample{Name: "default"}
	err := Parse([]byte("port: ${CONF_PORT}\nwait: 250ms\ntoken: a$$b${CONF_PORT}\nnested: {items: [\"${CONF_EVIL}\"]}\n"), &s)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "default" || s.Port != 8080 || s.Wait != 250*time.Millisecond || s.Token.Reveal() != "a$b8080" || s.Nested.Items[0] != "x\nport: 1" {
		t.Errorf("got %+v, token %q", s, s.Token.Reveal())
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"name: a\nprot: 1\n", "prot"},
		{"name: a\nname: b\n", "name"},
		{"port: many\n", "many"},
		{"name: ${CONF_NOT_SET}\n", "line 1: name: the environment has no CONF_NOT_SET"},
		{"name: $HOME\n", "lone $"},
		{"nested: {items: [a], more: 1}\n", "more"},
		{"name: [\n", "line 2: did not find"},
	} {
		var s sample
		err := Parse([]byte(c.in), &s)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want one that says %q", c.in, err, c.want)
		}
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	s := struct{ Token Secret }{"hunter2"}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	all := string(b) + fmt.Sprintf("%v %+v %#v %s", s, s, s, s.Token)
	if strings.Contains(all, "hunter2") {
		t.Errorf("the secret shows: %s", all)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "localhost:80": true, "127.9.9.9:1": true,
		"0.0.0.0:80": false, ":80": false, "10.0.0.1:80": false, "127.0.0.1": false,
	} {
		if got := Loopback(addr); got != want {
			t.Errorf("Loopback(%q): got %v, want %v", addr, got, want)
		}
	}
}

// A file that is taken holds nothing that the struct does not have, and no secret shows in what is written of it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "{}", "name: x\nsecret: ${FUZZ_SECRET}\nn: 7\nwait: 5s\n", "name: $$x", "name: ${", "name: $x", "a: b", "name: x\nname: y", "&a [*a]", "n: 1e3", "name: |\n  x\n", "? name\n: x", "list: [{name: x}]", "---\n---\n"} {
		f.Add([]byte(s))
	}
	f.Setenv("FUZZ_SECRET", "hunter2-hunter2")
	f.Fuzz(func(t *testing.T, b []byte) {
		var into struct {
			Name   string        `yaml:"name"`
			Secret Secret        `yaml:"secret"`
			N      int           `yaml:"n"`
			Wait   time.Duration `yaml:"wait"`
			List   []struct {
				Name string `yaml:"name"`
			} `yaml:"list"`
		}
		if Parse(b, &into) != nil {
			return
		}
		if s := into.Secret.Reveal(); len(s) > 8 && strings.Contains(fmt.Sprintf("%v %+v %#v", into.Secret, into.Secret, into.Secret), s) {
			t.Errorf("%q: the secret %q shows", b, s)
		}
	})
}

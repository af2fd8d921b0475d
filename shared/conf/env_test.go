package conf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

type typed struct {
	Text    string        `yaml:"text"`
	Secret  Secret        `yaml:"secret"`
	Int     int           `yaml:"int"`
	Float   float64       `yaml:"float"`
	Bool    bool          `yaml:"bool"`
	Maybe   *bool         `yaml:"maybe"`
	Wait    time.Duration `yaml:"wait"`
	List    []string      `yaml:"list"`
	Numbers []int         `yaml:"numbers"`
	Below   struct {
		Rate  float64 `yaml:"rate"`
		Burst int     `yaml:"burst"`
	} `yaml:"below"`
}

// A value from the environment means what its field says, in block and flow style, in quotes and without.
func TestTheEnvironmentHasTheFieldsType(t *testing.T) {
	yes := true
	var rate typed
	rate.Below.Rate, rate.Below.Burst = 0.5, 7
	for _, c := range []struct {
		field, value string
		want         typed
	}{
		{"int", "8080", typed{Int: 8080}},
		{"int", " 8080\n", typed{Int: 8080}},
		{"int", "0x10", typed{Int: 16}},
		{"float", "0.5", typed{Float: 0.5}},
		{"float", "2", typed{Float: 2}},
		{"bool", "true", typed{Bool: true}},
		{"maybe", "true", typed{Maybe: &yes}},
		{"wait", "250ms", typed{Wait: 250 * time.Millisecond}},
		{"text", "8080", typed{Text: "8080"}},
		{"text", "true", typed{Text: "true"}},
		{"text", "null", typed{Text: "null"}},
		{"text", "~", typed{Text: "~"}},
		{"text", "a: b # c", typed{Text: "a: b # c"}},
		{"text", "[a, b]", typed{Text: "[a, b]"}},
		{"text", "${OTHER} $$ *a &b !c %d @e", typed{Text: "${OTHER} $$ *a &b !c %d @e"}},
		{"secret", "null", typed{Secret: "null"}},
		{"secret", "0123", typed{Secret: "0123"}},
		{"secret", "{}", typed{Secret: "{}"}},
		{"secret", " a ", typed{Secret: " a "}},
		{"list", "[a, 7, true, 'b c']", typed{List: []string{"a", "7", "true", "b c"}}},
		{"list", "[]", typed{List: []string{}}},
		{"list", "- a\n- b", typed{List: []string{"a", "b"}}},
		{"list", "['${CONF_VALUE}', $$]", typed{List: []string{"${CONF_VALUE}", "$$"}}},
		{"numbers", "[1, 2]", typed{Numbers: []int{1, 2}}},
		{"below", "{rate: 0.5, burst: 7}", rate},
	} {
		t.Setenv("CONF_VALUE", c.value)
		for _, style := range []string{"%s: ${CONF_VALUE}\n", "%s: \"${CONF_VALUE}\"\n", "%s: '${CONF_VALUE}'\n", "{%s: ${CONF_VALUE}}\n", "{%s: \"${CONF_VALUE}\"}\n", "{%s: ${CONF_VALUE}, }\n", "{\n  %s: ${CONF_VALUE}\n}"} {
			var got typed
			if err := Parse(fmt.Appendf(nil, style, c.field), &got); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%q in %q: got %+v, %v, want %+v", c.value, style, got, err, c.want)
			}
		}
	}
	t.Setenv("CONF_VALUE", "7")
	var got typed
	err := Parse([]byte("wait: ${CONF_VALUE}s\nint: 1${CONF_VALUE}\ntext: a$${CONF_VALUE}b\nlist: [\"x${CONF_VALUE}\", ${CONF_VALUE}, $$]\nbelow: {rate: ${CONF_VALUE}, burst: ${CONF_VALUE}} # ${NOT_SET}\n"), &got)
	want := typed{Wait: 7 * time.Second, Int: 17, Text: "a${CONF_VALUE}b", List: []string{"x7", "7", "$"}}
	want.Below.Rate, want.Below.Burst = 7, 7
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestTheEnvironmentIsRefused(t *testing.T) {
	for _, c := range []struct{ value, in, want string }{
		{"", "secret: ${CONF_VALUE}", "line 1: secret: the environment's CONF_VALUE is empty"},
		{" \n", "text: x\nsecret: \"${CONF_VALUE}\"", "line 2: secret: the environment's CONF_VALUE is empty"},
		{"", "{secret: a${CONF_VALUE}}", "line 1: secret: the environment's CONF_VALUE is empty"},
		{"", "list: [a, ${CONF_VALUE}]", "line 1: list[1]: the environment's CONF_VALUE is empty"},
		{"", "int: ${CONF_VALUE}", "line 1: int: the environment's CONF_VALUE is empty"},
		{"many", "below:\n  rate: ${CONF_VALUE}", "line 2: below.rate: the value of ${CONF_VALUE} must be a number"},
		{"true", "int: ${CONF_VALUE}", "int: the value of ${CONF_VALUE} must be a whole number"},
		{"1.5", "{int: ${CONF_VALUE}}", "int: the value of ${CONF_VALUE} must be a whole number"},
		{"yes!", "bool: ${CONF_VALUE}", "bool: the value of ${CONF_VALUE} must be true or false"},
		{"5", "wait: ${CONF_VALUE}", "wait: the value of ${CONF_VALUE} must be a time"},
		{"a, b", "list: ${CONF_VALUE}", "list: it must be a list"},
		{"[a, {b: c}]", "list: ${CONF_VALUE}", "list[1]: the value of ${CONF_VALUE} must be a text"},
		{"[1, x]", "numbers: ${CONF_VALUE}", "numbers[1]: the value of ${CONF_VALUE} must be a whole number"},
		{"{rate: 1, brust: 2}", "below: ${CONF_VALUE}", "below: the key is not known: the keys here are rate, burst"},
		{"{rate: 1, rate: 2}", "below: ${CONF_VALUE}", "below.rate: it is there twice"},
		{"x", "text: ${CONF-VALUE}", "text: a lone $"},
		{"x", "text: ${CONF_NOT_SET}${CONF_VALUE}", "text: the environment has no CONF_NOT_SET"},
	} {
		t.Setenv("CONF_VALUE", c.value)
		var got typed
		if err := Parse([]byte(c.in), &got); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q in %q: got %v, want %q", c.value, c.in, err, c.want)
		}
	}
}

// What Validate says of a value names the file, the line and the field, and holds no value of the environment or of a secret.
func TestExplain(t *testing.T) {
	t.Setenv("CONF_RATE", "0.125")
	t.Setenv("CONF_LIST", "[hidden-1]")
	file := filepath.Join(t.TempDir(), "x.yaml")
	text := "text: shown\nsecret: hidden-2\nint: 3\nbelow:\n  rate: ${CONF_RATE}\nlist: ${CONF_LIST}\nwait: 1s # &a\nmaybe: &m true\nbool: *m\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var c typed
	f, err := Load(file, &c)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Explain(errors.Join(
		Wrong("text: %q must be another", c.Text),
		Wrong("secret: %d bytes, at least %d are needed", len(c.Secret), 16),
		Wrong("secret: %v must be another", c.Secret),
		Wrong("int: %d must be %d to %d", c.Int, 5, 7),
		Wrong("%s: %v must be positive", "below.rate", c.Below.Rate),
		Under("below.", Wrong("burst: %d at %v is too slow", c.Below.Burst, Of("below.rate", c.Below.Rate))),
		Under("list", Wrong("[%d]: %q must be a network", 0, c.List[0])),
		Wrong("int: %d is less than %v", c.Int, Of("list", c.List)),
		Wrong("other.field: %q must be there", "user:hidden-3@host"),
	))
	want := strings.ReplaceAll(`FILE: line 1: text: "shown" must be another
FILE: line 2: secret: 8 bytes, at least 16 are needed
FILE: line 2: secret: it must be another
FILE: line 3: int: 3 must be 5 to 7
FILE: line 5: below.rate: the value of ${CONF_RATE} must be positive
FILE: line 5: below.burst: 0 at the value of ${CONF_RATE} is too slow
FILE: line 6: list[0]: the value of ${CONF_LIST} must be a network
FILE: line 3: int: 3 is less than the value of ${CONF_LIST}
FILE: other.field: "...@host" must be there`, "FILE", file)
	if got == nil || got.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", got, want)
	}
	if !f.FromEnv("below") || !f.FromEnv("below.rate") || !f.FromEnv("list[0]") || f.FromEnv("text") || f.FromEnv("secret") {
		t.Errorf("FromEnv: got %v", f.env)
	}
}

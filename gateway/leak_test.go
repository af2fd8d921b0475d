package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"floodgate.internal/shared/conf"
)

// canary is the part of each secret and each variable below that nothing may show.
const canary = "c4nary9f2e"

// broken are files that are wrong in every way that a secret may stand in them.
func broken() (files []string) {
	for _, secret := range []string{canary, "$" + canary, "a$" + canary + "$$", "${" + canary, "*" + canary, "&" + canary, "!" + canary, "!!int " + canary, "!<" + canary, "@" + canary, "%" + canary, "|" + canary, ">" + canary, "`" + canary,
		"\"" + canary, "'" + canary, "'" + canary + "' x", "[" + canary, "{" + canary, "]" + canary, "}" + canary, "- " + canary, "? " + canary, "x: " + canary, canary + ": x", "{" + canary + ": x}", "[" + canary + "]", "{a: " + canary + "}", "\t" + canary,
		"\"\\" + canary + "\"", "\x01" + canary, canary + "\n" + canary, canary + "\n  " + canary + ": 1", canary + " #" + canary, "\xff" + canary, "!!binary " + canary, "!!float " + canary, "!!timestamp " + canary, "!!null " + canary, "!!set {" + canary + "}"} {
		for _, place := range []string{
			"ops_token: %s\n", "ops_token:%s\n", "ops_token %s\n", "ops_token: ok\nops_token: %s\n", "%s\n", "- %s\n",
			"signing_key: {id: a, secret: %s}\n", "signing_key: {id: a, secret:%s}\n", "signing_key: {id: a, %s}\n", "signing_key:\n  id: a\n  secret: %s\n", "signing_key:\n  id: a\n  secret:\n  %s\n", "signing_key:\n    secret: %s\n  id: a\n", "signing_key: %s\n",
			"identity:\n  keys: [{kid: a, alg: HS256, secret: %s}]\n", "identity: {keys: [%s]}\n", "identity:\n  keys:\n    - kid: a\n      secret: %s\n      secret: b\n",
		} {
			files = append(files, fmt.Sprintf(place, secret), "development: true\n"+fmt.Sprintf(place, secret)+"limits: {order: {rate: 0}}\n")
		}
	}
	return files
}

// leaves calls f with the file in which ${LEAK} stands for each value in turn, as JSON, which is YAML in flow style, and then without quotes.
func leaves(t *testing.T, c Config, f func(path, text string)) {
	t.Helper()
	whole := roundTrip(c.Tree())
	for _, k := range []string{"ops_token"} {
		whole.(map[string]any)[k] = "a-long-enough-token"
	}
	whole.(map[string]any)["signing_key"].(map[string]any)["secret"] = strings.Repeat("s", 32)
	for _, k := range whole.(map[string]any)["identity"].(map[string]any)["keys"].([]any) {
		k.(map[string]any)["secret"] = strings.Repeat("k", 32)
	}
	write := func(path string) {
		b, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		f(path, string(b))
		f(path, strings.ReplaceAll(string(b), `"${LEAK}"`, "${LEAK}"))
	}
	var walk func(path string, v any, set func(any))
	walk = func(path string, v any, set func(any)) {
		if path != "" {
			set("${LEAK}")
			write(path)
			set(v)
		}
		switch x := v.(type) {
		case map[string]any:
			for k, e := range x {
				walk(join(path, k), e, func(e any) { x[k] = e })
			}
		case []any:
			for i, e := range x {
				walk(fmt.Sprintf("%s[%d]", path, i), e, func(e any) { x[i] = e })
			}
		}
	}
	walk("", whole, nil)
}

// No error of a configuration shows a secret, or what came from the environment: not to who starts the gateway or checks a file, nor
// in the answer to a reload, the log, /-/reloads and /-/config.
func TestNoErrorShowsASecret(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	shows := func(where, what, text string) {
		t.Helper()
		if strings.Contains(strings.ToLower(text), canary) {
			t.Errorf("%s, of %q: %s", where, what, text)
		}
	}
	refused := 0
	try := func(what, text string, reload bool) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "gateway.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Load(file); err != nil {
			refused++
			shows("an error", what, err.Error())
			if !strings.HasPrefix(err.Error(), file+": ") {
				t.Errorf("%q: the error does not name the file: %v", what, err)
			}
		}
		if !reload {
			return
		}
		var out bytes.Buffer
		err := Run(context.Background(), []string{"check", "-config", file}, &out, io.Discard)
		shows("check", what, fmt.Sprint(err, out.String()))
		g.write(text)
		a := g.reload()
		if a.code != 400 {
			t.Errorf("%q: got %v, want a refusal", what, a)
		}
		shows("the answer to a reload", what, a.body)
		for _, path := range []string{"/-/reloads", "/-/config"} {
			shows(path, what, g.do("GET", "http://"+g.ops+path).body)
		}
	}
	for i, text := range broken() {
		try(text, text, i%50 == 0)
	}
	c, _, err := Load(g.fileOf(configText([]string{"127.0.0.1:9080"}, limits("uid_exempt: [a]", "banned_networks: [10.0.0.0/8]"), with("max_lifetime", "issuer: [a]\n  audience: [b]\n  types: [c]\n  max_lifetime"))))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for k, value := range []string{canary, "$" + canary, "7 " + canary, "http://" + canary, "u:" + canary + "@h:1", "[" + canary + "]", "{" + canary + ": 1}", "[{" + canary + ": 1}]", "{id: " + canary + ", id: b}", "\"" + canary, "*" + canary, canary + "\nx: y"} {
		t.Setenv("LEAK", value)
		at := k
		leaves(t, c, func(path, text string) {
			if at++; at/2%4 != 0 && path != "limits.order.rate" { // each place with every fourth value, in both styles
				return
			}
			n++
			try(path+" from the environment, "+value, text, path == "limits.order.rate")
		})
	}
	if refused < 500 || n < 500 {
		t.Errorf("%d files were refused, and %d tried with a variable: this test tries next to nothing", refused, n)
	}
	shows("the log", "all", g.log.String())
	// A value of the environment that is right is not in a diff either.
	t.Setenv("LEAK", canary)
	was, is := DefaultConfig(), DefaultConfig()
	for _, into := range []struct {
		c  *Config
		id string
	}{{&was, "plain"}, {&is, "${LEAK}"}} {
		file, err := conf.Load(g.fileOf("signing_key: {id: "+into.id+"}\nlimits: {banned_uids: ["+into.id+"]}\n"), into.c)
		if err != nil {
			t.Fatal(err)
		}
		into.c.File = file
	}
	diff := strings.Join(was.Diff(is), "\n")
	shows("a diff", "the environment", diff)
	if want := "limits.banned_uids: another value, from the environment\nsigning_key.id: another value, from the environment"; diff != want {
		t.Errorf("got %s, want %s", diff, want)
	}
}

// fileOf is a file with this text.
func (g *gw) fileOf(text string) string {
	g.t.Helper()
	file := filepath.Join(g.t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return file
}

package gateway

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/gateway/tlscert"
	"floodgate.internal/shared/operator"
)

func TestSampleLoadsAndHoldsTheDefaults(t *testing.T) {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FLOODGATE_OPS_TOKEN", "an-ops-token")
	t.Setenv("FLOODGATE_SIGNING_KEY", "0123456789abcdef0123456789abcdef")
	t.Setenv("LOGIN_PUBLIC_KEY", base64.StdEncoding.EncodeToString(pub))
	c, hash, err := Load("../configs/gateway.yaml")
	if err != nil || len(hash) != 16 {
		t.Fatalf("got %v, hash %q", err, hash)
	}
	want := DefaultConfig()
	want.OpsToken, want.SigningKey = "an-ops-token", SigningKeyConfig{"gw-1", "0123456789abcdef0123456789abcdef"}
	want.Identity.Keys = []identity.Key{{KID: "login-1", Alg: "EdDSA", PublicKey: base64.StdEncoding.EncodeToString(pub)}}
	want.File = c.File
	want.Listen.TLS.Certificates, want.material = []tlscert.Pair{}, c.material
	want.Operators = []operator.Entry{}
	want.OpsHosts, want.Identity.Issuer, want.Identity.Audience, want.Identity.Types = []string{}, []string{}, []string{"shop"}, []string{}
	want.Identity.Revoked, want.CORS.Origins = []identity.Revocation{}, []string{}
	want.Page.Pictures = []string{}
	want.Trusted, want.Limits.IPExempt, want.Limits.BannedNetworks = []string{}, []string{}, []string{}
	want.Limits.UIDExempt, want.Limits.BannedUIDs, want.Limits.EligibleUIDs = []string{}, []string{}, []string{}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the sample is not the defaults:\n%s", strings.Join(want.Diff(c), "\n"))
	}
	// Every key of the configuration is in the sample.
	text, err := os.ReadFile("../configs/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	flat := map[place]string{}
	flatten("", roundTrip(c.Tree()), flat)
	for p := range flat {
		key := p.path[strings.LastIndex(p.path, ".")+1:]
		if key, _, _ = strings.Cut(key, "["); key == "sign" { // development only
			continue
		}
		if !strings.Contains(string(text), key+":") {
			t.Errorf("%s is not in the sample", p.path)
		}
	}
}

func TestValidateNamesFieldValueAndBound(t *testing.T) {
	base := configText([]string{"127.0.0.1:9080"})
	dir := t.TempDir()
	load := func(text string) error {
		file := filepath.Join(dir, "gateway.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := Load(file)
		return err
	}
	if err := load(base); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(dir, "garbage.json")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"order: {rate: 0.2", "order: {rate: 0", "limits.order.rate: 0 must be positive"},
		{"order: {rate: 0.2", "order: {rate: .nan", "limits.order.rate: NaN must be positive"},
		{"order: {rate: 0.2", "order: {rate: .inf", "limits.order.rate: +Inf must be"},
		{"burst: 20", "burst: 0", "limits.read.burst: 0 must be 1 to"},
		{"burst: 100", "burst: many", "many"},
		{"rate: 0.2, burst: 1", "rate: 0.001, burst: 1000000", "limits.order.burst: 1000000 tokens at 0.001 a second fill in more than 720h"},
		{"max_keys: 1000}", "max_keys: 0}", "limits.order.max_keys: 0 must be"},
		{"limits:", "limits:\n  webhook: {rate: 0, burst: 1, max_keys: 1}", "limits.webhook.rate: 0 must be positive"},
		{"ip_exempt:", "global: {rate: 0}\n  ip_exempt:", "limits.global.rate: 0 must be positive"},
		{"ip_exempt:", "global: {burst: 0}\n  ip_exempt:", "limits.global.burst: 0 must be 1 to"},
		{"ip_exempt:", "global: {max_wait: 11s}\n  ip_exempt:", "limits.global.max_wait: 11s must be 0s to 10s"},
		{"ip_exempt:", "global: {max_waiting: -1}\n  ip_exempt:", "limits.global.max_waiting: -1 must be 0 to"},
		{"ip_exempt:", "global: {max_keys: 1}\n  ip_exempt:", "max_keys"},
		{"ip_exempt:", "global: {also: []}\n  ip_exempt:", "also"},
		{"ip_exempt:", "payment: {burst: 0}\n  ip_exempt:", "limits.payment.burst: 0 must be 1 to"},
		{"burst: 1, max_keys: 1000}", "burst: 1, also: [{rate: 0.01, burst: 5}, {rate: 0, burst: 1}]}", "limits.order.also[1].rate: 0 must be positive"},
		{"burst: 1, max_keys: 1000}", "burst: 1, also: [{rate: 1}]}", "limits.order.also[0].burst: 0 must be 1 to"},
		{"burst: 1, max_keys: 1000}", "burst: 1, also: [{rate: 1, burst: 1, max_keys: 7}]}", "max_keys"},
		{"burst: 1, max_keys: 1000}", "burst: 1, also: [{rate: 1, burst: 1}, {rate: 1, burst: 1}, {rate: 1, burst: 1}]}", "limits.order.also: 3 laws, a rule has at most 2"},
		{"burst: 1, max_keys: 1000}", "burst: 1, shadow: perhaps}", "perhaps"},
		{"ip_exempt:", "banned_networks: [10.0.0.0/8, 10.0.0.1]\n  ip_exempt:", "limits.banned_networks[1]: \"10.0.0.1\" must be a network"},
		{"ip_exempt:", "banned_networks: [\"::ffff:10.0.0.0/104\"]\n  ip_exempt:", "limits.banned_networks[0]: \"::ffff:10.0.0.0/104\" must be a network"},
		{"ip_exempt:", "banned_uids: [ann, \"b b\"]\n  ip_exempt:", "limits.banned_uids[1]: \"b b\" must be 1 to 64 of"},
		{"ip_exempt:", "banned_uids: [" + strings.Repeat("u, ", maxUIDs) + "u]\n  ip_exempt:", "limits.banned_uids: 100001 uids, at most 100000"},
		{"ip_exempt:", "uid_exempt: [monitor, \"\"]\n  ip_exempt:", "limits.uid_exempt[1]: \"\" must be 1 to 64 of"},
		{"ip_exempt:", "uid_exempt: [" + strings.Repeat("u, ", maxUIDs) + "u]\n  ip_exempt:", "limits.uid_exempt: 100001 uids, at most 100000"},
		{"ip_exempt:", "uid_exempt: monitor\n  ip_exempt:", "limits.uid_exempt: it must be a list"},
		{"ip_exempt:", "eligible_uids: [a/b]\n  ip_exempt:", "limits.eligible_uids[0]: \"a/b\" must be 1 to 64 of"},
		{"ip_exempt:", "eligible_uids: [" + strings.Repeat("u, ", maxUIDs) + "u]\n  ip_exempt:", "limits.eligible_uids: 100001 uids, at most 100000"},
		{"limits:", "trusted_proxies: [proxy.example]\nlimits:", "trusted_proxies[0]: \"proxy.example\" must be a network"},
		{"127.0.0.0/8", "127.0.0.1", "limits.ip_exempt[0]: \"127.0.0.1\" must be a network"},
		{"identity:\n", "identity:\n  jwks: {file: nowhere.json}\n", `identity.jwks.file: "nowhere.json": no such file`},
		{"identity:\n", "identity:\n  jwks: {file: " + garbage + "}\n", "not a JWK set"},
		{"identity:\n", "identity:\n  jwks: {file: a, url: b}\n", "identity.jwks: there are a file and a url"},
		{"identity:\n", "identity:\n  jwks: {url: login.example}\n", `identity.jwks.url: "login.example" must be https://host/path`},
		{"identity:\n", "identity:\n  jwks: {url: \"ftp://login.example/keys\"}\n", "identity.jwks.url: "},
		{"identity:\n", "identity:\n  jwks: {url: \"https://u:hidden@login.example/keys\"}\n", "identity.jwks.url: "},
		{"identity:\n", "identity:\n  jwks: {url: \"https://login.example/keys\", refresh: 1s}\n", "identity.jwks.refresh: 1s must be 10s to 24h"},
		{"identity:\n", "identity:\n  jwks: {path: x}\n", "path"},
		{"identity:\n", "identity:\n  revoked: [{jti: a}, {uid: 7}]\n", "identity.revoked[1].before: \"\" must be a time"},
		{"identity:\n", "identity:\n  revoked: [" + strings.Repeat("{jti: a}, ", maxRevoked) + "{jti: a}]\n", "identity.revoked: 10001 of them, at most 10000"},
		{"feed: {", "cors: {origins: [\"*\"]}\nfeed: {", `cors.origins[0]: "*" must be https://host`},
		{"feed: {", "cors: {origins: [\"https://*.shop.example\"]}\nfeed: {", "cors.origins[0]"},
		{"feed: {", "cors: {origins: [\"null\"]}\nfeed: {", "cors.origins[0]"},
		{"feed: {", "cors: {origins: [\"https://shop.example\", \"https://shop.example/\"]}\nfeed: {", "cors.origins[1]"},
		{"feed: {", "cors: {origins: [\"https://Shop.example\"]}\nfeed: {", "cors.origins[0]"},
		{"feed: {", "cors: {origins: [\"https://shop.example:443\"]}\nfeed: {", "must leave out the usual port"},
		{"feed: {", "cors: {origins: [\"https://u@shop.example\"]}\nfeed: {", "cors.origins[0]"},
		{"feed: {", "cors: {origins: [\"//shop.example\"]}\nfeed: {", "cors.origins[0]"},
		{"feed: {", "cors: {origins: [" + strings.Repeat("\"https://a.example\", ", maxOrigins) + "\"https://b.example\"]}\nfeed: {", "cors.origins: 65 of them"},
		{"feed: {", "cors: {origins: [\"https://a.example\"], max_age: 48h}\nfeed: {", "cors.max_age: 48h0m0s must be 0s to 24h"},
		{"feed: {", "cors: {origin: x}\nfeed: {", "origin"},
		{"read_timeout: 2s", "read_timeout: 0s", "server.read_timeout: 0s must be"},
		{"read_timeout: 2s", "raed_timeout: 2s", "raed_timeout"},
		{`public: "127.0.0.1:0"`, `public: "0.0.0.0:0"`, "listen.public: \"0.0.0.0:0\" must be on loopback"},
		{"development: true", "development: false", "identity.audience: it is empty"},
		{`development: true
listen: {public: "127.0.0.1:0", ops: "127.0.0.1:0"}
ops_token: ""`, `listen: {ops: "10.0.0.1:8081"}`, "ops_token: 0 bytes, at least 16 are needed where listen.ops is not on loopback"},
		{`development: true
listen: {public: "127.0.0.1:0", ops: "127.0.0.1:0"}
ops_token: ""`, `listen: {ops: ":8081"}
ops_token: fifteen-bytes-0`, "ops_token: 15 bytes, at least 16"},
		{`ops_token: ""`, `ops_hosts: [ops.example, "http://x"]`, "ops_hosts[1]: \"http://x\" must be a name or an address"},
		{"max_lifetime: 8760h", "max_lifetime: 0s", "identity.max_lifetime: 0s must be 1m0s to"},
		{"max_lifetime: 8760h", "audience: [shop, \"\"]", "identity.audience[1]: \"\" must have 1 to 256 bytes"},
		{`ops: "127.0.0.1:0"`, `ops: "8081"`, "listen.ops: \"8081\" must be host:port"},
		{"development: true", "development: false", "signing_key.secret: a development secret"},
		{"development: true", "development: false", "identity.keys[0].sign: a key that signs"},
		{"http://127.0.0.1:9080", "ftp://127.0.0.1:9080", "backends[0]: \"ftp://127.0.0.1:9080\" must be http://host:port or https://host:port"},
		{"http://127.0.0.1:9080", "http://127.0.0.1:9080/x", "backends[0]:"},
		{`["http://127.0.0.1:9080"]`, `[]`, "backends: 0 of them"},
		{"alg: HS256", "alg: none", "identity.keys[0].alg: \"none\" must be EdDSA, ES256, RS256 or HS256"},
		{"secret: " + testSecret, "secret: short", "signing_key.secret: 5 bytes, at least 32"},
		{"timeout: 3s", "timeout: 0s", "upstream.timeout: 0s must be"},
		{"max_in_flight: 64", "max_in_flight: 64, max_per_sale: 0", "upstream.max_per_sale: 0 must be 1 to"},
		{"stale_after: 2s", "stale_after: 1ns", "feed.stale_after: 1ns must be"},
		{"cache: {ttl: 1s", "cache: {max_bytes: 1, ttl: 1s", "cache.max_bytes: 1 must be"},
		{"cache: {", "timeline: {max_records: 0}\ncache: {", "timeline.max_records: 0 must be 1 to"},
		{"cache: {", "timeline: {flush_every: 1ms}\ncache: {", "timeline.flush_every: 1ms must be 100ms to"},
		{"feed: {", "log: {level: loud}\nfeed: {", "loud"},
	} {
		if err := load(with(c.old, c.new)(base)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.want)
		}
	}
}

func TestDiffIsInWordsAndKeepsSecrets(t *testing.T) {
	load := func(edits ...edit) Config {
		file := filepath.Join(t.TempDir(), "gateway.yaml")
		if err := os.WriteFile(file, []byte(configText([]string{"127.0.0.1:9080"}, edits...)), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := Load(file)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a := load()
	b := load(with("rate: 0.2", "rate: 0.5"), with(testSecret, "dev-another-secret-of-enough-bytes-01"), with("cache: {ttl: 1s", "cache: {ttl: 2s"),
		with(`["127.0.0.0/8"]`, `["10.0.0.0/8", "127.0.0.0/8"]`), with("burst: 20, max_keys: 1000", "burst: 20, max_keys: 1000, also: [{rate: 1, burst: 60, shadow: true}]"),
		limits("uid_exempt: [monitor]", "banned_uids: [mallory]", "eligible_uids: [ann, bob]"))
	got := strings.Join(a.Diff(b), "\n")
	want := `cache.ttl: "1s" becomes "2s"
limits.banned_uids: "mallory" is new
limits.eligible_uids: "ann" is new
limits.eligible_uids: "bob" is new
limits.ip_exempt: "10.0.0.0/8" is new
limits.order.rate: 0.2 becomes 0.5
limits.read.also[0].burst: 60 is new
limits.read.also[0].rate: 1 is new
limits.read.also[0].shadow: true is new
limits.uid_exempt: "monitor" is new
signing_key.secret: another secret`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if len(a.Diff(a)) != 0 {
		t.Errorf("a configuration differs from itself: %v", a.Diff(a))
	}
	c := load(with(`public: "127.0.0.1:0"`, `public: "127.0.0.1:1"`), with("read_timeout: 2s", "read_timeout: 3s"))
	if got := strings.Join(restartFields(a.Diff(c)), " "); got != "listen.public server.read_timeout" {
		t.Errorf("got %q", got)
	}
}

package backend

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/shared/certs/certstest"
)

func TestRedisTLSAndSentinelAreChecked(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	own, other := ca.Issue("own", nil), ca.Issue("other", nil)
	for want, change := range map[string]func(*Redis){
		"redis.tls.enabled: it is false, and":                         func(r *Redis) { r.TLS.ServerName = "redis" },
		`redis.tls.ca: "/nowhere" cannot be read`:                     func(r *Redis) { r.TLS = RedisTLS{Enabled: true, CA: "/nowhere"} },
		"redis.tls.certificate: it is not there, and key is":          func(r *Redis) { r.TLS = RedisTLS{Enabled: true, Key: own.Key} },
		"does not hold the private key of the certificate":            func(r *Redis) { r.TLS = RedisTLS{Enabled: true, Certificate: own.Certificate, Key: other.Key} },
		"redis.sentinel.primary: it is empty, and username or passwo": func(r *Redis) { r.Sentinel.Password = "hunter2" },
	} {
		c := valid()
		change(&c.Redis)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	c := valid()
	c.Redis.TLS = RedisTLS{true, ca.File, own.Certificate, own.Key, "redis"}
	c.Redis.Sentinel = RedisSentinel{"floodgate", "watcher", "hunter2"}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if got := c.Redis.config(); got.TLS == nil || got.TLS.Files != c.Redis.TLS.files() || got.TLS.ServerName != "redis" || got.Sentinel.Password != "hunter2" {
		t.Errorf("got %+v", got)
	}
}

// byTheClient are commands that rueidis sends by itself.
var byTheClient = []string{"asking", "client|setname", "cluster|shards", "cluster|slots", "ping", "punsubscribe", "unsubscribe"}

// The ACL line names the commands of the scripts, of the code and of the client, and no other.
func TestTheACLLineNamesEveryCommand(t *testing.T) {
	used := slices.Clone(byTheClient)
	words, builder := regexp.MustCompile(`[A-Z][a-z]+`), regexp.MustCompile(`\bb := .*\.B\(\)`)
	find := func(pattern, expression string, name func([]string) string) {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		re := regexp.MustCompile(expression)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f, "_test.go") || strings.Contains(f, "backendtest") || strings.HasSuffix(f, ".go") && !strings.Contains(string(b), ".B()") {
				continue
			}
			for _, m := range re.FindAllStringSubmatch(string(b), -1) {
				if strings.HasPrefix(m[0], "b.") && !builder.Match(b) {
					continue
				}
				used = append(used, name(m))
			}
		}
	}
	find("../lua/*.lua", `redis\.p?call\('(\w+)'(?:, *'([A-Z]+)')?`, func(m []string) string {
		if m[1] = strings.ToLower(m[1]); m[1] == "xgroup" || m[1] == "xinfo" {
			return m[1] + "|" + strings.ToLower(m[2])
		}
		return m[1]
	})
	for _, pattern := range []string{"*.go", "*/*.go"} {
		find(pattern, `(?:\bb|\bB\(\))\.([A-Z][a-zA-Z]+)\(`, func(m []string) string {
			w := words.FindAllString(m[1], -1)
			if w[0] == "Xinfo" {
				w = []string{"Xinfo", w[1]}
			}
			return strings.ToLower(strings.Join(w, "|"))
		})
	}
	slices.Sort(used)
	used = slices.Compact(used)
	var named []string
	for _, word := range strings.Fields(backendtest.ACL(t, "../docs/redis.md")) {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			named = append(named, command)
		}
	}
	slices.Sort(named)
	for _, c := range used {
		if !slices.Contains(named, c) {
			t.Errorf("docs/redis.md: the line of the user lacks +%s", c)
		}
	}
	for _, c := range named {
		if !slices.Contains(used, c) {
			t.Errorf("docs/redis.md: nothing needs +%s", c)
		}
	}
}

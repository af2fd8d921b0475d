package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// provider is a login service that publishes keys.
type provider struct {
	*httptest.Server
	answer atomic.Pointer[http.HandlerFunc]
	asked  chan struct{} // gets one for each request
}

func newProvider(t *testing.T) *provider {
	p := &provider{asked: make(chan struct{}, 1000)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked <- struct{}{}
		(*p.answer.Load())(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) set(h http.HandlerFunc) { p.answer.Store(&h) }
func (p *provider) publish(keys ...m) {
	p.set(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, setOf(keys...)) })
}

var quiet = slog.New(slog.DiscardHandler)

// readings makes a set whose readings are told to the channel.
func readings(c JWKSConfig) (*JWKS, chan bool) {
	told := make(chan bool, 1000)
	return NewJWKS(c, quiet, func(ok bool) { told <- ok }), told
}

// run runs j until the test ends, and waits for it.
func run(t *testing.T, j *JWKS) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); j.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func verifier(t *testing.T, c Config) *Verifier {
	t.Helper()
	if c.Now == nil {
		c.Now = time.Now
	}
	v, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestKeysRotate(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	p := newProvider(t)
	old, stays, next := newPair("old", "ES256"), newPair("stays", "RS256"), newPair("next", "EdDSA")
	p.publish(old.jwk(), stays.jwk())
	j, _ := readings(JWKSConfig{URL: p.URL, Refresh: time.Hour})
	if err := j.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := verifier(t, Config{JWKS: j})
	oldToken, stayingToken, nextToken := []byte(old.token(time.Now())), []byte(stays.token(time.Now())), []byte(next.token(time.Now()))
	for _, token := range [][]byte{oldToken, stayingToken} {
		if _, err := v.Verify(token); err != nil {
			t.Fatal(err)
		}
	}
	before := v.cache.get(stayingToken)
	p.publish(stays.jwk(), next.jwk())
	if err := j.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := v.Remembered(oldToken); ok {
		t.Error("a token of a key that is gone is remembered")
	}
	if _, err := v.Verify(oldToken); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of a key that is gone: %v", err)
	}
	if _, ok := v.Remembered(stayingToken); !ok || v.cache.get(stayingToken) != before {
		t.Error("a token of a key that stays is not remembered")
	}
	if _, err := v.Verify(nextToken); err != nil {
		t.Errorf("a token of the new key: %v", err)
	}
	// Another key under the same kid: what was cached under the first counts no more.
	p.publish(newPair("next", "EdDSA").jwk())
	if err := j.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(nextToken); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of a key whose kid another has: %v", err)
	}
}

// A reload under the same rules keeps the tokens that were verified, but for those of keys that went. Keys of the
// configuration come before those of the set.
func TestAnotherVerifierKeepsWhatStaysTrue(t *testing.T) {
	a, b := newPair("a", "ES256"), newPair("b", "ES256")
	key := func(p pair) Key { return Key{KID: p.kid, Alg: p.alg, PublicKey: p.pem()} }
	first := verifier(t, Config{Keys: []Key{key(a), key(b)}})
	tokenA, tokenB := []byte(a.token(time.Now())), []byte(b.token(time.Now()))
	for _, token := range [][]byte{tokenA, tokenB} {
		if _, err := first.Verify(token); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		Config
		a bool
	}{
		"another kid":                 {Config{Keys: []Key{key(a)}, Before: first}, true},
		"another key under the kid":   {Config{Keys: []Key{key(newPair("a", "ES256"))}, Before: first}, false},
		"other rules":                 {Config{Keys: []Key{key(a)}, Rules: Rules{Leeway: time.Second}, Before: first}, false},
		"revoked":                     {Config{Keys: []Key{key(a)}, Revoked: []Revocation{{UID: "7", Before: "2100-01-01T00:00:00Z"}}, Before: first}, false},
		"no verifier that was before": {Config{Keys: []Key{key(a)}}, false},
	} {
		v := verifier(t, c.Config)
		if _, ok := v.Remembered(tokenA); ok != c.a {
			t.Errorf("%s: the token is remembered: %v, want %v", name, ok, c.a)
		}
		if _, ok := v.Remembered(tokenB); ok {
			t.Errorf("%s: a token of a key that went is remembered", name)
		}
	}
	p := newProvider(t)
	p.publish(edit(b.jwk(), "kid", "a"))
	j, _ := readings(JWKSConfig{URL: p.URL, Refresh: time.Hour})
	if err := j.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := verifier(t, Config{Keys: []Key{key(a)}, JWKS: j})
	if _, err := v.Verify(tokenA); err != nil {
		t.Errorf("a set took the kid of a key of the configuration: %v", err)
	}
	if _, err := v.Verify([]byte(b.sign(m{"alg": "ES256", "kid": "a"}, m{"sub": "7", "exp": time.Now().Unix() + 60}))); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of the set's key under the same kid: %v", err)
	}
}

func TestAProviderThatMisbehaves(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	p := newProvider(t)
	good := newPair("good", "ES256")
	p.publish(good.jwk())
	j, _ := readings(JWKSConfig{URL: p.URL + "/keys?tenant=hidden", Refresh: time.Hour})
	if err := j.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := verifier(t, Config{JWKS: j})
	elsewhere := newProvider(t)
	elsewhere.publish(newPair("evil", "ES256").jwk())
	ended := make(chan struct{})
	for _, c := range []struct {
		name, want string
		handler    http.HandlerFunc
	}{
		{"500", "status 500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }},
		{"404 with a set", "status 404", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(404)
			io.WriteString(w, setOf(good.jwk()))
		}},
		{"no content", "status 204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }},
		{"a redirect", "redirect (302)", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }},
		{"a lasting redirect", "redirect (308)", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusPermanentRedirect)
		}},
		{"garbage", "not a JWK set", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "garbage") }},
		{"emptied", "no key", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"keys":[]}`) }},
		{"a secret", "secret or private", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, setOf(good.jwk(), m{"kty": "oct", "kid": "hidden", "k": "AAAA"}))
		}},
		{"two of one kid", "twice", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, setOf(good.jwk(), good.jwk())) }},
		{"gigabytes", "more than", func(w http.ResponseWriter, r *http.Request) {
			for n := 0; n < 4<<30; n += 1 << 20 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					close(ended)
					return
				}
			}
		}},
		{"cut off", "broke off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "{")
		}},
		{"a huge header", "", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Huge", strings.Repeat("a", 1<<20))
			io.WriteString(w, setOf(good.jwk()))
		}},
		{"no HTTP", "", func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, "hello\r\n\r\n")
			c.Close()
		}},
		{"no answer", "context deadline exceeded", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	} {
		p.set(c.handler)
		ctx := t.Context()
		if c.name == "no answer" {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 10*time.Millisecond) // the bound of a reading, in less time
			defer cancel()
		}
		err := j.Read(ctx)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
		if at, failure := j.State(); at.IsZero() || err != nil && failure != err.Error() {
			t.Errorf("%s: state %v, %q", c.name, at, failure)
		}
		if _, err := v.Verify([]byte(good.token(time.Now(), "n", c.name))); err != nil || j.Keys() != 1 {
			t.Errorf("%s: the last good set is gone: %v", c.name, err)
		}
	}
	<-ended
	select {
	case <-elsewhere.asked:
		t.Error("a redirect was followed")
	default:
	}
	p.publish(good.jwk())
	if err := j.Read(t.Context()); err != nil {
		t.Error(err)
	}
	if _, failure := j.State(); failure != "" {
		t.Errorf("the failure stays: %q", failure)
	}
	p.CloseClientConnections()
	p.Close()
	if err := j.Read(t.Context()); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("nobody listens: %v", err)
	}
}

// A token of an unknown key is refused at once. It makes the set be read, and many do so once.
func TestAnUnknownKeyIsAskedFor(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	p := newProvider(t)
	first, next := newPair("first", "ES256"), newPair("next", "ES256")
	p.publish(first.jwk())
	j, told := readings(JWKSConfig{URL: p.URL, Refresh: time.Hour})
	j.apart = 0
	run(t, j)
	if !<-told {
		t.Fatal("the first reading failed")
	}
	v := verifier(t, Config{JWKS: j})
	p.publish(next.jwk())
	token := []byte(next.token(time.Now()))
	if _, err := v.Verify(token); !errors.Is(err, ErrInvalid) {
		t.Fatalf("got %v before the key was read", err)
	}
	<-told
	if _, err := v.Verify(token); err != nil {
		t.Errorf("after the key was read: %v", err)
	}
	// What nobody signed asks for nothing, and neither does a bad signature of a known key.
	for len(told) > 0 {
		<-told
	}
	for _, bad := range []string{"x", "a.b.c", next.token(time.Now()) + "A", hs(m{"alg": "HS256", "kid": "next"}, m{"sub": "7"}, secret), next.sign(m{"alg": "ES256"}, m{})} {
		v.Verify([]byte(bad))
	}
	if len(j.asked) != 0 {
		t.Error("a token that names no unknown key asks for the set")
	}
}

func TestUnknownKeysAreAskedForAtABoundedRate(t *testing.T) {
	p := newProvider(t)
	first := newPair("first", "ES256")
	p.publish(first.jwk())
	j, told := readings(JWKSConfig{URL: p.URL, Refresh: time.Hour})
	j.apart = time.Hour
	run(t, j)
	<-told
	v := verifier(t, Config{JWKS: j})
	for i := range 10_000 {
		v.Verify([]byte(hs(m{"alg": "HS256", "kid": fmt.Sprint(i)}, m{"sub": "7"}, secret)))
	}
	if len(told) != 0 || len(p.asked) != 1 || j.Keys() != 1 {
		t.Errorf("%d readings more, the provider was asked %d times, %d keys", len(told), len(p.asked), j.Keys())
	}
	if n := testing.AllocsPerRun(100, func() { j.find("nobody") }); n != 0 {
		t.Errorf("%v allocations for an unknown kid", n)
	}
}

// The first reading is tried until it succeeds.
func TestReadingIsTriedAgain(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	p := newProvider(t)
	key := newPair("first", "ES256")
	p.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	j, told := readings(JWKSConfig{URL: p.URL, Refresh: time.Millisecond})
	run(t, j)
	for range 3 {
		if <-told {
			t.Fatal("a reading succeeded")
		}
	}
	if at, failure := j.State(); !at.IsZero() || failure == "" || j.Keys() != 0 {
		t.Errorf("got %v, %q", at, failure)
	}
	p.publish(key.jwk())
	for !<-told {
	}
	if _, err := verifier(t, Config{JWKS: j}).Verify([]byte(key.token(time.Now()))); err != nil {
		t.Error(err)
	}
}

func TestAFileIsReadWhenItChanges(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	path := filepath.Join(t.TempDir(), "keys.json")
	old, next := newPair("old", "ES256"), newPair("next", "ES256")
	replace := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	replace(setOf(old.jwk()))
	j, told := readings(JWKSConfig{File: path, Refresh: time.Hour})
	run(t, j)
	<-told
	v := verifier(t, Config{JWKS: j})
	replace("garbage")
	for <-told {
	}
	if _, err := v.Verify([]byte(old.token(time.Now()))); err != nil {
		t.Errorf("a bad file took the keys: %v", err)
	}
	replace(setOf(next.jwk()))
	for !<-told {
	}
	for {
		if _, err := v.Verify([]byte(next.token(time.Now()))); err == nil {
			break
		}
		<-told
	}
	if _, err := v.Verify([]byte(old.token(time.Now()))); !errors.Is(err, ErrInvalid) {
		t.Errorf("the old key: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for <-told {
	}
	if _, err := v.Verify([]byte(next.token(time.Now()))); err != nil {
		t.Errorf("a file that is gone took the keys: %v", err)
	}
	for name, path := range map[string]string{"missing": path, "a directory": t.TempDir()} {
		if err := CheckFile(path); err == nil || strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

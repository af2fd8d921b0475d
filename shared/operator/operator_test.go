package operator

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/problem"
)

func hashOf(token string) conf.Secret {
	sum := sha256.Sum256([]byte(token))
	return conf.Secret(hex.EncodeToString(sum[:]))
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		has, need Role
		want      bool
	}{
		{Viewer, Anybody, true}, {Anybody, Anybody, true}, {Anybody, Viewer, false}, {"root", Viewer, false}, {Admin, "root", false},
		{Viewer, Viewer, true}, {Viewer, Operates, false}, {Viewer, Admin, false},
		{Operates, Viewer, true}, {Operates, Operates, true}, {Operates, Admin, false},
		{Admin, Viewer, true}, {Admin, Operates, true}, {Admin, Admin, true},
	} {
		if got := c.has.Covers(c.need); got != c.want {
			t.Errorf("%q covers %q: got %v", c.has, c.need, got)
		}
	}
}

// Each wrong entry is named by its field, and no message holds a hash.
func TestCheck(t *testing.T) {
	a, b, own := hashOf("a"), hashOf("b"), conf.Secret("the-token-of-the-file")
	many := make([]Entry, MaxEntries+1)
	for i := range many {
		many[i] = Entry{fmt.Sprintf("n%d", i), Viewer, hashOf(fmt.Sprint(i))}
	}
	for _, c := range []struct {
		entries []Entry
		want    string // "" for nothing
	}{
		{nil, ""},
		{[]Entry{{"anna", Viewer, a}, {"bob.2_x-y", Admin, b}}, ""},
		{[]Entry{{"anna", Viewer, conf.Secret(strings.ToUpper(a.Reveal()))}}, ""},
		{many[:MaxEntries], ""},
		{many, "operators: 257 of them, there must be at most 256"},
		{[]Entry{{"", Viewer, a}}, `operators[0].name: "" must be 1 to 64 of`},
		{[]Entry{{"anna b", Viewer, a}}, `operators[0].name: "anna b" must be`},
		{[]Entry{{strings.Repeat("a", 65), Viewer, a}}, `operators[0].name: `},
		{[]Entry{{"anna", Viewer, a}, {"anna", Admin, b}}, `operators[1].name: "anna" is there twice`},
		{[]Entry{{"anna", Viewer, a}, {"Anna", Admin, b}}, `operators[1].name: "Anna" is there twice`},
		{[]Entry{{"admin", Admin, a}}, `operators[0].name: "admin" stands for another`},
		{[]Entry{{"Ops", Admin, a}}, `operators[0].name: "Ops" stands for another`},
		{[]Entry{{"timer", Admin, a}}, `operators[0].name: "timer" stands for another`},
		{[]Entry{{"anna", "", a}}, `operators[0].role: "" must be viewer, operator or admin`},
		{[]Entry{{"anna", "Admin", a}}, `operators[0].role: "Admin" must be viewer, operator or admin`},
		{[]Entry{{"anna", Viewer, ""}}, "operators[0].token_sha256: it must be the 64 hex digits"},
		{[]Entry{{"anna", Viewer, a[:63]}}, "operators[0].token_sha256: it must be the 64 hex digits"},
		{[]Entry{{"anna", Viewer, a + "00"}}, "operators[0].token_sha256: it must be the 64 hex digits"},
		{[]Entry{{"anna", Viewer, "x" + a[1:]}}, "operators[0].token_sha256: it must be the 64 hex digits"},
		{[]Entry{{"anna", Viewer, hashOf("")}}, "operators[0].token_sha256: it is the hash of an empty token"},
		{[]Entry{{"anna", Viewer, a}, {"bob", Viewer, a}}, "operators[1].token_sha256: it is the hash of another's token, see operators[0]"},
		{[]Entry{{"anna", Viewer, hashOf(own.Reveal())}}, "operators[0].token_sha256: it is the hash of another's token, see admin_token"},
	} {
		errs := Check(c.entries, "admin_token", own)
		got := errors.Join(errs...)
		if c.want == "" && got != nil || c.want != "" && (len(errs) != 1 || !strings.HasPrefix(got.Error(), c.want)) {
			t.Errorf("%.80v: got %v, want %q", c.entries, got, c.want)
		}
		if got != nil && strings.Contains(got.Error(), a.Reveal()[:16]) {
			t.Errorf("%v holds a hash", got)
		}
	}
}

func TestAListFindsByToken(t *testing.T) {
	l := NewList("admin", "own", []Entry{{"anna", Viewer, hashOf("a")}})
	for token, want := range map[string]string{"own": "admin (admin)", "a": "anna (viewer)", "": "", "b": "", hashOf("a").Reveal(): "", "admin": ""} {
		if o, ok := l.Find(token); ok != (want != "") || o.String() != want {
			t.Errorf("%q: got %v, %v, want %q", token, o, ok, want)
		}
	}
	if o, ok := l.Named("anna"); !ok || o.Role != Viewer {
		t.Errorf("got %v, %v", o, ok)
	}
	if _, ok := NewList("ops", "", nil).Find(""); ok || !NewList("ops", "", nil).Empty() || l.Empty() {
		t.Error("an empty token found somebody, or Empty is wrong")
	}
}

func TestDiff(t *testing.T) {
	was := NewList("admin", "own", []Entry{{"anna", Viewer, hashOf("a")}, {"bob", Operates, hashOf("b")}, {"carl", Admin, hashOf("c")}})
	is := NewList("admin", "own", []Entry{{"anna", Admin, hashOf("a2")}, {"carl", Admin, hashOf("c")}, {"dora", Viewer, hashOf("d")}})
	got := strings.Join(was.Diff(is), "\n")
	if want := "anna (viewer) becomes admin\nanna has another token\nbob (operator) is gone\ndora (viewer) is new"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := was.Diff(was); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// What the command prints is a token that the printed line makes right.
func TestTheCommandPrintsATokenAndItsLine(t *testing.T) {
	var out bytes.Buffer
	if err := (TokenCommand{"anna", "operator"}).Write(&out); err != nil {
		t.Fatal(err)
	}
	token := regexp.MustCompile(`(?m)^fgop_[A-Za-z0-9_-]{43}$`).FindString(out.String())
	_, line, ok := strings.Cut(out.String(), "configuration:\n")
	var file struct {
		Operators []Entry `yaml:"operators"`
	}
	if err := conf.Parse([]byte("operators:\n"+line), &file); err != nil || !ok {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if errs := Check(file.Operators, "", ""); errs != nil {
		t.Fatal(errs)
	}
	if o, ok := NewList("", "", file.Operators).Find(token); !ok || o.String() != "anna (operator)" || !minted(token) {
		t.Errorf("got %v, %v of\n%s", o, ok, out.String())
	}
	for _, c := range []TokenCommand{{"", "viewer"}, {"a b", "viewer"}, {"ops", "viewer"}, {"anna", "root"}, {"anna", ""}} {
		if err := c.Write(&out); cli.ExitCode(err) != 2 {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

// watched is an Authenticator, with its log.
func watched(l *List) (*Authenticator, *bytes.Buffer) {
	var log bytes.Buffer
	return NewAuthenticator(func() *List { return l }, "test", slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry()), &log
}

func status(p *problem.Problem) int {
	if p == nil {
		return 200
	}
	return p.Status
}

// An address with too many wrong tokens waits, a right one included; others do not, nor does a minted token. The log counts, and never
// has a token.
func TestGuessesAreSlowedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token, hash := Mint()
		l := NewList("admin", "human-chosen", []Entry{{"anna", Viewer, conf.Secret(hash)}})
		a, log := watched(l)
		from := "127.0.0.1:1"
		for i := range burstWrong {
			if _, p := a.Token(from, fmt.Sprintf("guess-%d", i)); status(p) != 401 {
				t.Fatalf("guess %d: got %v", i, p)
			}
		}
		for _, guess := range []string{"guess-x", "human-chosen"} {
			_, p := a.Token("127.0.0.1:2", guess)
			if status(p) != 429 || p.Code != problem.RateLimited || p.RetryAfter <= 0 || p.RetryAfter > everyWrong {
				t.Fatalf("%s: got %+v", guess, p)
			}
			w := httptest.NewRecorder()
			Describe(w.Header(), p)
			if h := w.Header(); h.Get("Retry-After") != "6" || h.Get("RateLimit-Policy") != `"guesses";q=10;w=60` || h.Get("RateLimit") != `"guesses";r=0;t=6` {
				t.Errorf("got %v", h)
			}
		}
		if o, p := a.Token(from, token); p != nil || o.Name != "anna" {
			t.Errorf("the minted token: got %v, %v", o, p)
		}
		for _, other := range []string{"127.0.0.2:1", "[2001:db8::1]:1"} {
			if o, p := a.Token(other, "human-chosen"); p != nil || o.Name != "admin" {
				t.Errorf("from %s: got %v, %v", other, o, p)
			}
		}
		time.Sleep(everyWrong)
		if o, p := a.Token(from, "human-chosen"); p != nil || o.Name != "admin" {
			t.Errorf("after the wait: got %v, %v", o, p)
		}
		if _, p := a.Token(from, "guess-y"); status(p) != 401 {
			t.Errorf("got %v", p)
		}
		if _, p := a.Token(from, "guess-z"); status(p) != 429 {
			t.Errorf("got %v", p)
		}
		if got := log.String(); strings.Count(got, "address=127.0.0.1/32") != burstWrong+1 || !strings.Contains(got, "wrong=11") || strings.Contains(got, "guess-") {
			t.Errorf("it logged\n%s", got)
		}
		if w, s := testutil.ToFloat64(a.wrong), testutil.ToFloat64(a.slows); w != burstWrong+1 || s != 3 {
			t.Errorf("got %v wrong, %v slowed", w, s)
		}
	})
}

// Requests without a token are no guesses, and neighbours in an IPv6 network are one address.
func TestWhatCountsAsAGuess(t *testing.T) {
	a, _ := watched(NewList("admin", "own", nil))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for range burstWrong * 2 {
		for _, value := range []string{"", "Bearer", "Bearer ", "Basic own", "own"} {
			r.Header.Set("Authorization", value)
			if _, p := a.Bearer(r); status(p) != 401 {
				t.Fatalf("%q: got %v", value, p)
			}
		}
	}
	for _, value := range []string{"Bearer own", "bearer  own "} {
		r.Header.Set("Authorization", value)
		if o, p := a.Bearer(r); p != nil || o.Name != "admin" {
			t.Errorf("%q: got %v, %v", value, o, p)
		}
	}
	for i := range burstWrong {
		a.Token(fmt.Sprintf("[2001:db8::%x]:1", i+1), "wrong")
	}
	if _, p := a.Token("[2001:db8::ffff]:1", "own"); status(p) != 429 {
		t.Errorf("got %v", p)
	}
	if _, p := a.Token("[2001:db8:0:1::1]:1", "own"); p != nil {
		t.Errorf("got %v", p)
	}
	for i := range burstWrong {
		a.Token(fmt.Sprintf("[::ffff:10.0.0.1]:%d", i+1), "wrong")
	}
	if _, p := a.Token("10.0.0.1:1", "own"); status(p) != 429 {
		t.Errorf("an IPv4 address in IPv6 form: got %v", p)
	}
}

// When the table is full, addresses that are not in it share one bucket. What has waited long enough leaves.
func TestAFullTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuesses()
		now := time.Now()
		addr := func(i int) string { return fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255) }
		for i := range maxAddresses {
			if wait, _ := g.take(network(addr(i)), false, now); wait != 0 {
				t.Fatal(wait)
			}
		}
		for i := range burstWrong {
			if wait, _ := g.take(network(addr(maxAddresses+i)), false, now); wait != 0 {
				t.Fatal(wait)
			}
		}
		if wait, _ := g.take(network("192.0.2.1:1"), true, now); wait <= 0 {
			t.Error("an address without a place does not wait with the others")
		}
		if wait, _ := g.take(network(addr(7)), true, now); wait != 0 {
			t.Errorf("an address with a place waits %v", wait)
		}
		if len(g.known) != maxAddresses {
			t.Errorf("%d addresses are remembered", len(g.known))
		}
		now = now.Add(2 * everyWrong)
		if wait, _ := g.take(network("192.0.2.1:1"), false, now); wait != 0 || len(g.known) != 1 {
			t.Errorf("got %v, and %d addresses", wait, len(g.known))
		}
	})
}

// A flood at one moment has no more guesses than one after the other.
func TestAFloodOfGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := watched(NewList("admin", "own", nil))
		looked := make(chan int)
		for i := range 1000 {
			go func() {
				_, p := a.Token("192.0.2.1:1", fmt.Sprint(i))
				looked <- status(p)
			}()
		}
		n := 0
		for range 1000 {
			if <-looked == 401 {
				n++
			}
		}
		if n != burstWrong {
			t.Errorf("%d guesses were looked at, want %d", n, burstWrong)
		}
	})
}

package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func rule(name string, rate float64, burst int) *limit.Rule {
	return limit.NewRule(name, 1000, time.Now(), limit.Law{Rate: rate, Burst: burst})
}

func generous() edge.Settings {
	return edge.Settings{
		Order: rule("order", 1000, 1000), Payment: rule("payment", 1000, 1000), Read: rule("read", 1000, 1000), IP: rule("ip", 1000, 1000), IPUsers: rule("ip_users", 1000, 1000),
		Webhook: rule("webhook", 1000, 1000), Global: rule("global", 1000, 1000),
	}
}

// logged is a line of an access log.
func logged(at time.Duration, more map[string]any) string {
	l := map[string]any{"time": start.Add(at), "level": "INFO", "msg": "request", "method": "POST", "path": "/v1/sales/1/orders", "addr": "a1", "network": "192.0.2.0/24",
		"status": 202, "took": 0.0, "every": 1}
	for k, v := range more {
		l[k] = v
	}
	b, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return string(b) + "\n"
}

type fields = map[string]any

func run(t *testing.T, s edge.Settings, lines ...string) *Report {
	t.Helper()
	r, err := Run(strings.NewReader(strings.Join(lines, "")), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Each rule decides what comes to it, in the order of the gateway's checks.
func TestEachRule(t *testing.T) {
	with := func(change func(*edge.Settings)) edge.Settings {
		s := generous()
		change(&s)
		return s
	}
	networks := func(list ...string) network.Set {
		s, err := network.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one := map[string]struct{}{"u": {}}
	for _, c := range []struct {
		name     string
		settings edge.Settings
		line     fields
		rules    string // of two such lines; before and after
		unknown  int
	}{
		{"order", with(func(s *edge.Settings) { s.Order = rule("order", 0.1, 1) }), fields{"uid": "u"}, "[{order 0 1}]", 0},
		{"cart", with(func(s *edge.Settings) { s.Order = rule("order", 0.1, 1) }), fields{"uid": "u", "path": "/v1/cart/orders"}, "[{order 0 1}]", 0},
		{"read", with(func(s *edge.Settings) { s.Read = rule("read", 0.1, 1) }), fields{"uid": "u", "method": "GET", "path": "/v1/orders"}, "[{read 0 1}]", 0},
		{"payment", with(func(s *edge.Settings) { s.Payment = rule("payment", 0.1, 1) }), fields{"uid": "u", "path": "/v1/orders/x/payment"}, "[{payment 0 1}]", 0},
		{"other buckets", with(func(s *edge.Settings) { s.Payment = rule("payment", 0.1, 1) }), fields{"uid": "u"}, "[]", 0},
		{"global", with(func(s *edge.Settings) { s.Global = rule("global", 0.1, 1) }), fields{"uid": "u"}, "[{global 0 1}]", 0},
		{"global, with time to wait", with(func(s *edge.Settings) {
			s.Global, s.GlobalWait = rule("global", 0.1, 1), limit.WaitBounds{MaxWait: time.Minute, MaxWaiting: 1}
		}), fields{"uid": "u"}, "[]", 0},
		{"no read draws on it", with(func(s *edge.Settings) { s.Global = rule("global", 0.1, 1) }), fields{"uid": "u", "method": "GET", "path": "/v1/orders"}, "[]", 0},
		{"ip", with(func(s *edge.Settings) { s.IP = rule("ip", 0.1, 1) }), fields{"uid": "u"}, "[{ip 0 1}]", 0},
		{"ip of a stranger", with(func(s *edge.Settings) { s.IP = rule("ip", 0.1, 1) }), fields{"rule": "identity", "status": 401}, "[{ip 0 1}]", 0},
		{"ip, exempt", with(func(s *edge.Settings) { s.IP, s.Exempt = rule("ip", 0.1, 1), networks("192.0.2.0/23") }), fields{"uid": "u"}, "[]", 0},
		{"ip, half exempt", with(func(s *edge.Settings) { s.IP, s.Exempt = rule("ip", 0.1, 1), networks("192.0.2.0/25") }), fields{"uid": "u"}, "[{ip 0 1}]", 0},
		{"ip_users", with(func(s *edge.Settings) { s.IPUsers = rule("ip_users", 0.1, 1) }), fields{"uid": "u", "known": true}, "[{ip_users 0 1}]", 0},
		{"ip_users before, not now", generous(), fields{"uid": "u", "known": true, "rule": "ip_users", "status": 429}, "[{ip_users 2 0}]", 0},
		{"a known user does not draw on ip", with(func(s *edge.Settings) { s.IP = rule("ip", 0.1, 1) }), fields{"uid": "u", "known": true}, "[]", 0},
		{"webhook", with(func(s *edge.Settings) { s.Webhook = rule("webhook", 0.1, 1) }), fields{"path": "/v1/payments/webhook/acme"}, "[{webhook 0 1}]", 0},
		{"a page from memory", with(func(s *edge.Settings) { s.IP = rule("ip", 0.1, 1) }), fields{"method": "GET", "path": "/v1/sales"}, "[]", 0},
		{"the gate", with(func(s *edge.Settings) { s.IP, s.Order = rule("ip", 0.1, 1), rule("order", 0.1, 1) }), fields{"rule": "gate", "status": 409}, "[]", 0},
		{"what has no limit", with(func(s *edge.Settings) { s.IP = rule("ip", 0.1, 1) }), fields{"method": "GET", "path": "/v1/time"}, "[]", 0},
		{"no such path", with(func(s *edge.Settings) { s.IP = rule("ip", 0.1, 1) }), fields{"path": nil, "uid": "u"}, "[]", 0},
		{"exempt user", with(func(s *edge.Settings) { s.Order, s.ExemptUsers = rule("order", 0.1, 1), one }), fields{"uid": "u"}, "[]", 0},
		{"banned user", with(func(s *edge.Settings) { s.BannedUsers = one }), fields{"uid": "u"}, "[{ban 0 2}]", 0},
		{"banned user who reads", with(func(s *edge.Settings) { s.BannedUsers = one }), fields{"uid": "u", "method": "GET", "path": "/v1/orders"}, "[]", 0},
		{"not eligible", with(func(s *edge.Settings) { s.EligibleUsers = one }), fields{"uid": "v"}, "[{eligible 0 2}]", 0},
		{"banned network", with(func(s *edge.Settings) { s.BannedNetworks = networks("192.0.0.0/16") }), fields{"uid": "u"}, "[{ban 0 2}]", 0},
		{"refused before, not now", generous(), fields{"uid": "u", "rule": "order", "status": 429}, "[{order 2 0}]", 0},
		{"refused by the address before, not now", generous(), fields{"rule": "ip", "status": 429}, "[{ip 2 0}]", 2},
		{"banned network before, not now", generous(), fields{"rule": "ban", "status": 403}, "[{ban 2 0}]", 2},
		{"refused both times", with(func(s *edge.Settings) { s.Order = rule("order", 0.1, 1) }), fields{"uid": "u", "rule": "order", "status": 429}, "[{order 2 1}]", 0},
		{"a bad body comes to no user's bucket", with(func(s *edge.Settings) { s.Order = rule("order", 0.1, 1) }), fields{"uid": "u", "rule": "body", "status": 400}, "[]", 0},
		{"in shadow", with(func(s *edge.Settings) {
			s.Order = limit.NewRule("order", 1, start, limit.Law{Rate: 0.1, Burst: 1, Shadow: true})
		}), fields{"uid": "u"}, "[]", 0},
	} {
		r := run(t, c.settings, logged(0, c.line), logged(time.Millisecond, c.line))
		if got := fmt.Sprint(r.Rules); got != c.rules || r.Unknown != c.unknown || r.Log.Requests != 2 {
			t.Errorf("%s: got %s, %d unknown, want %s, %d", c.name, got, r.Unknown, c.rules, c.unknown)
		}
	}
}

// The replay of any log is what the real tables decide at those times.
func TestAsTheTablesDecide(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	s := generous()
	s.Order = rule("order", 0.5, 2)
	table := limit.New[string]("order", prometheus.NewRegistry())
	var log strings.Builder
	want := 0
	for at := time.Duration(0); at < 5*time.Minute; at += time.Duration(rnd.IntN(400)) * time.Millisecond {
		uid := fmt.Sprint("u", rnd.IntN(20))
		log.WriteString(logged(at, fields{"uid": uid}))
		if !table.Take(uid, s.Order, start.Add(at)).OK {
			want++
		}
	}
	if r := run(t, s, log.String()); r.NewlyRefused != want || want == 0 {
		t.Errorf("got %d refused, want %d", r.NewlyRefused, want)
	}
}

// A line is written when the request was answered; it counts for when it arrived.
func TestOrderOfArrival(t *testing.T) {
	s := generous()
	s.Read = rule("read", 0.1, 1)
	line := func(answered, took time.Duration, id string) string {
		return logged(answered, fields{"uid": "u", "method": "GET", "path": "/v1/orders/x", "took": took.Seconds(), "network": id})
	}
	// The first to arrive, a long poll, is logged last, so it is the second in the log that is refused.
	r := run(t, s, line(5*time.Second, 0, "192.0.2.0/24"), line(9*time.Second, 9*time.Second, "198.51.100.0/24"))
	if r.OutOfOrder != 0 || fmt.Sprint(r.Networks) != "[{192.0.2.0/24 1}]" || !r.From.Equal(start) || !r.To.Equal(start.Add(5*time.Second)) || !r.First.Equal(start.Add(5*time.Second)) {
		t.Errorf("got %+v", r)
	}
	// Two hours late: it is told, and no token is earned twice.
	r = run(t, s, line(time.Hour, 0, "192.0.2.0/24"), line(time.Hour+time.Minute, 0, "192.0.2.0/24"), line(0, 0, "198.51.100.0/24"))
	if r.OutOfOrder != 1 || r.NewlyRefused != 1 {
		t.Errorf("got %+v", r)
	}
}

// What is no request is told and left out, wherever it stands.
func TestBadLines(t *testing.T) {
	good := logged(0, fields{"uid": "u"})
	r := run(t, generous(), "not JSON\n", "\n", `{"time":"2026-05-01T12:00:00Z","level":"INFO","msg":"listening"}`+"\n", good, good[:30]+"\n", "[1]\n", "\x00\xff\n",
		strings.Repeat("x", 3*maxLine)+"\n", strings.TrimSuffix(good, "}\n")+`,"more":"`+strings.Repeat("x", maxLine)+"\"}\n",
		logged(0, fields{"took": -1}), logged(0, fields{"took": 1e300}), logged(0, fields{"uid": strings.Repeat("u", 65)}), logged(0, fields{"time": "yesterday"}), logged(0, fields{"method": ""}),
		logged(0, fields{"gap": true}), good, good[:len(good)-20])
	if want := (LogSeen{Lines: 17, Requests: 3, Other: 1, Unreadable: 12, Gaps: 1}); r.Log != want {
		t.Errorf("got %+v, want %+v", r.Log, want)
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil || !strings.Contains(text.String(), "12 lines could not be read") || !strings.Contains(text.String(), "1 times the gateway dropped lines") {
		t.Errorf("got %v\n%s", err, &text)
	}
}

// A log that is not of all requests is refused; so is one that has none, and one that cannot be read.
func TestLogsThatCannotBeReplayed(t *testing.T) {
	for want, log := range map[string]io.Reader{
		"line 2: the log is a sample, of one request in 1000": strings.NewReader(logged(0, nil) + logged(0, fields{"every": 1000})),
		"log.access_every: 0":             strings.NewReader(logged(0, fields{"every": 0})),
		"line 1 does not say whether":     strings.NewReader(logged(0, fields{"every": nil})),
		"there is no request in this log": strings.NewReader(""),
		"2 lines, 2 of them no JSON":      strings.NewReader("time=2026-05-01T12:00:00Z level=INFO msg=request\nx"),
		"after 1 lines: the disk is gone": io.MultiReader(strings.NewReader(logged(0, nil)), broken{}),
	} {
		if r, err := Run(log, generous()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %+v, %v, want %q", r, err, want)
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

// endless is a log of n requests, each of another user and network.
type endless struct {
	n, i int
	rest []byte
}

func (e *endless) Read(b []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.i++; e.i > e.n {
			return 0, io.EOF
		}
		e.rest = fmt.Appendf(nil, `{"time":%q,"msg":"request","method":"GET","path":"/v1/orders","uid":"u%d","addr":"%016x","network":"10.%d.%d.0/24","took":0.001,"every":1}`+"\n",
			start.Add(time.Duration(e.i)*time.Millisecond).Format(time.RFC3339Nano), e.i, e.i, e.i>>8&255, e.i&255)
	}
	n := copy(b, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Memory is bounded, however long the log is.
func TestMemoryIsBounded(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	s := generous()
	s.Read = rule("read", 0.001, 1) // no bucket is full again: the table is full of 1000 keys
	before := heap()
	var at50, at200 uint64
	log := &endless{n: 200_000}
	r, err := Run(readerFunc(func(b []byte) (int, error) {
		switch {
		case log.i >= 50_000 && at50 == 0:
			at50 = heap()
		case log.i >= 199_000 && at200 == 0:
			at200 = heap()
		}
		return log.Read(b)
	}), s)
	if err != nil || r.Log.Requests != 200_000 || r.NewlyRefused < 150_000 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if at200 > at50+4<<20 {
		t.Errorf("%d bytes before, %d after 50,000 requests, %d after 199,000", before, at50, at200)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func BenchmarkReplay(b *testing.B) {
	b.ReportAllocs()
	r, err := Run(&endless{n: b.N}, generous())
	if err != nil || r.Log.Requests != b.N {
		b.Fatal(err)
	}
}

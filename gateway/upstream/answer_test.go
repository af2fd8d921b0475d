package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/signing"
)

// Whatever a backend does with a connection, a request gets its own answer or is told that none came: never another's.
func TestAnAnswerIsToItsOwnRequest(t *testing.T) {
	var mu sync.Mutex // guards last
	last := map[*script]string{}
	var s *script
	// before returns the answer to the request that was read before this one, whatever connection it came by.
	before := func(c *side) string {
		mu.Lock()
		defer mu.Unlock()
		old := last[s]
		last[s] = answer(c.nonce(), string(c.head.RequestURI()))
		return old
	}
	late := make(chan struct{})
	for _, c := range []struct {
		name string
		act  func(n int, c *side) bool
		all  bool // every request gets its answer
	}{
		{"in order", func(_ int, c *side) bool { c.say(string(c.head.RequestURI())); return true }, true},
		{"twice", func(_ int, c *side) bool {
			mine := answer(c.nonce(), string(c.head.RequestURI()))
			io.WriteString(c, mine+mine)
			return true
		}, false},
		{"twice, the second when the next has been read", func(_ int, c *side) bool {
			io.WriteString(c, before(c))
			c.say(string(c.head.RequestURI()))
			return true
		}, false},
		{"always the one before", func(n int, c *side) bool {
			if old := before(c); old != "" {
				io.WriteString(c, old)
			} else {
				c.say(string(c.head.RequestURI()))
			}
			return true
		}, false},
		{"rubbish after it", func(_ int, c *side) bool {
			c.say(string(c.head.RequestURI()))
			io.WriteString(c, "\r\nrubbish\r\n\r\n")
			return true
		}, false},
		{"a half of another after it, the rest before the next", func(n int, c *side) bool {
			other := answer("0", "somebody else's")
			if n%2 == 1 {
				c.say(string(c.head.RequestURI()))
				io.WriteString(c, other[:20])
			} else {
				io.WriteString(c, other[20:])
			}
			return true
		}, false},
		{"of no request", func(_ int, c *side) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			return true
		}, false},
		{"too late", func(n int, c *side) bool {
			if n%3 == 0 {
				<-late
			}
			c.say(string(c.head.RequestURI()))
			return true
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s = serve(t, c.act)
			timeout := time.Minute
			if c.name == "too late" {
				timeout = 50 * time.Millisecond
			}
			p := pool(t, timeout, s.Addr().String())
			for i := range 20 {
				if i == 10 && c.name == "too late" {
					close(late)
				}
				target := fmt.Sprint("/", i)
				var resp fasthttp.Response
				err := p.Do(&Request{Method: "POST", Target: target}, &resp)
				switch {
				case err == nil && string(resp.Body()) != target:
					t.Errorf("%s got %q", target, resp.Body())
				case c.name == "too late" && errors.Is(err, ErrNotSent): // the time was over before it was connected
				case err != nil && (!errors.Is(err, ErrUnknown) || c.all || len(resp.Body()) > 0):
					t.Errorf("%s: got %v, %q", target, err, resp.Body())
				}
			}
			if got := s.read(); got > 20 {
				t.Errorf("%d were read: a POST was sent twice", got)
			}
		})
	}
}

// What is sent says when nobody waits for the answer any more, by the server's clock and only once that is known; the
// gateway's own questions never do, for it is the feed that sets the clock.
func TestTheDeadlineIsNamed(t *testing.T) {
	deadlines := make(chan string, 10)
	s := serve(t, func(_ int, c *side) bool {
		deadlines <- string(c.head.Peek(signing.HeaderDeadline))
		c.say("ok")
		return true
	})
	p := pool(t, time.Minute, s.Addr().String())
	send := func(wait time.Duration) string {
		t.Helper()
		var resp fasthttp.Response
		if err := p.Do(&Request{Method: "GET", Target: "/x", Wait: wait}, &resp); err != nil {
			t.Fatal(err)
		}
		return <-deadlines
	}
	if got := send(0); got != "" {
		t.Errorf("by a clock that nobody has set: %s", got)
	}
	server := time.UnixMilli(1_800_000_000_000)
	p.clk.Set(server, time.Now())
	for wait, want := range map[time.Duration]time.Duration{0: time.Minute, time.Hour: time.Hour + time.Minute} {
		var ms int64
		fmt.Sscan(send(wait), &ms)
		if d := time.UnixMilli(ms).Sub(server.Add(want)); d < -time.Minute || d > time.Minute {
			t.Errorf("wait %v: %v off", wait, d)
		}
	}
	if _, err := p.Feed(t.Context(), 0, "/feed", time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := <-deadlines; got != "" {
		t.Errorf("the feed was asked for with deadline %s", got)
	}
}

// A backend that is taken off the list finishes what it has, and gets nothing new.
func TestABackendThatIsRemovedDrains(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{})
	old := serve(t, func(n int, c *side) bool {
		entered <- struct{}{}
		<-release
		c.say("old")
		return true
	})
	next := serve(t, func(_ int, c *side) bool { c.say("new"); return true })
	p := pool(t, time.Minute, old.Addr().String())
	got := make(chan string)
	go func() { body, err := do(p, "POST"); got <- fmt.Sprint(body, err) }()
	<-entered
	c := p.current.Load().Config
	c.Backends = []string{next.Addr().String()}
	p.SetConfig(c)
	for range 10 {
		if body, err := do(p, "POST"); body != "new" || err != nil {
			t.Errorf("after the change: got %q, %v", body, err)
		}
	}
	if p.InFlight() != 1 {
		t.Errorf("%d in flight, want the one at the old backend", p.InFlight())
	}
	close(release)
	if a := <-got; a != "old<nil>" {
		t.Errorf("what was in flight: got %s", a)
	}
	for range 20 { // when both are idle, too
		do(p, "POST")
	}
	if old.read() != 1 || p.InFlight() != 0 {
		t.Errorf("the old backend read %d, %d in flight", old.read(), p.InFlight())
	}
}

// until waits for what comes about by itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it never came about: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// A backend that takes connections and does not answer is found out by the checks, not by shoppers, and takes its share
// again when it is back. One that says it is draining is passed over as well.
func TestChecks(t *testing.T) {
	var mu sync.Mutex // guards state
	state := "hangs"
	set := func(to string) { mu.Lock(); state = to; mu.Unlock() }
	end := make(chan struct{})
	ill := serve(t, func(_ int, c *side) bool {
		mu.Lock()
		now := state
		mu.Unlock()
		switch now {
		case "hangs":
			<-end
		case "drains":
			io.WriteString(c, strings.Replace(answer(c.nonce(), "bye"), "200 OK", "503 x", 1))
		default:
			c.say("ill")
		}
		return true
	})
	t.Cleanup(func() { close(end) })
	well := serve(t, func(_ int, c *side) bool { c.say("well"); return true })
	p := pool(t, time.Minute, ill.Addr().String(), well.Addr().String())
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.Watch(ctx) })
	for _, how := range []string{"hangs", "serves", "drains", "serves"} {
		set(how)
		lost := 0
		if how != "serves" {
			lost = 1
		}
		until(t, "it is known that it "+how, func() bool { return len(p.Down()) == lost })
		served := map[string]int{}
		for range 40 {
			body, err := do(p, "POST")
			if err != nil {
				t.Fatalf("it %s: got %v", how, err)
			}
			served[body]++
		}
		if served["well"] == 0 || (served["ill"] > 0) != (how == "serves") {
			t.Errorf("it %s: served %v", how, served)
		}
	}
}

// One that failed comes back with one request at a time, so that the least busy of all, which it is, does not draw a crowd.
func TestProbation(t *testing.T) {
	b, other := &backend{addr: "b"}, &backend{addr: "other"}
	s := &configured{backends: []*backend{b, other}}
	for range ejectAfter {
		b.failed()
	}
	b.ejectedUntil.Store(0) // its time has come
	other.inFlight.Store(100)
	if s.pick(nil) != b {
		t.Error("it gets no second chance")
	}
	b.inFlight.Store(1)
	if s.pick(nil) != other {
		t.Error("it draws a crowd before it has answered")
	}
	b.answered()
	if s.pick(nil) != b {
		t.Error("it has answered")
	}
	if b.ejections.Load() != 1 {
		t.Errorf("%d ejections counted", b.ejections.Load())
	}
}

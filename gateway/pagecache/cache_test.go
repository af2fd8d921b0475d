package pagecache

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rule = Rule{TTL: time.Second, Stale: 30 * time.Second}

func page(body string) *Page { return NewPage(200, "text/plain", "", []byte(body)) }

func (p *Page) text() string { return string(p.Body(Identity)) }

// source counts what is fetched, and answers with what it is told.
type source struct {
	calls  atomic.Int64
	answer atomic.Pointer[func() (*Page, error)]
}

func (s *source) fetch() (*Page, error) {
	s.calls.Add(1)
	return (*s.answer.Load())()
}

func (s *source) says(f func() (*Page, error)) { s.answer.Store(&f) }

// read is what the edge does.
func read(c *Cache, key string, s *source) (*Page, How, error) {
	if p, how, renew := c.Fresh([]byte(key), rule, time.Now()); how != "" {
		if renew {
			c.Renew(key, s.fetch)
		}
		return p, how, nil
	}
	return c.Get(key, rule, time.Now(), time.Second, s.fetch)
}

func bubble(t *testing.T, test func(c *Cache, s *source)) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1<<20, prometheus.NewRegistry())
		s := &source{}
		s.says(func() (*Page, error) { return page(fmt.Sprint("v", s.calls.Load())), nil })
		test(c, s)
		c.Close()
	})
}

func TestFreshThenStaleThenFetched(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		for _, step := range []struct {
			after time.Duration
			body  string
			how   How
			calls int64
		}{
			{0, "v1", Miss, 1}, {time.Second, "v1", Hit, 1},
			{time.Millisecond, "v1", Stale, 2},                 // fetched behind the scenes
			{time.Second, "v2", Hit, 2},                        //
			{2 * time.Second, "v3", Miss, 3},                   // too old: who asks waits
			{31*time.Second + time.Millisecond, "v4", Miss, 4}, //
		} {
			time.Sleep(step.after)
			p, how, err := read(c, "/a", s)
			synctest.Wait()
			if err != nil || p.text() != step.body || how != step.how || s.calls.Load() != step.calls {
				t.Errorf("after %v: got %s %s %v, %d calls; want %+v", step.after, p.text(), how, err, s.calls.Load(), step)
			}
		}
	})
}

func TestTenThousandMissesAreOneCall(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		s.says(func() (*Page, error) { time.Sleep(100 * time.Millisecond); return page("v"), nil })
		var hows sync.Map
		var wg sync.WaitGroup
		for range 10_000 {
			wg.Go(func() {
				_, how, err := read(c, "/a", s)
				if err != nil {
					t.Error(err)
				}
				n, _ := hows.LoadOrStore(how, new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
			})
		}
		wg.Wait()
		coalesced, _ := hows.Load(Coalesced)
		if s.calls.Load() != 1 || coalesced.(*atomic.Int64).Load() != 9_999 {
			t.Errorf("got %d calls, %d coalesced", s.calls.Load(), coalesced.(*atomic.Int64).Load())
		}
	})
}

func TestErrorsAreNeverKept(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		boom := errors.New("boom")
		for i, answer := range []func() (*Page, error){
			func() (*Page, error) { return nil, boom },
			func() (*Page, error) { return &Page{Status: 503}, nil },
			func() (*Page, error) { return &Page{Status: 404}, nil },
		} {
			s.says(answer)
			for range 3 {
				p, how, err := read(c, "/a", s)
				if how != Miss || err == nil && p.Status == 200 {
					t.Errorf("%d: got %v %s %v", i, p, how, err)
				}
			}
		}
		if s.calls.Load() != 9 {
			t.Errorf("got %d calls, want 9", s.calls.Load())
		}
		s.says(func() (*Page, error) { return page("good"), nil })
		read(c, "/a", s)
		s.says(func() (*Page, error) { return nil, boom })
		time.Sleep(30 * time.Second)
		if p, how, err := read(c, "/a", s); err != nil || how != Stale || p.text() != "good" {
			t.Errorf("stale on error: got %v %s %v", p, how, err)
		}
		time.Sleep(2 * time.Second)
		if _, _, err := read(c, "/a", s); !errors.Is(err, boom) {
			t.Errorf("older than it may be: got %v", err)
		}
		s.says(func() (*Page, error) { return &Page{Status: 404}, nil }) // is an answer: the page is gone
		read(c, "/b", s)
	})
}

// A backend that hangs holds up the reader who finds out, and nobody after: the old page is served at once while one
// request at a time, behind the scenes, looks whether the backend is back.
func TestNobodyWaitsForABackendThatHangs(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		read(c, "/a", s)
		time.Sleep(10 * time.Second)
		s.says(func() (*Page, error) { time.Sleep(3 * time.Second); return nil, errors.New("no answer") })
		took := func() (time.Duration, string, How) {
			began := time.Now()
			p, how, err := read(c, "/a", s)
			if err != nil {
				t.Fatal(err)
			}
			return time.Since(began), p.text(), how
		}
		if d, text, how := took(); d != 3*time.Second || text != "v1" || how != Stale {
			t.Fatalf("the first: %v, %s %s", d, text, how)
		}
		c.Purge("/a") // what the feed says meanwhile makes it no worse
		before := s.calls.Load()
		for range 100 {
			if d, text, how := took(); d != 0 || text != "v1" || how != Stale {
				t.Fatalf("a later one: %v, %s %s", d, text, how)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.calls.Load() - before; n < 3 || n > 4 {
			t.Errorf("asked %d times in 10 s, want one after the other", n)
		}
		s.says(func() (*Page, error) { return page("back"), nil })
		time.Sleep(3 * time.Second)
		synctest.Wait()
		read(c, "/a", s)
		synctest.Wait()
		if d, text, how := took(); d != 0 || text != "back" || how != Hit {
			t.Errorf("it is back: %v, %s %s", d, text, how)
		}
		// One that refuses at once is not asked by every reader.
		s.says(func() (*Page, error) { return nil, errors.New("refused") })
		time.Sleep(5 * time.Second)
		took()
		before = s.calls.Load()
		for range 1000 {
			took()
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		if n := s.calls.Load() - before; n > 10 {
			t.Errorf("asked %d times in a second", n)
		}
	})
}

func TestWhatIsPrivateIsNotKept(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		s.says(func() (*Page, error) { p := page("v"); p.Private = true; return p, nil })
		for range 3 {
			if _, how, err := read(c, "/a", s); how != Miss || err != nil {
				t.Errorf("got %s, %v", how, err)
			}
		}
		if s.calls.Load() != 3 {
			t.Errorf("%d calls, want 3", s.calls.Load())
		}
	})
}

func TestPurge(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		read(c, "/a", s)
		c.Purge("/a", "/never")
		if p, how, _ := read(c, "/a", s); how != Miss || p.text() != "v2" {
			t.Errorf("got %s %s", p.text(), how)
		}
		// A fetch that began before the purge may bring the old page: it is not kept.
		c.Purge("/a")
		release := make(chan struct{})
		s.says(func() (*Page, error) { <-release; return page("old"), nil })
		got := make(chan *Page)
		go func() { p, _, _ := read(c, "/a", s); got <- p }()
		synctest.Wait()
		c.Purge("/a")
		s.says(func() (*Page, error) { return page("new"), nil })
		if p, how, _ := read(c, "/a", s); how != Miss || p.text() != "new" {
			t.Errorf("got %s %s", p.text(), how)
		}
		close(release)
		if p := <-got; p.text() != "old" {
			t.Errorf("who asked before: got %s", p.text())
		}
		if p, how, _ := read(c, "/a", s); how != Hit || p.text() != "new" {
			t.Errorf("the old fetch was kept: got %s %s", p.text(), how)
		}
		// The backend is gone: what was purged is better than nothing.
		c.Purge("/a")
		s.says(func() (*Page, error) { return nil, errors.New("gone") })
		if p, how, err := read(c, "/a", s); err != nil || how != Stale || p.text() != "new" {
			t.Errorf("got %v %s %v", p, how, err)
		}
	})
}

func TestWaitIsBounded(t *testing.T) {
	bubble(t, func(c *Cache, s *source) {
		release := make(chan struct{})
		s.says(func() (*Page, error) { <-release; return page("late"), nil })
		done := make(chan struct{})
		go func() { read(c, "/a", s); close(done) }()
		synctest.Wait()
		if _, _, err := read(c, "/a", s); !errors.Is(err, ErrWaited) {
			t.Errorf("got %v, want ErrWaited", err)
		}
		close(release)
		<-done
	})
}

func TestBytesAreBounded(t *testing.T) {
	c := New(100_000, prometheus.NewRegistry())
	s := &source{}
	s.says(func() (*Page, error) { return page(strings.Repeat("x", 1000)), nil })
	for i := range 1000 {
		read(c, fmt.Sprint("/", i), s)
		if c.bytes > 100_000 {
			t.Fatalf("%d bytes", c.bytes)
		}
		read(c, "/0", s) // in use all the time: it is not what makes room
	}
	if _, how, _ := read(c, "/0", s); how != Hit || len(c.pages) < 50 {
		t.Errorf("got %s, %d pages", how, len(c.pages))
	}
	s.says(func() (*Page, error) { return page(strings.Repeat("x", 200_000)), nil })
	if p, _, err := read(c, "/large", s); err != nil || len(p.text()) != 200_000 || c.pages["/large"] != nil {
		t.Error("a page larger than the cache")
	}
	c.SetMaxBytes(5_000)
	sum := int64(0)
	for key, e := range c.pages {
		sum += size(key, e.page)
	}
	if c.bytes > 5_000 || sum != c.bytes {
		t.Errorf("%d bytes after shrinking, they add up to %d", c.bytes, sum)
	}
	c.Close()
	if _, _, err := read(c, "/new", s); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: got %v", err)
	}
}

func TestAFetchThatPanicsHoldsNobodyUp(t *testing.T) {
	c := New(1<<20, prometheus.NewRegistry())
	s := &source{}
	s.says(func() (*Page, error) { panic("boom") })
	func() {
		defer func() { recover() }()
		read(c, "/a", s)
	}()
	s.says(func() (*Page, error) { return page("v"), nil })
	if p, how, err := read(c, "/a", s); err != nil || how != Miss || p.text() != "v" {
		t.Errorf("got %v %s %v", p, how, err)
	}
	c.Close()
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		field, etag string
		want        bool
	}{
		{`"a"`, `"a"`, true}, {`W/"a"`, `"a"`, true}, {`"a"`, `W/"a"`, true}, {`"b", W/"a" , "c"`, `"a"`, true}, {`*`, `"a"`, true},
		{`"b"`, `"a"`, false}, {``, `"a"`, false}, {`"a"`, ``, false}, {`*`, ``, false}, {`a`, `"a"`, false}, {`,,,`, `"a"`, false},
	} {
		if got := Matches([][]byte{[]byte("x"), []byte(c.field)}, c.etag); got != c.want {
			t.Errorf("%s against %s: got %v", c.field, c.etag, got)
		}
	}
}

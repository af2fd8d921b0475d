// Package pagecache keeps public pages for a moment, so that a crowd of readers is one request to the backend.
//
// A page is fresh for Rule.TTL. For as long again it is served while one request behind the scenes fetches it anew; after
// that a request fetches it, and those that come meanwhile wait for the same answer. When the backend does not answer, a
// page of up to TTL + Stale is served, and once that is known nobody waits to find it out again. Errors are never kept.
package pagecache

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// How a page was found. Its text is the X-Cache field.
type How string

// The values of X-Cache.
const (
	Hit       How = "HIT"
	Miss      How = "MISS"
	Stale     How = "STALE"
	Coalesced How = "COALESCED"
)

// Rule is how long pages count.
type Rule struct{ TTL, Stale time.Duration }

// Fetch gets a page from the backend. A page whose status is not 200, or that is Private, is given to everybody who waits, and
// not kept.
type Fetch func() (*Page, error)

// ErrWaited is returned to who waited for somebody else's fetch and heard nothing in time.
var ErrWaited = errors.New("no answer from the backend in time")

// ErrClosed is returned for a page that would have to be fetched after Close.
var ErrClosed = errors.New("the page cache is closed")

const (
	// overhead is what an entry costs beside its strings and bodies, in bytes, about.
	overhead = 256
	// again is the pause between attempts to renew a page behind the scenes while the backend does not answer.
	again = 100 * time.Millisecond
)

// Cache is safe for concurrent use. Make it with New; Close waits for the fetches behind the scenes.
type Cache struct {
	maxBytes atomic.Int64
	epoch    time.Time
	wg       sync.WaitGroup

	mu     sync.RWMutex // guards what follows
	pages  map[string]*entry
	calls  map[string]*call
	bytes  int64
	closed bool

	hits, misses, stale, coalesced, evictions prometheus.Counter
}

type entry struct {
	page    *Page
	stored  time.Time
	purged  atomic.Bool  // to be served only when the backend does not answer
	touched atomic.Int64 // nanoseconds since the cache's epoch
	failed  atomic.Int64 // when the last attempt to renew it failed, likewise; 0: none did
}

// call is one fetch under way; done is closed by who fetches, after page and err are set.
type call struct {
	done chan struct{}
	page *Page
	err  error
}

// New makes an empty cache of at most maxBytes.
func New(maxBytes int64, reg prometheus.Registerer) *Cache {
	c := &Cache{epoch: time.Now(), pages: map[string]*entry{}, calls: map[string]*call{}}
	c.maxBytes.Store(maxBytes)
	results := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_cache_requests_total", Help: "Cacheable reads by how the page was found."}, []string{"result"})
	c.hits, c.misses = results.WithLabelValues("hit"), results.WithLabelValues("miss")
	c.stale, c.coalesced = results.WithLabelValues("stale"), results.WithLabelValues("coalesced")
	c.evictions = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_cache_evictions_total", Help: "Pages that made room for others."})
	reg.MustRegister(results, c.evictions, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_cache_bytes", Help: "Size of the page cache."}, func() float64 {
		c.mu.RLock()
		defer c.mu.RUnlock()
		return float64(c.bytes)
	}))
	return c
}

// SetMaxBytes changes the bound.
func (c *Cache) SetMaxBytes(n int64) {
	c.maxBytes.Store(n)
	c.mu.Lock()
	c.shrink()
	c.mu.Unlock()
}

// Fresh returns the page if it may be served without waiting for anybody; "" if not. With renew the caller is to call Renew: the
// page is just past its time, or the backend did not answer when it was asked last.
func (c *Cache) Fresh(key []byte, rule Rule, now time.Time) (p *Page, how How, renew bool) {
	c.mu.RLock()
	e := c.pages[string(key)]
	c.mu.RUnlock()
	if e == nil {
		return nil, "", false
	}
	age, since, failed := now.Sub(e.stored), int64(now.Sub(c.epoch)), e.failed.Load()
	switch {
	case age <= rule.TTL && !e.purged.Load():
		c.hits.Inc()
		e.touched.Store(since)
		return e.page, Hit, false
	case failed > 0 && age <= rule.TTL+rule.Stale:
		renew = since-failed >= int64(again)
	case age <= rule.TTL+min(rule.TTL, rule.Stale) && !e.purged.Load():
		renew = true
	default:
		return nil, "", false
	}
	if renew {
		c.mu.RLock()
		renew = c.calls[string(key)] == nil // else it is being done
		c.mu.RUnlock()
	}
	c.stale.Inc()
	e.touched.Store(since)
	return e.page, Stale, renew
}

// Kept returns the page, however stale within the rule, for who may not ask the backend.
func (c *Cache) Kept(key []byte, rule Rule, now time.Time) (*Page, bool) {
	c.mu.RLock()
	e := c.pages[string(key)]
	c.mu.RUnlock()
	if e == nil || now.Sub(e.stored) > rule.TTL+rule.Stale {
		return nil, false
	}
	c.stale.Inc()
	return e.page, true
}

// Get fetches the page, together with all who want it at the same time, and keeps it. When the fetch fails, a page that
// is not too old is served instead. wait bounds how long it waits for somebody else's fetch.
func (c *Cache) Get(key string, rule Rule, now time.Time, wait time.Duration, fetch Fetch) (*Page, How, error) {
	c.mu.Lock()
	if e := c.pages[key]; e != nil && !e.purged.Load() && now.Sub(e.stored) <= rule.TTL { // it came just now
		c.mu.Unlock()
		c.hits.Inc()
		return e.page, Hit, nil
	}
	if c.closed {
		c.mu.Unlock()
		return nil, Miss, ErrClosed
	}
	if k := c.calls[key]; k != nil {
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		select {
		case <-k.done:
			if usable(k) {
				c.coalesced.Inc()
				return k.page, Coalesced, nil
			}
			return c.instead(key, rule, now, k)
		case <-ctx.Done():
			return c.instead(key, rule, now, &call{err: ErrWaited})
		}
	}
	k := c.begin(key)
	c.mu.Unlock()
	c.run(key, k, fetch)
	if usable(k) {
		c.misses.Inc()
		return k.page, Miss, nil
	}
	return c.instead(key, rule, now, k)
}

// usable reports whether the backend answered: a 5xx is no answer.
func usable(k *call) bool { return k.err == nil && k.page.Status < 500 }

// instead is what is served for a failed fetch: the old page if there is one, else the failure.
func (c *Cache) instead(key string, rule Rule, now time.Time, k *call) (*Page, How, error) {
	if page, ok := c.Kept([]byte(key), rule, now); ok {
		return page, Stale, nil
	}
	c.misses.Inc()
	return k.page, Miss, k.err
}

// Renew fetches a page anew behind the scenes, unless that is being done.
func (c *Cache) Renew(key string, fetch Fetch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[key] != nil || c.closed {
		return
	}
	k := c.begin(key)
	c.wg.Go(func() { c.run(key, k, fetch) })
}

// begin notes that key is being fetched. The caller holds mu and runs the call.
func (c *Cache) begin(key string) *call {
	k := &call{done: make(chan struct{})}
	c.calls[key] = k
	return k
}

// run fetches. A call that was purged meanwhile gives its page to those who wait for it, and is not kept. A backend that does
// not answer leaves a note on the page that there is.
func (c *Cache) run(key string, k *call, fetch Fetch) {
	k.err = errors.New("the fetch of the page broke off")
	defer func() { // also when fetch panics
		c.mu.Lock()
		if c.calls[key] == k {
			delete(c.calls, key)
			if k.err == nil && k.page.Status == 200 && !k.page.Private {
				c.store(key, k.page, time.Now())
			}
		}
		if e := c.pages[key]; e != nil && !usable(k) {
			e.failed.Store(int64(time.Since(c.epoch)))
		}
		c.mu.Unlock()
		close(k.done)
	}()
	k.page, k.err = fetch()
}

func (c *Cache) store(key string, page *Page, now time.Time) {
	c.drop(key)
	if size(key, page) > c.maxBytes.Load() {
		return
	}
	e := &entry{page: page, stored: now}
	e.touched.Store(int64(now.Sub(c.epoch)))
	c.pages[key] = e
	c.bytes += size(key, page)
	c.shrink()
}

// shrink makes room: of a few pages, as the map yields them, the one that was not read for the longest time goes.
func (c *Cache) shrink() {
	for c.bytes > c.maxBytes.Load() {
		var oldest string
		var touched int64
		n := 0
		for key, e := range c.pages {
			if t := e.touched.Load(); n == 0 || t < touched {
				oldest, touched = key, t
			}
			if n++; n == 16 {
				break
			}
		}
		c.drop(oldest)
		c.evictions.Inc()
	}
}

func (c *Cache) drop(key string) {
	if e := c.pages[key]; e != nil {
		delete(c.pages, key)
		c.bytes -= size(key, e.page)
	}
}

func size(key string, p *Page) int64 {
	n := overhead + len(key) + len(p.ContentType) + len(p.ETag)
	for _, body := range p.bodies {
		n += len(body)
	}
	return int64(n)
}

// Purge makes what is kept under these keys, and what is being fetched, old: the next request fetches anew.
func (c *Cache) Purge(keys ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		delete(c.calls, key)
		if e := c.pages[key]; e != nil {
			e.purged.Store(true)
		}
	}
}

// Close waits for the fetches behind the scenes and starts no more.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}

// Matches reports whether If-None-Match fields name etag, by weak comparison (RFC 9110, 13.1.2).
func Matches(fields [][]byte, etag string) bool {
	if etag == "" {
		return false
	}
	bare := strings.TrimPrefix(etag, "W/")
	for _, field := range fields {
		for len(field) > 0 {
			var one []byte
			one, field, _ = bytes.Cut(field, []byte(","))
			one = bytes.TrimSpace(one)
			if string(one) == "*" || string(bytes.TrimPrefix(one, []byte("W/"))) == bare {
				return true
			}
		}
	}
	return false
}

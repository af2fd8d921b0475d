// Package pagecache keeps public pages for a moment, so that a crowd of readers is one request to the backend.
//
// A page is fresh for Rule.TTL. For as long again it is served stale while one request in the background fetches it. After
// that one request fetches it, and the others wait for its answer. When the backend does not answer, a page is served
// until it is TTL + Stale old, and only the first reader waits to find that out. Errors are never kept.
package pagecache

import (
	"context"
	"errors"
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

// Rule is how long pages are served: fresh for TTL, and for Stale longer when the backend does not answer.
type Rule struct{ TTL, Stale time.Duration }

// Fetch gets a page from the backend. One that is Private, or whose status is not 200, is given to all who wait, and not kept.
type Fetch func() (*Page, error)

// ErrWaited is the error of a request that waited for another one's fetch, and got no answer in time.
var ErrWaited = errors.New("no answer from the backend in time")

// ErrClosed is the error of a fetch after Close.
var ErrClosed = errors.New("the page cache is closed")

const (
	// overhead is the memory of an entry beside its strings and bodies, in bytes, about.
	overhead = 256
	// retryEvery is the pause between fetches in the background while the backend does not answer.
	retryEvery = 100 * time.Millisecond
)

// Cache is safe for concurrent use. Make it with New, and Close it.
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
	purged  atomic.Bool  // served only when the backend does not answer
	touched atomic.Int64 // last read: nanoseconds since the cache's epoch
	failed  atomic.Int64 // the last fetch that failed, likewise; 0: none did
}

// call is one fetch in progress. run closes done after it has set page and err.
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

// Fresh returns the page if it may be served without waiting; how is "" if not. With renew the caller must call Renew: the
// page is just past its TTL, or the last fetch failed.
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
		renew = since-failed >= int64(retryEvery)
	case age <= rule.TTL+min(rule.TTL, rule.Stale) && !e.purged.Load():
		renew = true
	default:
		return nil, "", false
	}
	if renew {
		c.mu.RLock()
		renew = c.calls[string(key)] == nil // else it is being fetched
		c.mu.RUnlock()
	}
	c.stale.Inc()
	e.touched.Store(since)
	return e.page, Stale, renew
}

// Stale returns the page if it is at most TTL + Stale old, for a request that may not ask the backend.
func (c *Cache) Stale(key []byte, rule Rule, now time.Time) (*Page, bool) {
	c.mu.RLock()
	e := c.pages[string(key)]
	c.mu.RUnlock()
	if e == nil || now.Sub(e.stored) > rule.TTL+rule.Stale {
		return nil, false
	}
	c.stale.Inc()
	return e.page, true
}

// Get fetches the page, once for all who ask at the same time, and keeps it. If the fetch fails it returns a stale page
// within the rule. wait bounds the wait for another request's fetch.
func (c *Cache) Get(key string, rule Rule, now time.Time, wait time.Duration, fetch Fetch) (*Page, How, error) {
	c.mu.Lock()
	if e := c.pages[key]; e != nil && !e.purged.Load() && now.Sub(e.stored) <= rule.TTL { // another request has just fetched it
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
			return c.fallback(key, rule, now, k)
		case <-ctx.Done():
			return c.fallback(key, rule, now, &call{err: ErrWaited})
		}
	}
	k := c.begin(key)
	c.mu.Unlock()
	c.run(key, k, fetch)
	if usable(k) {
		c.misses.Inc()
		return k.page, Miss, nil
	}
	return c.fallback(key, rule, now, k)
}

// usable reports whether the backend answered; a 5xx is no answer.
func usable(k *call) bool { return k.err == nil && k.page.Status < 500 }

// fallback is the answer when a fetch has failed: the stale page if there is one, else the failure.
func (c *Cache) fallback(key string, rule Rule, now time.Time, k *call) (*Page, How, error) {
	if page, ok := c.Stale([]byte(key), rule, now); ok {
		return page, Stale, nil
	}
	c.misses.Inc()
	return k.page, Miss, k.err
}

// Renew fetches a page in the background, unless it is being fetched.
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

// run fetches, and keeps the page unless it was purged meanwhile. If the backend does not answer, it marks the page that is
// kept.
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

// shrink evicts pages until the bound holds: of 16 random pages, the least recently read.
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

// Purge makes the pages of these keys stale, and those that are being fetched, too: the next request fetches again.
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

// Close waits for the fetches in the background. There are none afterwards.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}

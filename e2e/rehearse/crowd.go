package rehearse

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// How the crowd is made up: what is left pays at once.
const (
	early     = 0.10 // press before the start
	steady    = 0.25 // come at any time of the sale; the rest within seconds of its start
	twice     = 0.10 // press twice at the same time, as a script would
	cancels   = 0.10 // of those who got one
	neverPays = 0.20 // of those who got one
	patient   = 0.30 // of those who are told that it is sold out stay, and look whether something comes back
)

// connections are what the crowd has at most; who finds none free waits. Those who have an order have as many.
const connections = 1000

// outcome is what a press was told, in words of the report.
type outcome int

const (
	accepted outcome = iota
	soldOut
	tooEarly
	over
	already
	limited
	busy
	silent
	other
	outcomes
)

var outcomeNames = [outcomes]string{"accepted (202)", "sold out", "not started", "ended", "has one already", "too fast (429)", "busy (503)", "no answer", "anything else"}

func outcomeOf(status int, code string) outcome {
	switch {
	case status == http.StatusAccepted:
		return accepted
	case status == 0, status == http.StatusRequestTimeout:
		return silent
	case code == string(problem.SoldOut):
		return soldOut
	case code == string(problem.SaleNotStarted):
		return tooEarly
	case code == string(problem.SaleEnded):
		return over
	case code == string(problem.AlreadyOrdered):
		return already
	case status == http.StatusTooManyRequests:
		return limited
	case status == http.StatusServiceUnavailable:
		return busy
	}
	return other
}

// final reports whether who was told this asks no more for now.
func (o outcome) final() bool { return o == accepted || o == soldOut || o == over || o == already }

// second is what was answered to presses within one second.
type second struct {
	told  [outcomes]int
	times histogram
}

// crowd is everybody who comes for a sale.
type crowd struct {
	url    string
	sale   int64
	began  time.Time
	length time.Duration
	seed   uint64
	client *world.Client // of those who have no order yet
	buyers *world.Client // of those who have one: they wait behind nobody
	log    *oracle.Log

	mu      sync.Mutex // guards the rest
	seconds map[int]*second
	finals  chan struct{} // closed, and made anew, at each final answer
	newest  time.Time     // the latest press that was answered finally
	took    time.Duration // by all presses
	queued  time.Duration // part of took: until they had a connection
	paid    int
	strange map[string]int // answers that no shopper should get
}

func newCrowd(url string, sale int64, began time.Time, length time.Duration, seed uint64) *crowd {
	return &crowd{url: url, sale: sale, began: began, length: length, seed: seed, log: oracle.NewLog(), seconds: map[int]*second{}, finals: make(chan struct{}),
		strange: map[string]int{},
		client:  world.NewClient(connections, 30*time.Second), buyers: world.NewClient(connections, 30*time.Second)}
}

// come returns when every shopper has left, or ctx has ended.
func (c *crowd) come(ctx context.Context, tokens []string) {
	var all sync.WaitGroup
	for i, token := range tokens {
		s := newShopper(c, i, token)
		all.Go(func() { s.shop(ctx) })
	}
	all.Wait()
}

// note counts an answer to a press, which had a connection after queued.
func (c *crowd) note(pressed time.Time, queued time.Duration, o outcome) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := int(math.Floor(now.Sub(c.began).Seconds()))
	s := c.seconds[i]
	if s == nil {
		s = &second{}
		c.seconds[i] = s
	}
	s.told[o]++
	s.times.add(now.Sub(pressed))
	c.took += now.Sub(pressed)
	c.queued += queued
	if o.final() && pressed.After(c.newest) {
		c.newest = pressed
		close(c.finals)
		c.finals = make(chan struct{})
	}
}

// finalAfter waits for a final answer to a press after t, and returns when it came; false if none did while ctx lived.
func (c *crowd) finalAfter(ctx context.Context, t time.Time) (time.Time, bool) {
	for {
		c.mu.Lock()
		newest, next := c.newest, c.finals
		c.mu.Unlock()
		if newest.After(t) {
			return time.Now(), true
		}
		select {
		case <-next:
		case <-ctx.Done():
			return time.Time{}, false
		}
	}
}

func (c *crowd) oddly(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.strange) < 100 {
		c.strange[what]++
	}
}

// spent is how long all presses took together, and the part of it before they had a connection.
func (c *crowd) spent() (took, queued time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.took, c.queued
}

// total is what all presses were told.
func (c *crowd) total() (told [outcomes]int, times histogram) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.seconds {
		for o, n := range s.told {
			told[o] += n
		}
		times.merge(&s.times)
	}
	return told, times
}

func (c *crowd) summary() string {
	told, times := c.total()
	c.mu.Lock()
	paid := c.paid
	c.mu.Unlock()
	return fmt.Sprintf("%d accepted, %d paid, sold out %d, too fast %d, busy %d, no answer %d; half within %v", told[accepted], paid, told[soldOut], told[limited],
		told[busy], told[silent], times.quantile(0.5).Round(time.Millisecond))
}

// shopper is one of them.
type shopper struct {
	*crowd
	uid, token string
	random     *rand.Rand
}

func newShopper(c *crowd, i int, token string) *shopper {
	return &shopper{crowd: c, uid: strconv.Itoa(i + 1), token: token, random: rand.New(rand.NewPCG(c.seed, uint64(i)+1))}
}

func (s *shopper) chance(p float64) bool { return s.random.Float64() < p }

// arrives is when, after the start: some before it, some at any time, most in a rush that fades.
func (s *shopper) arrives() time.Duration {
	switch p := s.random.Float64(); {
	case p < early:
		return -time.Duration(s.random.Int64N(int64(2 * time.Second)))
	case p < early+steady:
		return time.Duration(s.random.Int64N(int64(s.length * 9 / 10)))
	}
	return min(time.Duration(s.random.ExpFloat64()*float64(2*time.Second)), s.length/2)
}

// moment is a pause of about d.
func (s *shopper) moment(d time.Duration) time.Duration {
	return d/2 + time.Duration(s.random.Int64N(int64(d)+1))
}

// shop is the whole visit.
func (s *shopper) shop(ctx context.Context) {
	world.Pause(ctx, time.Until(s.began.Add(s.arrives())))
	s.call(ctx, s.client, http.MethodGet, fmt.Sprintf("/sales/%d", s.sale), "", "") // the page, and what it asks
	s.call(ctx, s.client, http.MethodGet, fmt.Sprintf("/v1/sales/%d", s.sale), "", "")
	key := fmt.Sprintf("visit-of-%s", s.uid)
	if s.chance(twice) {
		var other sync.WaitGroup
		other.Go(func() { s.press(ctx, key+"-again") })
		defer other.Wait()
	}
	for ctx.Err() == nil {
		a := s.press(ctx, key)
		switch o := outcomeOf(a.Status, a.Code); o {
		case accepted:
			s.decide(ctx, a.OrderID)
			return
		case over, already:
			return
		case soldOut:
			if !s.chance(patient) || !s.wait(ctx) {
				return
			}
		case tooEarly:
			world.Pause(ctx, max(time.Until(s.began), 0)+s.moment(200*time.Millisecond))
		case limited, busy, silent:
			world.Pause(ctx, max(a.RetryAfter(0), 500*time.Millisecond)+s.moment(500*time.Millisecond))
		default:
			s.oddly(fmt.Sprintf("%d %s to an order", a.Status, a.Code))
			return
		}
	}
}

// wait looks at the sale until something has come back; false: it is over.
func (s *shopper) wait(ctx context.Context) bool {
	for ctx.Err() == nil && time.Since(s.began) < s.length {
		world.Pause(ctx, s.moment(3*time.Second))
		a := s.call(ctx, s.client, http.MethodGet, fmt.Sprintf("/v1/sales/%d", s.sale), "", "")
		if a.Status == http.StatusOK && a.State == string(wire.Open) {
			return true
		}
	}
	return false
}

// decide waits for the order, and pays for it, or does not.
func (s *shopper) decide(ctx context.Context, orderID string) {
	for ctx.Err() == nil {
		a := s.call(ctx, s.buyers, http.MethodGet, "/v1/orders/"+orderID+"?wait_ms=10000", "", s.token)
		switch {
		case a.Status == http.StatusOK && a.Order == wire.Queued:
			continue
		case a.Status == http.StatusOK:
			if a.Order == wire.PendingPayment {
				s.end(ctx, orderID)
			}
			return
		case a.Status == http.StatusNotFound:
			s.oddly("404 for an order that was promised")
			return
		}
		world.Pause(ctx, max(a.RetryAfter(0), time.Second)+s.moment(500*time.Millisecond))
	}
}

func (s *shopper) end(ctx context.Context, orderID string) {
	path, becomes := "/payment", wire.Paid
	switch p := s.random.Float64(); {
	case p < neverPays:
		return
	case p < neverPays+cancels:
		path, becomes = "/cancellation", wire.Cancelled
	}
	world.Pause(ctx, s.moment(time.Second))
	for ctx.Err() == nil {
		a := s.call(ctx, s.buyers, http.MethodPost, "/v1/orders/"+orderID+path, "end-of-"+orderID, s.token)
		switch {
		case a.Status == http.StatusOK:
			s.log.End(orderID, becomes)
			if becomes == wire.Paid {
				s.mu.Lock()
				s.paid++
				s.mu.Unlock()
			}
			return
		case a.Status == http.StatusConflict: // the deadline was sooner
			return
		case !a.AskAgain():
			s.oddly(fmt.Sprintf("%d %s to %s", a.Status, a.Code, path))
			return
		}
		world.Pause(ctx, max(a.RetryAfter(0), 500*time.Millisecond)+s.moment(500*time.Millisecond))
	}
}

// press asks for a unit and notes what was answered, in the log too.
func (s *shopper) press(ctx context.Context, key string) world.Answer {
	pressed := time.Now()
	var queued atomic.Int64 // 0: it had no connection
	trace := httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { queued.CompareAndSwap(0, int64(time.Since(pressed))) }}
	a := s.call(httptrace.WithClientTrace(ctx, &trace), s.client, http.MethodPost, fmt.Sprintf("/v1/sales/%d/orders", s.sale), key, s.token)
	s.log.Add(a.To(s.uid, key))
	if queued.Load() == 0 {
		queued.Store(int64(time.Since(pressed)))
	}
	s.note(pressed, time.Duration(queued.Load()), outcomeOf(a.Status, a.Code))
	return a
}

func (s *shopper) call(ctx context.Context, client *world.Client, method, path, key, token string) world.Answer {
	return client.Do(ctx, world.Call{Method: method, URL: s.url + path, Key: key, Token: token})
}

// histogram counts times in classes of which each ends a quarter later than the one before, the first at half a millisecond.
type histogram [64]int

func (h *histogram) add(d time.Duration) {
	i := math.Ceil(math.Log(float64(d)/float64(500*time.Microsecond)) / math.Log(1.25))
	h[min(max(int(i), 0), len(h)-1)]++
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other {
		h[i] += n
	}
}

// quantile is the end of the class in which that part of all lies; 0 for none.
func (h *histogram) quantile(part float64) time.Duration {
	all := 0
	for _, n := range h {
		all += n
	}
	if all == 0 {
		return 0
	}
	left := int(math.Ceil(part * float64(all)))
	for i, n := range h {
		if left -= n; left <= 0 {
			return time.Duration(float64(500*time.Microsecond) * math.Pow(1.25, float64(i)))
		}
	}
	panic("BUG: less than all")
}

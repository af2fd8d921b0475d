//go:build servers

package faults

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/wire"
)

// lanes is how many buyers press at once.
const lanes = 24

// load is a crowd of buyers, each of whom asks until told something final, every time with the same Idempotency-Key. One in
// five then pays and one in five cancels, if ends is set.
type load struct {
	w      *system
	sale   int64
	log    *oracle.Log
	first  int
	tokens []string
	ends   bool
	twice  bool // every request is sent twice at the same time, a press also without its key

	pressing sync.RWMutex              // held for reading by each press until its answer is in the log
	killed   atomic.Pointer[time.Time] // the last kill
	decided  chan time.Time            // gets the first answer to a request that was sent after it
}

func (w *system) newLoad(sale int64, first int, tokens []string) *load {
	return &load{w: w, sale: sale, log: oracle.NewLog(), first: first, tokens: tokens, ends: true, decided: make(chan time.Time, 1)}
}

// fell notes that something was killed just now.
func (l *load) fell() time.Time {
	now := time.Now()
	select {
	case <-l.decided:
	default:
	}
	l.killed.Store(&now)
	return now
}

// answered returns when every press that is under way has been answered, and the answer is in the log.
func (l *load) answered() {
	l.pressing.Lock()
	defer l.pressing.Unlock()
}

// run returns when every buyer was told something final; an error names those who were not, or were told something wrong.
func (l *load) run(ctx context.Context) error {
	place := make(chan struct{}, lanes)
	errs := make(chan error, len(l.tokens))
	var wg sync.WaitGroup
	for i, token := range l.tokens {
		place <- struct{}{}
		wg.Go(func() {
			defer func() { <-place }()
			if err := l.buy(ctx, l.first+i, token); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return fmt.Errorf("%d buyers, one of them: %w", len(errs)+1, err)
	}
	return nil
}

// impatience is the most that a buyer waits before asking again, whatever Retry-After says: so a fault is felt at once.
const impatience = 200 * time.Millisecond

func (l *load) buy(ctx context.Context, n int, token string) error {
	uid := strconv.Itoa(n)
	key := "press-of-" + uid
	for ctx.Err() == nil {
		began := time.Now()
		a := l.press(ctx, uid, token, key)
		if ctx.Err() != nil {
			break
		}
		switch {
		case a.Status == 202, a.Code == "SOLD_OUT", a.Code == "ALREADY_ORDERED" && l.twice: // by the press without the key
			if killed := l.killed.Load(); killed != nil && began.After(*killed) {
				select {
				case l.decided <- time.Now():
				default:
				}
			}
			if a.Code != "SOLD_OUT" && l.ends && n%5 < 2 {
				return l.end(ctx, uid, token, a.OrderID, n%5 == 0)
			}
			return nil
		case a.AskAgain():
			world.Pause(ctx, impatience)
		default:
			return fmt.Errorf("uid %s pressed: %s", uid, a)
		}
	}
	return fmt.Errorf("uid %s was never told anything final", uid)
}

// press asks for an order, once or twice, and returns the answer to the first.
func (l *load) press(ctx context.Context, uid, token, key string) world.Answer {
	once := func(key string) world.Answer {
		l.pressing.RLock()
		defer l.pressing.RUnlock()
		a := l.w.do(ctx, "POST", l.w.ordersURL(l.sale), token, key, `{"quantity":1}`)
		if ctx.Err() == nil {
			l.log.Add(a.To(uid, key))
		}
		return a
	}
	if !l.twice {
		return once(key)
	}
	var more sync.WaitGroup
	defer more.Wait()
	more.Go(func() { once(key) })
	more.Go(func() { once("") })
	return once(key)
}

// ask is a request about an order, sent once or twice.
func (l *load) ask(ctx context.Context, method, url, token string) world.Answer {
	if l.twice {
		var more sync.WaitGroup
		defer more.Wait()
		more.Go(func() { l.w.do(ctx, method, url, token, "", "") })
	}
	return l.w.do(ctx, method, url, token, "", "")
}

// end pays or cancels, as soon as the order allows it.
func (l *load) end(ctx context.Context, uid, token, order string, pay bool) error {
	what, status := "/cancellation", wire.Cancelled
	if pay {
		what, status = "/payment", wire.Paid
	}
	url := l.w.PublicURL() + wire.OrderPath(order)
	for ctx.Err() == nil {
		a := l.ask(ctx, "GET", url+"?wait_ms=2000", token)
		if a.Status == 200 && a.Order != wire.Queued {
			a = l.ask(ctx, "POST", url+what, token)
		}
		switch {
		case a.Status == 200 && a.Order == status:
			l.log.End(order, status)
			return nil
		case a.Status == 200, a.AskAgain():
			world.Pause(ctx, impatience)
		default:
			return fmt.Errorf("uid %s, %s of %s: %s", uid, what, order, a)
		}
	}
	return fmt.Errorf("uid %s: %s of %s was never answered", uid, what, order)
}

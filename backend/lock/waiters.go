package lock

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"floodgate.internal/backend/redis"
)

// waiters are the goroutines of this process that wait for locks, with one pub/sub connection while there are any. The goroutines
// bound it.
type waiters struct {
	client  *redis.Client
	pattern string // of every lock's channel

	mu         sync.Mutex // guards the rest
	queues     map[string]*queue
	subscriber *subscriber // nil while no goroutine waits
}

// queue is the goroutines that wait for one lock.
type queue struct {
	waiters *waiters
	key     string
	turn    *semaphore.Weighted // of one: its holder waits for Redis, the others for it, in the order in which they came
	freed   chan struct{}       // holds one when a message said that the lock is free
	users   int                 // guarded by waiters.mu
}

// subscriber is this process's pub/sub connection. It is replaced when it is lost.
type subscriber struct {
	ready chan struct{} // closed when it is subscribed, or failed to
	err   error         // why it failed; set before ready is closed
	gone  chan struct{} // closed when it ended
	stop  context.CancelFunc
}

func newWaiters(client *redis.Client) waiters {
	literal := strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)
	return waiters{client: client, pattern: holderKey(literal.Replace(client.Prefix()), "*"), queues: map[string]*queue{}}
}

// enter joins the queue of a lock. leave must be called.
func (w *waiters) enter(key string) *queue {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[key]
	if q == nil {
		q = &queue{waiters: w, key: key, turn: semaphore.NewWeighted(1), freed: make(chan struct{}, 1)}
		w.queues[key] = q
	}
	q.users++
	return q
}

func (q *queue) leave() {
	w := q.waiters
	w.mu.Lock()
	if q.users--; q.users == 0 {
		delete(w.queues, q.key)
	}
	last := w.subscriber
	if len(w.queues) > 0 {
		last = nil
	} else {
		w.subscriber = nil
	}
	w.mu.Unlock()
	if last != nil {
		last.stop()
		<-last.gone
	}
}

// listen returns the subscriber of the process, a new one if there is none that still works.
func (q *queue) listen() *subscriber {
	w := q.waiters
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.subscriber; s != nil {
		select {
		case <-s.gone:
		default:
			return s
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &subscriber{ready: make(chan struct{}), gone: make(chan struct{}), stop: stop}
	w.subscriber = s
	go w.subscribe(ctx, s)
	return s
}

// subscribe passes on messages until ctx or the connection ends.
func (w *waiters) subscribe(ctx context.Context, s *subscriber) {
	defer close(s.gone)
	defer s.stop()
	_ = w.client.Dedicated(func(c rueidis.DedicatedClient) error { // it fails as its function does
		gone := c.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { w.wake(m.Channel) }})
		short, cancel := context.WithTimeout(ctx, redis.Timeout)
		s.err = c.Do(short, c.B().Psubscribe().Pattern(w.pattern).Build()).Error()
		cancel()
		close(s.ready)
		if s.err == nil {
			select {
			case <-gone:
			case <-ctx.Done():
			}
		}
		return nil
	})
}

// wake wakes the first in the queue of a lock.
func (w *waiters) wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queues[key]; q != nil {
		select {
		case q.freed <- struct{}{}:
		default: // it will look anyway
		}
	}
}

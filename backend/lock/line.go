package lock

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"floodgate.internal/backend/redis"
)

// line is who waits in this process, and the one connection on which it is told that a lock is free: there is one while
// somebody waits. It is bounded by the goroutines that wait.
type line struct {
	client  *redis.Client
	pattern string // of every lock's channel

	mu     sync.Mutex // guards the rest
	places map[string]*place
	ear    *ear // nil while nobody waits
}

// place is where the waiters for one lock stand.
type place struct {
	line  *line
	key   string
	turn  *semaphore.Weighted // of one: who has it waits for Redis; the others follow in the order they came
	freed chan struct{}       // holds a token when it was told that the lock is free
	users int                 // guarded by line.mu
}

// ear hears what is told; it is made anew when its connection was lost.
type ear struct {
	ready chan struct{} // closed when it hears, or cannot
	err   error         // why it cannot; set before ready is closed
	gone  chan struct{} // closed when it hears no longer
	stop  context.CancelFunc
}

func newLine(client *redis.Client) line {
	literal := strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)
	return line{client: client, pattern: holderKey(literal.Replace(client.Prefix()), "*"), places: map[string]*place{}}
}

// enter joins those who wait for a lock; leave must be called.
func (l *line) enter(key string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.places[key]
	if p == nil {
		p = &place{line: l, key: key, turn: semaphore.NewWeighted(1), freed: make(chan struct{}, 1)}
		l.places[key] = p
	}
	p.users++
	return p
}

func (p *place) leave() {
	l := p.line
	l.mu.Lock()
	if p.users--; p.users == 0 {
		delete(l.places, p.key)
	}
	last := l.ear
	if len(l.places) > 0 {
		last = nil
	} else {
		l.ear = nil
	}
	l.mu.Unlock()
	if last != nil {
		last.stop()
		<-last.gone
	}
}

// listen returns the ear of the process, a new one where there is none that hears.
func (p *place) listen() *ear {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.ear; e != nil {
		select {
		case <-e.gone:
		default:
			return e
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &ear{ready: make(chan struct{}), gone: make(chan struct{}), stop: stop}
	l.ear = e
	go l.hear(ctx, e)
	return e
}

// hear passes on what is told until ctx ends or the connection does.
func (l *line) hear(ctx context.Context, e *ear) {
	defer close(e.gone)
	defer e.stop()
	_ = l.client.Dedicated(func(c rueidis.DedicatedClient) error { // it fails as its function does
		gone := c.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { l.told(m.Channel) }})
		short, cancel := context.WithTimeout(ctx, redis.Timeout)
		e.err = c.Do(short, c.B().Psubscribe().Pattern(l.pattern).Build()).Error()
		cancel()
		close(e.ready)
		if e.err == nil {
			select {
			case <-gone:
			case <-ctx.Done():
			}
		}
		return nil
	})
}

// told wakes whoever is first in line for a lock.
func (l *line) told(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.places[key]; p != nil {
		select {
		case p.freed <- struct{}{}:
		default: // it will look anyway
		}
	}
}

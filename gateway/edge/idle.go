package edge

import (
	"cmp"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// start prepares a new connection, which inner carries, for its requests.
func (l *Listener) start(c *conn, inner net.Conn) {
	c.heads.conn = c
	if l.server == nil {
		return
	}
	c.tcp, _ = inner.(*net.TCPConn)
	if age := l.server.settings.Load().MaxAge; age > 0 {
		c.ends = l.since(time.Now().Add(age - rand.N(age/10+1))) // not all of a crowd at once
	}
}

// since is t in nanoseconds after the listener's epoch, at least 1.
func (l *Listener) since(t time.Time) int64 { return max(1, int64(t.Sub(l.epoch))) }

// last reports whether the present request is the connection's last one, because the connection is old, was used enough, or
// another process takes over.
func (c *conn) last(set *Settings, now time.Time) bool {
	s := c.listener.server
	return set.MaxRequests > 0 && c.heads.passed >= uint64(set.MaxRequests) ||
		c.ends > 0 && int64(now.Sub(c.listener.epoch)) >= c.ends || s != nil && s.leaving.Load()
}

// wake ends the wait for another request, and reports whether the connection may go on: nobody has closed it meanwhile.
func (c *conn) wake() bool {
	since := c.idle.Load()
	return since != 0 && c.idle.CompareAndSwap(since, 0)
}

// endIdle closes the connection if it has waited for another request since then.
func (c *conn) endIdle(since int64) bool {
	if since == 0 || !c.idle.CompareAndSwap(since, 0) {
		return false
	}
	c.end()
	return true
}

// idlest is the connections that were idle for longest when all were looked at, so that finding each costs little.
type idlest struct {
	mu      sync.Mutex  // guards the rest
	list    []idleSince // the longest idle last; at most keptIdlest
	next    time.Time   // all are not looked at again before
	evicted prometheus.Counter
}

type idleSince struct {
	conn  *conn
	since int64
}

// What a look at all connections keeps, and the least time until the next, for each connection.
const (
	keptIdlest = 1024
	lookPause  = time.Microsecond
)

// giveWay closes the connection that has waited longest for another request, if one waits. A connection without a first request
// does not count: its read_timeout ends it.
func (l *Listener) giveWay() {
	i := &l.idlest
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		for len(i.list) > 0 {
			oldest := i.list[len(i.list)-1]
			i.list = i.list[:len(i.list)-1]
			if oldest.conn.endIdle(oldest.since) {
				i.evicted.Inc()
				return
			}
		}
		now := time.Now()
		if now.Before(i.next) {
			return
		}
		all := l.all()
		i.next = now.Add(time.Duration(len(all)) * lookPause)
		for _, c := range all {
			if since := c.idle.Load(); since != 0 {
				i.list = append(i.list, idleSince{c, since})
			}
		}
		if len(i.list) == 0 {
			return
		}
		slices.SortFunc(i.list, func(a, b idleSince) int { return cmp.Compare(b.since, a.since) })
		i.list = slices.Clone(i.list[max(0, len(i.list)-keptIdlest):])
	}
}

// smallBody is the size of a body, in bytes, that is not counted: it takes no more than its head may.
const smallBody = 1 << 10

// holdBody counts a body that is to come, or reports that there is no memory for it.
func (c *conn) holdBody(n int64) bool {
	l := c.listener
	most := l.bounds.Load().BodyMemory
	if most <= 0 {
		return true
	}
	if l.bodies.Add(n) > most {
		l.bodies.Add(-n)
		return false
	}
	c.held.Store(n)
	return true
}

// releaseBody ends the count of the last request's body.
func (l *Listener) releaseBody(c *conn) {
	if c.held.Load() != 0 {
		l.bodies.Add(-c.held.Swap(0))
	}
}

// registerBounds makes the metrics of what this file bounds.
func (l *Listener) registerBounds(reg prometheus.Registerer) {
	l.idlest.evicted = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_connections_evicted_total", Help: "Idle connections that were closed for new ones, because there was no room for more."})
	reg.MustRegister(l.idlest.evicted,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_connections_max", Help: "The bound on open connections in force: server.max_connections, or less where the file descriptors do not suffice."},
			func() float64 { return float64(l.bounds.Load().Max) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_body_bytes", Help: "Bytes of the request bodies in flight."},
			func() float64 { return float64(l.bodies.Load()) }))
}

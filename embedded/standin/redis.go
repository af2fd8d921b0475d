// Package standin starts in-memory servers on loopback that speak the wire protocols of Redis and MySQL, for the embedded
// profile: the same drivers, scripts and SQL run against them as against the real servers. What they hold is gone when
// they stop, and they are slower than the real ones. Nothing else than the embedded module may import it.
package standin

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// Redis is an in-memory Redis on a loopback port of its own.
type Redis struct {
	server *miniredis.Miniredis
	end    chan struct{} // closed by Close
	ended  sync.WaitGroup
}

// tick is how exact the end of a key's life is.
const tick = 50 * time.Millisecond

// StartRedis starts one on a free port.
func StartRedis() (*Redis, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("stand-in for redis: %w", err)
	}
	if err := m.Server().Register("CONFIG", config); err != nil {
		m.Close()
		return nil, fmt.Errorf("stand-in for redis: %w", err)
	}
	m.Server().SetPreHook(replication)
	r := &Redis{server: m, end: make(chan struct{})}
	r.ended.Go(r.age)
	return r, nil
}

// age lets keys expire, which they do not do by themselves there.
func (r *Redis) age() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-r.end:
			return
		case now := <-ticker.C:
			r.server.FastForward(now.Sub(last))
			last = now
		}
	}
}

// config is CONFIG GET, as far as the backend asks it at start: nothing is kept.
func config(c *server.Peer, _ string, args []string) {
	if len(args) != 2 || !strings.EqualFold(args[0], "GET") {
		c.WriteError("ERR only CONFIG GET of one parameter is known here")
		return
	}
	name := strings.ToLower(args[1])
	value, ok := map[string]string{"appendonly": "no", "appendfsync": "no", "maxmemory-policy": "noeviction"}[name]
	if !ok {
		c.WriteMapLen(0)
		return
	}
	c.WriteMapLen(1)
	c.WriteBulk(name)
	c.WriteBulk(value)
}

// replication answers INFO replication: it is a primary that never was anything else.
func replication(c *server.Peer, cmd string, args ...string) bool {
	if cmd != "INFO" || len(args) != 1 || !strings.EqualFold(args[0], "replication") {
		return false
	}
	c.WriteBulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n")
	return true
}

// Addr is its host:port.
func (r *Redis) Addr() string { return r.server.Addr() }

// Close ends it and every connection to it, and forgets everything.
func (r *Redis) Close() {
	close(r.end)
	r.ended.Wait()
	r.server.Close()
}

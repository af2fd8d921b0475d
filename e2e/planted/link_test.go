//go:build servers

package planted

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"floodgate.internal/e2e/world"
)

// link passes bytes on between the backend and a server, until it is told to lose some.
type link struct {
	addr   string // where the backend connects to
	server string
	marker atomic.Pointer[[]byte]
	deaf   atomic.Bool

	mu    sync.Mutex // guards conns
	conns map[net.Conn]struct{}
}

// newLink listens in front of a server until the test ends.
func newLink(t *testing.T, server string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	world.Must(t, err)
	l := &link{addr: ln.Addr().String(), server: server, conns: map[net.Conn]struct{}{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.conns[client] = struct{}{}
			l.mu.Unlock()
			running.Go(func() { l.pass(client) })
		}
	})
	t.Cleanup(func() { ln.Close(); l.cut(); running.Wait() })
	return l
}

// loseAnswerTo lets the next request that holds the marker through, and closes the connection instead of passing its
// answer on. Once.
func (l *link) loseAnswerTo(marker string) {
	b := []byte(marker)
	l.marker.Store(&b)
}

// loseAll loses all that the backend sends from now on; cut ends that.
func (l *link) loseAll() { l.deaf.Store(true) }

// cut closes every connection; new ones are whole.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
	l.deaf.Store(false)
}

func (l *link) pass(client net.Conn) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		client.Close()
		delete(l.conns, client)
	}()
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer server.Close()
	var lose atomic.Bool
	var up sync.WaitGroup
	up.Go(func() {
		defer server.(*net.TCPConn).CloseWrite()
		b := make([]byte, 64<<10)
		deaf := false // once it has lost something nothing after it makes sense
		for {
			n, err := client.Read(b)
			if m := l.marker.Load(); m != nil && bytes.Contains(b[:n], *m) && l.marker.CompareAndSwap(m, nil) {
				lose.Store(true)
			}
			if deaf = deaf || l.deaf.Load(); deaf && err == nil {
				continue
			}
			if deaf {
				return
			}
			if _, e := server.Write(b[:n]); e != nil || err != nil {
				return
			}
		}
	})
	b := make([]byte, 64<<10)
	for {
		n, err := server.Read(b)
		if err != nil || lose.Load() {
			break
		}
		if _, err := client.Write(b[:n]); err != nil {
			break
		}
	}
	client.Close()
	up.Wait()
	_, _ = io.Copy(io.Discard, server) // what was sent is carried out
}

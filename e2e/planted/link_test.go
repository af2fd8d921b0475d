//go:build servers

package planted

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// link passes bytes on between the backend and Redis, until it is told to lose an answer.
type link struct {
	addr   string // where the backend connects to
	server string
	marker atomic.Pointer[[]byte]
}

// newLink listens in front of a server until the test ends.
func newLink(t *testing.T, server string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := &link{addr: ln.Addr().String(), server: server}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { l.pass(client) })
		}
	})
	t.Cleanup(func() { ln.Close(); running.Wait() })
	return l
}

// loseAnswerTo lets the next request that holds the marker through, and closes the connection instead of passing its
// answer on. Once.
func (l *link) loseAnswerTo(marker string) {
	b := []byte(marker)
	l.marker.Store(&b)
}

func (l *link) pass(client net.Conn) {
	defer client.Close()
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
		for {
			n, err := client.Read(b)
			if m := l.marker.Load(); m != nil && bytes.Contains(b[:n], *m) && l.marker.CompareAndSwap(m, nil) {
				lose.Store(true)
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

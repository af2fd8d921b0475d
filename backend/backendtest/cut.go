package backendtest

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Cutter passes bytes on between clients and a server, until it is told to lose an answer.
type Cutter struct {
	Addr   string // where clients connect to
	server string
	marker atomic.Pointer[[]byte]
	then   func() // called when an answer is lost; nil for nothing
}

// NewCutter listens in front of a server until the test ends.
func NewCutter(t testing.TB, server string) *Cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cutter{Addr: l.Addr().String(), server: server}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.pass(client) })
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return c
}

// LoseAnswerTo lets the next request that holds the marker through, waits for its answer, and closes the connection
// instead of passing the answer on. Once.
func (c *Cutter) LoseAnswerTo(marker string) {
	b := []byte(marker)
	c.marker.Store(&b)
}

// OnLoss has f called when an answer is lost, before its connection is closed. It must be set before LoseAnswerTo.
func (c *Cutter) OnLoss(f func()) { c.then = f }

func (c *Cutter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	var lose atomic.Bool
	var up sync.WaitGroup
	up.Go(func() {
		defer server.(*net.TCPConn).CloseWrite()
		b := make([]byte, 1<<16)
		for {
			n, err := client.Read(b)
			if m := c.marker.Load(); m != nil && bytes.Contains(b[:n], *m) && c.marker.CompareAndSwap(m, nil) {
				lose.Store(true)
			}
			if _, e := server.Write(b[:n]); e != nil || err != nil {
				return
			}
		}
	})
	b := make([]byte, 1<<16)
	for {
		n, err := server.Read(b)
		if err == nil && lose.Load() && c.then != nil {
			c.then()
		}
		if err != nil || lose.Load() {
			break
		}
		if _, err := client.Write(b[:n]); err != nil {
			break
		}
	}
	client.Close()
	up.Wait()
	io.Copy(io.Discard, server)
}

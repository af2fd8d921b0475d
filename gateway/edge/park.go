package edge

import (
	"cmp"
	"errors"
	"os"
	"syscall"
	"time"
)

// parkAfter is how long a connection waits for another request with the buffers of the last one. It may wait up to parkSlack
// longer.
const (
	parkAfter = 250 * time.Millisecond
	parkSlack = 100 * time.Millisecond
)

// A connection that has waited for longer is parked: fasthttp is told that it has ended, and takes its buffers and its
// goroutine back. A new goroutine, whose stack is small, waits for the socket, and serves the connection again when there
// is something to read. A busy connection is never parked, so that this costs it nothing. TLS has no whole record in hand
// when a read of it has waited in vain, so the socket tells of the next one.

// readOrPark reads, and is to be parked if nothing comes in time.
func (c *conn) readOrPark(b []byte) (int, error) {
	ends, slack, mayPark := c.read.want, deadlineSlack, false
	if c.tcp != nil && !c.woken {
		s := c.listener.server
		if idle := cmp.Or(s.HTTP.IdleTimeout, s.HTTP.ReadTimeout); idle > 2*parkAfter && s.http.Load() != nil {
			c.read.want, slack, mayPark = ends.Add(parkAfter-idle), parkSlack, true
		}
	}
	c.woken = false
	err := c.read.apply(slack, c.Conn.SetReadDeadline)
	c.read.want = ends
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if mayPark && n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		c.parking.Store(true)
	}
	return n, err
}

// park has a goroutine of the connection's own wait, unless it was closed.
func (c *conn) park() bool {
	if c.idle.Load() == 0 || c.closed.Load() {
		return false
	}
	c.exchange, c.heads.last = exchange{}, head{}
	c.read.set = time.Time{}
	c.listener.closers.Add(1)
	go c.rest()
	return true
}

// rest waits for another request, and serves it.
func (c *conn) rest() {
	c.woken = c.waitReadable() == nil && c.wake()
	c.listener.closers.Done()
	if !c.woken {
		c.end()
		return
	}
	_ = c.listener.server.http.Load().ServeConn(c) // it closes the connection, or parks it again
}

// waitReadable waits until there is something to read, or the end of the input, for as long as the connection may be idle.
func (c *conn) waitReadable() error {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return err
	}
	if err := c.tcp.SetReadDeadline(c.read.want); err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		return err != syscall.EAGAIN && err != syscall.EINTR
	})
}

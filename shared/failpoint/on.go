//go:build failpoint

package failpoint

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether this binary has failpoints.
const Enabled = true

var (
	chosen, nth = choose(os.Getenv("FLOODGATE_FAILPOINT"))
	hits        atomic.Int64
)

func choose(s string) (string, int64) {
	name, n, ok := strings.Cut(s, "#")
	if !ok {
		return name, 1
	}
	count, err := strconv.ParseInt(n, 10, 64)
	if err != nil || count < 1 {
		panic(fmt.Sprintf("FLOODGATE_FAILPOINT=%s: want NAME or NAME#COUNT", s))
	}
	return name, count
}

func here(name string) bool { return name == chosen && hits.Add(1) == nth }

func die(name string) {
	fmt.Fprintln(os.Stderr, "failpoint: killed at", name) // unbuffered, so it is in the log
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal comes before another instruction of this goroutine matters
}

// Hit ends the process here, if this point is the one that was named.
func Hit(name string) {
	if here(name) {
		die(name)
	}
}

// Halfway writes the first half of b to c and then is Hit.
func Halfway(name string, c net.Conn, b []byte) {
	if here(name) {
		_, _ = c.Write(b[:len(b)/2]) // it dies either way
		die(name)
	}
}

// Sent returns c. Its writes that match are followed by Hit: what was written is on its way, and no answer was read.
func Sent(name string, c net.Conn, match func([]byte) bool) net.Conn {
	if name != chosen {
		return c
	}
	return &conn{c, name, match}
}

type conn struct {
	net.Conn
	name  string
	match func([]byte) bool
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.match(b) {
		Hit(c.name)
	}
	return n, err
}

// Wrote is Hit where b, which was just written to a connection, holds needle.
func Wrote(name string, b []byte, needle string) {
	if bytes.Contains(b, []byte(needle)) {
		Hit(name)
	}
}

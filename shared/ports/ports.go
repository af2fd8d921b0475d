// Package ports chooses loopback ports for servers that start later, for tests, the launcher and the embedded system.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Free returns n loopback TCP ports on which nobody listens, by IPv4 or IPv6. This process holds them until it ends (see Hold): neither
// it nor another that asks is given one of them, although what is to listen there may start much later, or be away for a while.
// They lie outside the range from which the kernel takes the ports of outgoing connections, so that a server that was killed finds
// its port free when it comes back.
func Free(n int) ([]int, error) {
	low, high := between()
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := low + rand.IntN(high-low)
		release, err := hold(port)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if Taken(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) || Taken(net.JoinHostPort("::1", strconv.Itoa(port))) {
			release()
			continue
		}
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d on loopback", n, low, high)
}

// Hold keeps a port from every later Free, of this process and of others, until this process ends. It is false where somebody holds
// it already. It does not listen on the port.
func Hold(port int) (bool, error) {
	_, err := hold(port)
	if errors.Is(err, syscall.EADDRINUSE) {
		return false, nil
	}
	return err == nil, err
}

// between is where Free chooses from: below the kernel's range, or above it where there is more room.
func between() (low, high int) {
	const first, last = 10240, 1 << 16
	low, high = first, 32768
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return low, high // not Linux
	}
	f := strings.Fields(string(b))
	if len(f) != 2 {
		return low, high
	}
	from, e1 := strconv.Atoi(f[0])
	to, e2 := strconv.Atoi(f[1])
	const room = 1024
	switch {
	case e1 != nil || e2 != nil:
	case from-first >= max(room, last-1-to):
		high = from
	case last-1-to >= room:
		low, high = to+1, last
	}
	return low, high
}

// Taken reports whether somebody listens on a loopback address. It asks by a connection, and does not listen there for a moment
// itself: a child that another goroutine starts would have that socket, too, until its exec is over, and so keep the port from the
// server that is started next (with 8 goroutines that start children, 13 times in 9,283, for up to 162 ms).
func Taken(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		c.Close()
		return true
	}
	var slow net.Error
	return errors.As(err, &slow) && slow.Timeout() // its backlog is full
}

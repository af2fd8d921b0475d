package stack

import (
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// held are the ports that this process holds, each by a lock on a file of its own, until the process ends.
var held struct {
	mu    sync.Mutex // guards locks
	locks map[int]*os.File
}

// FreePorts returns n loopback TCP ports on which nobody listens. The process holds them until it ends: neither it nor another
// launcher of the same user is given one of them, although what is to listen there may start much later, or be away for a while.
// They lie below the range from which the kernel takes the ports of outgoing connections, so that a server that was killed finds
// its port free when it comes back.
func FreePorts(n int) ([]int, error) {
	const low = 10240
	high := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			if first, err := strconv.Atoi(f[0]); err == nil && first > 12000 {
				high = first
			}
		}
	}
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := low + mathrand.IntN(high-low)
		if got, err := holdPort(port); err != nil {
			return nil, err
		} else if !got {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue // somebody else's: it stays held, and is not asked again
		}
		l.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d on 127.0.0.1", n, low, high)
}

// holdPort keeps a port from every later FreePorts, in any process of this user. It is false where somebody holds it already.
func holdPort(port int) (bool, error) {
	held.mu.Lock()
	defer held.mu.Unlock()
	if held.locks[port] != nil {
		return false, nil
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("floodgate-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("hold port %d: %w", port, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, fmt.Errorf("hold port %d: %w", port, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return false, nil
	}
	if held.locks == nil {
		held.locks = map[int]*os.File{}
	}
	held.locks[port] = f // an open file is never collected, so the lock ends with the process
	return true, nil
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

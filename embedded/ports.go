package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"floodgate.internal/shared/development"
)

// Addrs are where the system listens.
type Addrs development.Addrs

// DefaultAddrs are those of the contract.
var DefaultAddrs = Addrs(development.DefaultAddrs)

// InUse is an error that names the addresses that something else listens on, or nil.
func (a Addrs) InUse() error {
	var errs []error
	for _, l := range []struct{ name, addr string }{
		{"the gateway's public listener", a.Public},
		{"the gateway's ops listener", a.Ops},
		{"the backend's internal listener", a.Internal},
		{"the backend's admin listener", a.Admin},
	} {
		ln, err := net.Listen("tcp", l.addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			errs = append(errs, fmt.Errorf("%s (%s) is in use: stop what listens there", l.addr, l.name))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s (%s): %w", l.addr, l.name, err))
		default:
			ln.Close()
		}
	}
	return errors.Join(errs...)
}

// FreeAddrs chooses four loopback addresses on which nobody listens. Their ports lie below those that the kernel gives to
// outgoing connections, so that none is taken before the system listens there.
func FreeAddrs() (Addrs, error) {
	const low, tries = 10240, 1000
	high := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			if n, err := strconv.Atoi(f[0]); err == nil && n > low+tries {
				high = n
			}
		}
	}
	var held []net.Listener // until all are chosen, so that none is chosen twice
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range tries {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(low+rand.IntN(high-low)))
		if err != nil {
			continue
		}
		if held = append(held, l); len(held) == 4 {
			at := func(i int) string { return held[i].Addr().String() }
			return Addrs{Public: at(0), Ops: at(1), Internal: at(2), Admin: at(3)}, nil
		}
	}
	return Addrs{}, fmt.Errorf("no four free ports between %d and %d on 127.0.0.1", low, high)
}

package embedded

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"floodgate.internal/shared/development"
	"floodgate.internal/shared/ports"
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

// FreeAddrs chooses four loopback addresses on which nobody listens, and which no other system is given while this process lives.
func FreeAddrs() (Addrs, error) {
	p, err := ports.Free(4)
	if err != nil {
		return Addrs{}, err
	}
	at := func(i int) string { return "127.0.0.1:" + strconv.Itoa(p[i]) }
	return Addrs{Public: at(0), Ops: at(1), Internal: at(2), Admin: at(3)}, nil
}

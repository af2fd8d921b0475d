// Package network has sets of networks, and finds the address that a request counts for.
package network

import (
	"bytes"
	"net/netip"
	"slices"

	"floodgate.internal/shared/conf"
)

// Set is a set of networks that does not change. A look-up costs one map read for each length of prefix in the set. The zero
// Set is empty.
type Set struct {
	networks  map[netip.Prefix]struct{}
	four, six []int // the lengths of their prefixes
}

// Parse reads networks like 10.0.0.0/8. The error names the place of the first that is malformed.
func Parse(networks []string) (Set, error) {
	s := Set{networks: map[netip.Prefix]struct{}{}}
	for i, n := range networks {
		p, err := netip.ParsePrefix(n)
		if err != nil || p.Addr().Is4In6() {
			return Set{}, conf.Wrong("[%d]: %q must be a network like 10.0.0.0/8 or 2001:db8::/32", i, n)
		}
		s.networks[p.Masked()] = struct{}{}
		lengths := &s.four
		if p.Addr().Is6() {
			lengths = &s.six
		}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	return s, nil
}

// Empty says that no address is in the set.
func (s Set) Empty() bool { return len(s.networks) == 0 }

// Contains says whether a, which Unmap has returned, is in one of the networks.
func (s Set) Contains(a netip.Addr) bool {
	lengths := s.four
	if a.Is6() {
		lengths = s.six
	}
	for _, n := range lengths {
		p, err := a.Prefix(n)
		if err != nil {
			panic("BUG: " + err.Error()) // the length fits the address
		}
		if _, ok := s.networks[p]; ok {
			return true
		}
	}
	return false
}

// Client is the address that a request counts for. That is peer, the connection's address, unless peer is a trusted proxy:
// then it is the first address from the right of X-Forwarded-For that is not trusted. What stands to its left is not read,
// because the client can write anything there. At an entry that is no address the search ends, and the hop that sent it
// counts. forwarded is the values of all X-Forwarded-For fields, in order.
func Client(peer netip.Addr, trusted Set, forwarded [][]byte) netip.Addr {
	return walk(peer, trusted, forwarded, false)
}

// walk goes from the last entry of the fields to the first. Those of Forwarded are elements.
func walk(peer netip.Addr, trusted Set, forwarded [][]byte, elements bool) netip.Addr {
	for _, hops := range slices.Backward(forwarded) {
		for more := true; more; {
			if !trusted.Contains(peer) {
				return peer
			}
			hop := hops
			if i := bytes.LastIndexByte(hops, ','); i >= 0 {
				hops, hop = hops[:i], hops[i+1:]
			} else {
				more = false
			}
			if elements {
				hop = forNode(bytes.TrimSpace(hop))
			}
			a, ok := address(string(bytes.TrimSpace(hop)))
			if !ok {
				return peer
			}
			peer = a
		}
	}
	return peer
}

// address reads an address, with or without a port.
func address(s string) (netip.Addr, bool) {
	if n := len(s); n > 2 && s[0] == '[' && s[n-1] == ']' {
		s = s[1 : n-1]
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		withPort, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		a = withPort.Addr()
	}
	return Unmap(a), true
}

// Unmap returns the form of an address that is compared and counted: IPv4 not mapped into IPv6, without a zone.
func Unmap(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// How many bits of an IPv6 address say whose it is. A customer gets a /56 as a rule, some a /64, some a /48 (RFC 6177).
const (
	MinPrefix     = 32
	DefaultPrefix = 56
	MaxPrefix     = 128
)

// Key is what an address is counted by: all of an IPv4 address, the first bits of an IPv6 address.
func Key(a netip.Addr, bits int) [16]byte {
	b := a.As16()
	if a.Is6() {
		for i := bits / 8; i < len(b); i++ {
			b[i] &= ^(0xff >> max(0, bits-8*i))
		}
	}
	return b
}

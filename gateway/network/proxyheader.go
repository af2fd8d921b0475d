package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of a PROXY header. A line of version 1 has at most 107 bytes, as HAProxy's proxy-protocol.txt says. What proxies append to
// an address in version 2 is far less than the bound.
const (
	maxProxyLine = 107
	maxProxyV2   = 16 + 2048
)

// ErrProxyHeader says that what a connection begins with is no PROXY header of version 1 or 2.
var ErrProxyHeader = errors.New("no PROXY header")

// ReadProxyHeader reads the PROXY header with which a connection begins, and says who is connected to the proxy. The address is
// not valid where the proxy speaks for itself, e.g. for its health check. rest is what came behind the header. The caller bounds
// the time.
func ReadProxyHeader(r io.Reader) (source netip.Addr, rest []byte, err error) {
	b := make([]byte, 0, 256)
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		end, source, bad := parseProxyHeader(b)
		switch {
		case bad:
			return netip.Addr{}, nil, ErrProxyHeader
		case end > 0:
			return source, b[end:], nil
		case err != nil:
			return netip.Addr{}, nil, err
		case len(b) == cap(b):
			b = append(make([]byte, 0, maxProxyV2), b...) // b has a header of version 2, whose length is checked
		}
	}
}

var (
	proxyV1 = []byte("PROXY ")
	proxyV2 = []byte("\r\n\r\n\x00\r\nQUIT\n")
)

// parseProxyHeader says where the header ends, 0 if more must come.
func parseProxyHeader(b []byte) (end int, source netip.Addr, bad bool) {
	begins := func(with []byte) bool { n := min(len(b), len(with)); return bytes.Equal(b[:n], with[:n]) }
	switch {
	case begins(proxyV2):
		return parseProxyV2(b)
	case !begins(proxyV1):
		return 0, source, true
	}
	line, _, whole := bytes.Cut(b[:min(len(b), maxProxyLine)], crlf)
	if !whole {
		return 0, source, len(b) >= maxProxyLine || bytes.IndexByte(line, '\n') >= 0
	}
	source, ok := parseProxyV1(string(line))
	return len(line) + len(crlf), source, !ok
}

var crlf = []byte("\r\n")

func parseProxyV1(line string) (source netip.Addr, ok bool) {
	f := strings.Split(line, " ")
	if f[1] == "UNKNOWN" {
		return netip.Addr{}, true
	}
	if len(f) != 6 || f[1] != "TCP4" && f[1] != "TCP6" {
		return netip.Addr{}, false
	}
	for _, port := range f[4:] {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
			return netip.Addr{}, false
		}
	}
	for i, text := range f[2:4] {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Is4() != (f[1] == "TCP4") || a.Zone() != "" {
			return netip.Addr{}, false
		}
		if i == 0 {
			source = Unmap(a)
		}
	}
	return source, true
}

func parseProxyV2(b []byte) (end int, source netip.Addr, bad bool) {
	if len(b) < 16 {
		return 0, source, false
	}
	end = 16 + int(binary.BigEndian.Uint16(b[14:]))
	if end > maxProxyV2 {
		return 0, source, true
	}
	if len(b) < end {
		return 0, source, false
	}
	const local, proxy, unspecified, tcp4, tcp6 = 0x20, 0x21, 0x00, 0x11, 0x21
	more := b[16:end]
	switch {
	case b[12] == local:
		return end, source, false
	case b[12] != proxy:
		return 0, source, true
	case b[13] == unspecified:
		return end, source, false
	case b[13] == tcp4 && len(more) >= 12:
		source, more = netip.AddrFrom4([4]byte(more)), more[12:]
	case b[13] == tcp6 && len(more) >= 36:
		source, more = Unmap(netip.AddrFrom16([16]byte(more))), more[36:]
	default: // no address of TCP, or less of it than is announced
		return 0, source, true
	}
	for len(more) > 0 { // type, length and value: they say nothing here, but must add up
		if len(more) < 3 || len(more)-3 < int(binary.BigEndian.Uint16(more[1:])) {
			return 0, netip.Addr{}, true
		}
		more = more[3+int(binary.BigEndian.Uint16(more[1:])):]
	}
	return end, source, false
}

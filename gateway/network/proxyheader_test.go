package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// v2 is a header of version 2.
func v2(command, family byte, body string) string {
	return string(binary.BigEndian.AppendUint16(append(bytes.Clone(proxyV2), command, family), uint16(len(body)))) + body
}

const (
	four = "\xcb\x00\x71\x09\xc0\x00\x02\x01\x12\x67\x01\xbb" // 203.0.113.9, 192.0.2.1, 4711, 443
	six  = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x12\x67\x01\xbb"
)

var proxyHeaders = []struct{ header, want string }{
	{"PROXY TCP4 203.0.113.9 192.0.2.1 4711 443\r\n", "203.0.113.9"},
	{"PROXY TCP6 2001:db8::9 2001:db8::1 4711 443\r\n", "2001:db8::9"},
	{"PROXY TCP6 ::ffff:203.0.113.9 ::1 0 65535\r\n", "203.0.113.9"},
	{"PROXY UNKNOWN\r\n", "none"},
	{"PROXY UNKNOWN 2001:db8::9 2001:db8::1 4711 443\r\n", "none"},
	{v2(0x21, 0x11, four), "203.0.113.9"},
	{v2(0x21, 0x21, six), "2001:db8::9"},
	{v2(0x21, 0x11, four+"\x04\x00\x02ab\x05\x00\x00"), "203.0.113.9"},
	{v2(0x21, 0x11, four+"\xe0\x07\xf1"+strings.Repeat("x", 2033)), "203.0.113.9"},
	{v2(0x20, 0x00, ""), "none"},
	{v2(0x20, 0x11, four), "none"},
	{v2(0x21, 0x00, ""), "none"},
	{v2(0x21, 0x00, "anything"), "none"},
}

// A header says the same in one piece and byte by byte, and what follows it is left as it is.
func TestProxyHeaders(t *testing.T) {
	for _, c := range proxyHeaders {
		for name, reader := range map[string]func(string) io.Reader{
			"whole": func(s string) io.Reader { return strings.NewReader(s) },
			"bytes": func(s string) io.Reader { return iotest.OneByteReader(strings.NewReader(s)) },
		} {
			in := reader(c.header + "GET / HTTP/1.1")
			source, rest, err := ReadProxyHeader(in)
			got := "none"
			if source.IsValid() {
				got = source.String()
			}
			more, _ := io.ReadAll(in)
			if err != nil || got != c.want || string(rest)+string(more) != "GET / HTTP/1.1" {
				t.Errorf("%q, %s: got %s, %v, and %q follows; want %s", c.header, name, got, err, string(rest)+string(more), c.want)
			}
		}
		for n := range len(c.header) { // it is never taken before it is whole
			if _, _, err := ReadProxyHeader(strings.NewReader(c.header[:n])); !errors.Is(err, io.EOF) {
				t.Errorf("%q: got %v, want the end", c.header[:n], err)
			}
		}
	}
}

func TestBadProxyHeaders(t *testing.T) {
	for _, header := range []string{
		"GET / HTTP/1.1\r\n", "\x16\x03\x01\x00\x05", "proxy TCP4 203.0.113.9 192.0.2.1 1 2\r\n", "PROXY\tTCP4", "\r\n\r\nGET", "\r\n\r\n\x00\r\nQUIT\r",
		"PROXY TCP4 203.0.113.9 192.0.2.1 4711 443\n", "PROXY TCP4 203.0.113.9 192.0.2.1 4711\r\n", "PROXY TCP4 203.0.113.9 192.0.2.1 4711 443 1\r\n", "PROXY  TCP4 203.0.113.9 192.0.2.1 1 2\r\n",
		"PROXY TCP4 2001:db8::9 2001:db8::1 1 2\r\n", "PROXY TCP6 203.0.113.9 192.0.2.1 1 2\r\n", "PROXY TCP4 203.0.113.9 2001:db8::1 1 2\r\n", "PROXY UDP4 203.0.113.9 192.0.2.1 1 2\r\n",
		"PROXY TCP4 203.0.113.256 192.0.2.1 1 2\r\n", "PROXY TCP4 203.0.113.09 192.0.2.1 1 2\r\n", "PROXY TCP4 localhost 192.0.2.1 1 2\r\n", "PROXY TCP6 fe80::9%eth0 fe80::1 1 2\r\n", "PROXY TCP4  192.0.2.1 1 2\r\n",
		"PROXY TCP4 203.0.113.9 192.0.2.1 65536 2\r\n", "PROXY TCP4 203.0.113.9 192.0.2.1 -1 2\r\n", "PROXY TCP4 203.0.113.9 192.0.2.1 +1 2\r\n", "PROXY TCP4 203.0.113.9 192.0.2.1 01 2\r\n", "PROXY TCP4 203.0.113.9 192.0.2.1 1 \r\n",
		"PROXY UNKNOWN" + strings.Repeat(" ", 200) + "\r\n", "PROXY " + strings.Repeat("x", 200), "PROXY \r\n",
		v2(0x11, 0x11, four), v2(0x22, 0x11, four), v2(0x31, 0x11, four), v2(0x01, 0x11, four),
		v2(0x21, 0x12, four), v2(0x21, 0x22, six), v2(0x21, 0x31, strings.Repeat("x", 216)), v2(0x21, 0x10, four), v2(0x21, 0x41, four),
		v2(0x21, 0x11, four[:11]), v2(0x21, 0x21, six[:35]), v2(0x21, 0x21, four), v2(0x21, 0x11, ""),
		v2(0x21, 0x11, four+"\x04"), v2(0x21, 0x11, four+"\x04\x00\x03ab"), v2(0x21, 0x11, four+"\x04\xff\xff"),
		v2(0x21, 0x11, four+strings.Repeat("\x04\x00\x00", 1000)), v2(0x20, 0, strings.Repeat("x", 65535)),
	} {
		for name, in := range map[string]io.Reader{"whole": strings.NewReader(header), "bytes": iotest.OneByteReader(strings.NewReader(header))} {
			if source, rest, err := ReadProxyHeader(in); !errors.Is(err, ErrProxyHeader) || source.IsValid() || rest != nil {
				t.Errorf("%q, %s: got %v, %q, %v", header, name, source, rest, err)
			}
		}
	}
}

// Whatever comes, the header is judged within its bound, and the same way in pieces as whole.
func FuzzReadProxyHeader(f *testing.F) {
	for _, c := range proxyHeaders {
		f.Add([]byte(c.header + "x"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(in io.Reader) (string, string, error) {
			source, rest, err := ReadProxyHeader(in)
			more, _ := io.ReadAll(in)
			return source.String(), string(rest) + string(more), err
		}
		source, rest, err := read(bytes.NewReader(b))
		again, left, fails := read(iotest.OneByteReader(bytes.NewReader(b)))
		if (err == nil) != (fails == nil) || source != again || err == nil && rest != left {
			t.Fatalf("%q: whole %s, %q, %v, in pieces %s, %q, %v", b, source, rest, err, again, left, fails)
		}
		if err == nil && len(b)-len(rest) > maxProxyV2 {
			t.Fatalf("%q: a header of %d bytes", b, len(b)-len(rest))
		}
	})
}

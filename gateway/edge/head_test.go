package edge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
)

// streams is what connections may begin with, and how many heads of it pass.
var streams = []struct {
	name, bytes string
	heads       uint64
	refused     bool
}{
	{"a request", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1, false},
	{"half a request", "GET / HTTP/1.1\r\nHost: x\r\n", 0, false},
	{"two requests", "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.0\r\n\r\n", 2, false},
	{"a body with line ends", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na\nb\r\n\r\nc\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 2, false},
	{"a body that looks like a request", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\nGET /\nHost: x\n\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 2, false},
	{"empty lines before, between and after", "\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n\r\n\r\n", 2, false},
	{"a bare LF in the second", "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\nHost: x\r\n\r\n", 1, true},
	{"a bare LF behind a byte more than the protocol", "GET / HTTP/1.11\nHost: x\r\n\r\n", 0, true},
	{"a bare LF where no head ends", "GET / HTTP/1.1\r\nHost: x\nA", 0, true},
	{"a bare LF for the empty line", "GET / HTTP/1.1\r\nHost: x\r\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 0, true},
	{"a bare LF before", "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 0, true},
	{"a bare CR", "GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", 0, true},
	{"no method", " / HTTP/1.1\r\nHost: x", 0, false},
	{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 0, true},
	{"chunked", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, true},
	{"another protocol", "GET / HTTP/2.0\r\n\r\n", 0, true},
	{"nothing", "", 0, false},
}

// Whatever pieces a stream comes in, the same heads pass, and nothing of what is refused but a byte.
func TestScreenInPieces(t *testing.T) {
	for _, c := range streams {
		check := func(how string, pieces ...string) {
			t.Helper()
			var s headFilter
			var passed strings.Builder
			for _, piece := range pieces {
				if s.refused != nil {
					break
				}
				for len(piece) > 0 && s.refused == nil {
					n, heads := s.pass([]byte(piece)), s.passed
					if passed.WriteString(piece[:n]); s.passed > heads+1 {
						t.Errorf("%s, %s: %d heads passed at once", c.name, how, s.passed-heads)
					}
					piece = piece[n:]
				}
			}
			if s.passed != c.heads || (s.refused != nil) != c.refused || !c.refused && passed.String() != c.bytes {
				t.Errorf("%s, %s: got %d heads, %v, %q; want %d heads, refused: %v", c.name, how, s.passed, s.refused, &passed, c.heads, c.refused)
			}
		}
		check("in one", c.bytes)
		check("byte by byte", strings.Split(c.bytes, "")...)
		for i := range c.bytes {
			check("in two", c.bytes[:i], c.bytes[i:])
		}
	}
	var s headFilter
	both := []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/2.0\r\n\r\n")
	if n := s.pass(both); n != 27 {
		t.Errorf("%d bytes passed, want the first head's 27", n)
	}
	if n := s.pass(both[27:]); n != 1 || s.refused == nil {
		t.Errorf("a refused second head: %d bytes passed, want one; refused: %v", n, s.refused)
	}
}

// stream is a connection on which input came in pieces, and then its end.
type stream struct {
	net.Conn
	input []byte
	piece int
}

func (s *stream) Read(b []byte) (int, error) {
	if len(s.input) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), s.piece)], s.input)
	s.input = s.input[n:]
	return n, nil
}

func (s *stream) Write(b []byte) (int, error) { return len(b), nil }
func (s *stream) Close() error                { return nil }

// What comes through to a handler means the same to another reader, net/http's: no more requests and no fewer, of the same method,
// target, host and body, with one Host, one length, no transfer coding.
func FuzzRequests(f *testing.F) {
	for _, c := range streams {
		f.Add([]byte(c.bytes), uint8(0))
		f.Add([]byte(c.bytes), uint8(1))
	}
	for _, s := range []string{"Content-Length: 0\r\n", "A: b\r\n c\r\n", "Host: y\r\n", "Content-Length: +1\r\n\r\na", "Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", "Connection: close\r\n"} {
		f.Add([]byte("POST / HTTP/1.1\r\nHost: x\r\n"+s+"\r\n"), uint8(0))
	}
	f.Fuzz(func(t *testing.T, input []byte, piece uint8) {
		other := bufio.NewReaderSize(bytes.NewReader(input), 64<<10)
		l := newLine("127.0.0.1:1")
		c := &conn{Conn: &stream{input: bytes.Clone(input), piece: 1 + (int(piece)+255)%256}, listener: NewListener(l, nil, Bounds{Max: 1, PerAddress: 1}, prometheus.NewRegistry())}
		served := uint64(0)
		server := fasthttp.Server{
			Logger: formatLog{}, NoDefaultServerHeader: true, MaxRequestBodySize: 1000, ReadBufferSize: 4096, DisablePreParseMultipartForm: true,
			Handler: func(ctx *fasthttp.RequestCtx) {
				served++
				if served > c.heads.passed {
					t.Fatalf("%q: %d requests of %d heads", input, served, c.heads.passed)
				}
				for {
					b, _ := other.Peek(2)
					if string(b) != "\r\n" {
						break
					}
					other.Discard(2)
				}
				got := &ctx.Request
				want, err := http.ReadRequest(other)
				if err != nil {
					if !parsable(got.Header.RequestURI()) {
						t.Skip() // a target that split refuses
					}
					t.Fatalf("%q: net/http does not take it: %v", input, err)
				}
				body, err := io.ReadAll(want.Body)
				if err != nil {
					t.Fatalf("%q: net/http reads another body: %v", input, err)
				}
				if want.Method != string(got.Header.Method()) || want.RequestURI != string(got.Header.RequestURI()) || got.Header.RequestURI()[0] == '/' && want.Host != string(got.Header.Host()) ||
					!bytes.Equal(body, got.Body()) || len(want.TransferEncoding) > 0 {
					t.Fatalf("%q: got %s with %q; net/http reads %s %s of %s with %q", input, got.Header.String(), got.Body(), want.Method, want.RequestURI, want.Host, body)
				}
			},
		}
		if err := server.ServeConn(c); errors.Is(err, fasthttp.ErrConcurrencyLimit) {
			t.Fatal(err)
		}
	})
}

// parsable reports whether net/http would parse the target at all.
func parsable(target []byte) bool {
	_, err := url.ParseRequestURI(string(target))
	return err == nil
}

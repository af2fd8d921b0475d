package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// maxHeaders is how many header fields a request may have.
const maxHeaders = 100

// guard refuses what the HTTP parser takes and should not: every request that two readers could understand differently.
// It reads the header block as it came. The connection is closed after a refusal.
func guard(h *fasthttp.RequestHeader) *problem.Problem {
	if p := h.Protocol(); !bytes.Equal(p, http11) && !bytes.Equal(p, http10) {
		return problem.New(problem.BadRequest, "the protocol must be HTTP/1.1 or HTTP/1.0")
	}
	raw := h.RawHeaders()
	var seen [len(singletons)]bool
	for n := 0; len(raw) > 0; n++ {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return problem.New(problem.BadRequest, "header lines end with CRLF")
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		if len(line) == 0 {
			break // the end of the headers
		}
		if n == maxHeaders {
			return status(431, "too many header fields")
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return problem.New(problem.BadRequest, "a header line without a name")
		}
		name, value := line[:colon], line[colon+1:]
		for _, c := range name {
			if !token[c] { // also a space before the colon, and a line that continues the one before
				return problem.New(problem.BadRequest, "a header name with a character that is not allowed")
			}
		}
		for _, c := range value {
			if c < ' ' && c != '\t' || c == 0x7f {
				return problem.New(problem.BadRequest, "a header value with a control character")
			}
		}
		for i := range singletons {
			if len(name) != len(singletons[i]) || !bytes.EqualFold(name, singletons[i]) {
				continue
			}
			if seen[i] {
				return problem.New(problem.BadRequest, "the header "+string(singletons[i])+" is there twice")
			}
			seen[i] = true
			switch i {
			case transferEncoding:
				return problem.New(problem.BadRequest, "Transfer-Encoding is not taken here: send a Content-Length")
			case contentLength:
				for _, c := range bytes.Trim(value, " \t") {
					if c < '0' || c > '9' {
						return problem.New(problem.BadRequest, "Content-Length must be digits")
					}
				}
			case expect:
				if !bytes.EqualFold(bytes.Trim(value, " \t"), continue100) {
					return status(417, "only 100-continue can be expected")
				}
			case host:
				if !validHost(bytes.Trim(value, " \t")) {
					return problem.New(problem.BadRequest, "Host must be a name or address and an optional port")
				}
			}
		}
	}
	return nil
}

var (
	http10      = []byte("HTTP/1.0")
	http11      = []byte("HTTP/1.1")
	continue100 = []byte("100-continue")
)

// singletons are headers that may come once at most.
var singletons = [...][]byte{
	[]byte("Transfer-Encoding"), []byte("Content-Length"), []byte("Expect"), []byte("Host"),
	[]byte("Authorization"), []byte("Content-Type"), []byte("Idempotency-Key"), []byte("Origin"), []byte("Cookie"), []byte(wire.PaymentSignature),
}

const (
	transferEncoding = iota
	contentLength
	expect
	host
)

// token is the set of characters of a header name (RFC 9110, 5.6.2).
var token = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-32] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

func validHost(h []byte) bool {
	if len(h) == 0 || len(h) > 255 {
		return false
	}
	for _, c := range h {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_' || c == ':' || c == '[' || c == ']') {
			return false
		}
	}
	return true
}

// status is a refusal of the protocol itself: BAD_REQUEST under another status.
func status(code int, detail string) *problem.Problem {
	p := problem.New(problem.BadRequest, detail)
	p.Status = code
	return p
}

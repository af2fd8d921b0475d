package edge

import (
	"bytes"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// maxHeaders is how many header fields a request may have.
const maxHeaders = 100

// screen follows the bytes of one connection, from head to body to head, and lets a head through only where guard has seen the
// whole of it. So the HTTP parser behind it, which takes line ends and lengths that others do not, never meets them: what passes
// has one meaning, and both cut the stream at the same places. It holds no more of a head than the parser's own buffer does.
type screen struct {
	head    []byte           // of a head that came in pieces: what passed of it already
	body    int64            // how many bytes of a body are still to come
	heads   uint64           // how many passed
	refused *problem.Problem // why nothing passes any more
}

// pass says how many bytes of b, which follow on those before, go on. A refused head is held back but for its first byte, if
// none went before: a connection that ends between two requests is closed without an answer.
func (s *screen) pass(b []byte) int {
	for done := 0; ; {
		next := b[done:]
		if body := min(s.body, int64(len(next))); body > 0 {
			s.body -= body
			done += int(body)
			continue
		}
		if len(next) == 0 {
			return len(b)
		}
		h := next
		if len(s.head) > 0 {
			s.head = append(s.head, next...)
			h = s.head
		}
		before := len(h) - len(next)
		blank := 0 // empty lines before a request line mean nothing (RFC 9112, 2.2)
		for bytes.HasPrefix(h[blank:], crlf) {
			blank += len(crlf)
		}
		end := bytes.Index(h[blank:], headEnd)
		if end < 0 {
			if h = h[blank:]; loose(h) {
				s.refused = problem.New(problem.BadRequest, "lines end with CRLF")
				return done + max(0, blank+1-before)
			}
			if before > 0 {
				s.head = h
			} else {
				s.head = bytes.Clone(h)
			}
			return len(b)
		}
		end += blank + len(headEnd)
		if s.body, s.refused = guard(h[blank:end]); s.refused != nil {
			return done + max(0, blank+1-before)
		}
		s.heads++
		s.head = nil
		done += end - before
	}
}

var (
	crlf    = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
)

// loose reports whether a line of an unfinished head ends with anything but CRLF.
func loose(b []byte) bool {
	for i := range b {
		if b[i] == '\n' && (i == 0 || b[i-1] != '\r') || b[i] == '\r' && i+1 < len(b) && b[i+1] != '\n' {
			return true
		}
	}
	return false
}

// guard refuses what the HTTP parser takes and should not: every request that two readers could understand differently. head
// is all of it, from the request line to the empty line. It returns the length of the body that follows. What the parser
// refuses itself is left to it: a method or a value with a control character, no Host, an odd target.
func guard(head []byte) (body int64, refused *problem.Problem) {
	bad := func(detail string) (int64, *problem.Problem) { return 0, problem.New(problem.BadRequest, detail) }
	line, head, ok := cutLine(head)
	if !ok {
		return bad("lines end with CRLF")
	}
	if bytes.Count(line, space) != 2 || !bytes.HasSuffix(line, http11) && !bytes.HasSuffix(line, http10) {
		return bad("the request line must be a method, a path and HTTP/1.1 or HTTP/1.0")
	}
	var seen [len(singletons)]bool
	for n := 0; ; n++ {
		if line, head, ok = cutLine(head); !ok {
			return bad("lines end with CRLF")
		}
		if len(line) == 0 {
			return body, nil
		}
		if n == maxHeaders {
			return 0, status(431, "too many header fields")
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 {
			return bad("a header line without a name")
		}
		name, value := line[:colon], line[colon+1:]
		for _, c := range name {
			if !token[c] { // also a space before the colon, and a line that continues the one before
				return bad("a header name with a character that is not allowed")
			}
		}
		if len(name) >= len(singletonsOf) {
			continue
		}
		for _, i := range singletonsOf[len(name)] {
			if !bytes.EqualFold(name, singletons[i]) {
				continue
			}
			if seen[i] {
				return bad("the header " + string(singletons[i]) + " is there twice")
			}
			seen[i] = true
			switch i {
			case transferEncoding:
				return bad("Transfer-Encoding is not taken here: send a Content-Length")
			case contentLength:
				value := trim(value)
				if len(value) > 18 {
					return 0, problem.New(problem.PayloadTooLarge, "the body is too large")
				}
				for _, c := range value {
					if c < '0' || c > '9' {
						return bad("Content-Length must be digits")
					}
					body = 10*body + int64(c-'0')
				}
				if len(value) == 0 {
					return bad("Content-Length must be digits")
				}
			case expect:
				if !bytes.EqualFold(trim(value), continue100) {
					return 0, status(417, "only 100-continue can be expected")
				}
			case host:
				if !validHost(trim(value)) {
					return bad("Host must be a name or address and an optional port")
				}
			}
		}
	}
}

// cutLine cuts the first line off, if it ends with CRLF.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 1 || b[end-1] != '\r' {
		return nil, nil, false
	}
	return b[:end-1], b[end+1:], true
}

var (
	space       = []byte(" ")
	http10      = []byte(" HTTP/1.0")
	http11      = []byte(" HTTP/1.1")
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

// singletonsOf is the indices of singletons by their length: most names are of another.
var singletonsOf = func() (of [18][]int) {
	for i, name := range singletons {
		of[len(name)] = append(of[len(name)], i)
	}
	return of
}()

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

// trim is a value without the spaces and tabs around it.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for n := len(b); n > 0 && (b[n-1] == ' ' || b[n-1] == '\t'); n-- {
		b = b[:n-1]
	}
	return b
}

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

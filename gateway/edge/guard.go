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
	most    int64            // the largest body that is taken; 0 for any
	head    []byte           // of a head that came in pieces: what passed of it already
	body    int64            // how many bytes of a body are still to come
	heads   uint64           // how many passed
	within  bool             // the last byte that passed was not the end of a request
	last    heading          // of the last head, valid as long as the bytes that it came in
	refused *problem.Problem // why nothing passes any more
}

// heading is what guard reads of a head.
type heading struct {
	line      []byte   // the request line, without its end
	body      int64    // the length of the body
	id        []byte   // X-Request-Id
	forwarded [][]byte // X-Forwarded-For, in order
	host, odd bool     // there is a Host that nobody could object to; the parser may do more with the request than usual
	close     bool     // the client wants the connection closed after the answer
}

// pass says how many bytes of b, which follow on those before, go on: at most to the end of one request, so that its answer waits
// for nothing of the next. A refused head is held back but for its first byte, if none went before: a connection that ends
// between two requests is closed without an answer.
func (s *screen) pass(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	s.within = true
	if s.body > 0 {
		return s.passBody(b)
	}
	h := b
	if len(s.head) > 0 {
		s.head = append(s.head, b...)
		h = s.head
	}
	before := len(h) - len(b)
	blank := 0 // empty lines before a request line mean nothing (RFC 9112, 2.2)
	for bytes.HasPrefix(h[blank:], crlf) {
		blank += len(crlf)
	}
	end := bytes.Index(h[blank:], headEnd)
	if end < 0 {
		if h = h[blank:]; loose(h) {
			s.refused = problem.New(problem.BadRequest, "lines end with CRLF")
			return max(0, blank+1-before)
		}
		if before > 0 {
			s.head = h
		} else {
			s.head = bytes.Clone(h)
		}
		return len(b)
	}
	end += blank + len(headEnd)
	s.refused = guard(h[blank:end], &s.last)
	if s.refused == nil && s.most > 0 && s.last.body > s.most { // before anybody is told to send it
		s.refused = tooLarge()
	}
	if s.refused != nil {
		return max(0, blank+1-before)
	}
	s.body = s.last.body
	s.heads++
	s.head = nil
	end -= before
	return end + s.passBody(b[end:])
}

// passBody passes what b has of the body.
func (s *screen) passBody(b []byte) int {
	n := min(s.body, int64(len(b)))
	s.body -= n
	s.within = s.body > 0
	return int(n)
}

func tooLarge() *problem.Problem {
	return problem.New(problem.PayloadTooLarge, "the body is too large")
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
// is all of it, from the request line to the empty line; into h goes what it says. What the parser refuses itself is left to
// it: a method or a value with a control character, no Host, an odd target.
func guard(head []byte, h *heading) (refused *problem.Problem) {
	bad := func(detail string) *problem.Problem { return problem.New(problem.BadRequest, detail) }
	*h = heading{forwarded: h.forwarded[:0]}
	line, head, ok := cutLine(head)
	if !ok {
		return bad("lines end with CRLF")
	}
	if bytes.Count(line, space) != 2 || !bytes.HasSuffix(line, http11) && !bytes.HasSuffix(line, http10) {
		return bad("the request line must be a method, a path and HTTP/1.1 or HTTP/1.0")
	}
	h.line, h.odd = line, bytes.HasSuffix(line, http10)
	var seen [len(known)]bool
	for n := 0; ; n++ {
		if line, head, ok = cutLine(head); !ok {
			return bad("lines end with CRLF")
		}
		if len(line) == 0 {
			return nil
		}
		if n == maxHeaders {
			return status(431, "too many header fields")
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
		if len(name) >= len(knownOf) {
			continue
		}
		for _, i := range knownOf[len(name)] {
			if !bytes.EqualFold(name, known[i]) {
				continue
			}
			if i < singletons && seen[i] {
				return bad("the header " + string(known[i]) + " is there twice")
			}
			again := seen[i]
			seen[i] = true
			switch i {
			case transferEncoding:
				return bad("Transfer-Encoding is not taken here: send a Content-Length")
			case contentLength:
				value := trim(value)
				if len(value) > 18 {
					return tooLarge()
				}
				for _, c := range value {
					if c < '0' || c > '9' {
						return bad("Content-Length must be digits")
					}
					h.body = 10*h.body + int64(c-'0')
				}
				if len(value) == 0 {
					return bad("Content-Length must be digits")
				}
			case expect:
				if !bytes.EqualFold(trim(value), continue100) {
					return status(417, "only 100-continue can be expected")
				}
				h.odd = true
			case host:
				if !validHost(trim(value)) {
					return bad("Host must be a name or address and an optional port")
				}
				h.host = plainHost(trim(value))
			case connection:
				if !bytes.EqualFold(trim(value), keepAlive) {
					h.odd, h.close = true, h.close || lists(value, closing)
				}
			case trailer: // the parser refuses one that names certain fields
				h.odd = true
			case requestID:
				if !again {
					h.id = trim(value)
				}
			case forwardedFor:
				h.forwarded = append(h.forwarded, trim(value))
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
	keepAlive   = []byte("keep-alive")
	closing     = []byte("close")
)

// lists reports whether a list of tokens, in any case, holds one.
func lists(value, token []byte) bool {
	for part := range bytes.SplitSeq(value, comma) {
		if bytes.EqualFold(trim(part), token) {
			return true
		}
	}
	return false
}

var comma = []byte(",")

// The headers that guard looks at. The first ones may come once at most.
const (
	transferEncoding = iota
	contentLength
	expect
	host
	authorization
	contentType
	idempotencyKey
	origin
	cookie
	paymentSignature
	connection
	requestID
	forwardedFor
	trailer

	singletons = connection
)

var known = [...][]byte{
	transferEncoding: []byte("Transfer-Encoding"), contentLength: []byte("Content-Length"), expect: []byte("Expect"), host: []byte("Host"),
	authorization: []byte("Authorization"), contentType: []byte("Content-Type"), idempotencyKey: []byte("Idempotency-Key"), origin: []byte("Origin"),
	cookie: []byte("Cookie"), paymentSignature: []byte(wire.PaymentSignature),
	connection: []byte("Connection"), requestID: headerRequestID, forwardedFor: []byte("X-Forwarded-For"),
	trailer: []byte("Trailer"),
}

// knownOf is the indices of known by their length: most names are of another.
var knownOf = func() (of [18][]int) {
	for i, name := range known {
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

// plainHost reports whether a host is a name or an IPv4 address, and a port or none.
func plainHost(h []byte) bool {
	name, port, withPort := bytes.Cut(h, []byte(":"))
	for _, c := range name {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-') {
			return false
		}
	}
	for _, c := range port {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(name) > 0 && len(port) <= 5 && withPort == (len(port) > 0)
}

// status is a refusal of the protocol itself: BAD_REQUEST under another status.
func status(code int, detail string) *problem.Problem {
	p := problem.New(problem.BadRequest, detail)
	p.Status = code
	return p
}

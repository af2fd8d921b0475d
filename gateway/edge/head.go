package edge

import (
	"bytes"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// maxHeaders is how many header fields a request may have.
const maxHeaders = 100

// headFilter follows the bytes of one connection and passes a request on only when checkHead has taken its whole head. So
// the HTTP parser behind it sees only requests that have one meaning, and both cut the stream at the same places. It
// holds no more of a head than the parser's buffer does.
type headFilter struct {
	maxBody   int64            // the largest body that is taken; 0: any
	conn      *conn            // whose bodies are counted; nil: nobody's
	partial   []byte           // the part of an unfinished head that has passed already
	bodyLeft  int64            // bytes of a body still to come
	passed    uint64           // heads that passed
	inRequest bool             // the last byte that passed was not the end of a request
	last      head             // the last head; valid as long as the bytes that it came in
	refused   *problem.Problem // why nothing more passes
}

// head is what checkHead reads of a request's head.
type head struct {
	line      []byte   // the request line, without its end
	bodyLen   int64    // Content-Length
	id        []byte   // X-Request-Id
	trace     []byte   // traceparent, the last one
	forwarded [][]byte // X-Forwarded-For, in order
	elements  [][]byte // Forwarded, in order
	host      []byte   // Host
	plainHost bool     // it is a name or an IPv4 address
	// The values of fields that come once at most. hasKey: Idempotency-Key is there, if only empty.
	authorization, contentType, key []byte
	origin                          []byte
	hasKey                          bool
	unusual                         bool // fasthttp may treat the request in a way that the fast path does not
	close                           bool // the client wants the connection closed after the answer
}

// pass says how many bytes of b go on, at most to the end of one request, so that its answer does not wait for the next
// request. b follows on the bytes before. Of a refused head only the first byte goes on, if none did before: fasthttp
// closes a connection that ends between two requests without an answer.
func (f *headFilter) pass(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	f.inRequest = true
	if f.bodyLeft > 0 {
		return f.passBody(b)
	}
	h := b
	if len(f.partial) > 0 {
		f.partial = append(f.partial, b...)
		h = f.partial
	}
	before := len(h) - len(b)
	blank := 0 // empty lines before a request line mean nothing (RFC 9112, 2.2)
	for bytes.HasPrefix(h[blank:], crlf) {
		blank += len(crlf)
	}
	end := bytes.Index(h[blank:], headEnd)
	if end < 0 {
		if h = h[blank:]; looseLineEnd(h) {
			f.refused = problem.New(problem.BadRequest, "lines end with CRLF")
			return max(0, blank+1-before)
		}
		if before > 0 {
			f.partial = h
		} else {
			f.partial = bytes.Clone(h)
		}
		return len(b)
	}
	end += blank + len(headEnd)
	f.refused = checkHead(h[blank:end], &f.last)
	if f.refused == nil && f.maxBody > 0 && f.last.bodyLen > f.maxBody { // before fasthttp answers Expect: 100-continue
		f.refused = tooLarge()
	}
	if f.refused == nil && f.conn != nil && f.last.bodyLen > smallBody && !f.conn.holdBody(f.last.bodyLen) {
		f.refused = problem.New(problem.Overloaded, "too many large requests at once; nothing was done")
	}
	if f.refused != nil {
		return max(0, blank+1-before)
	}
	f.bodyLeft = f.last.bodyLen
	f.passed++
	f.partial = nil
	end -= before
	return end + f.passBody(b[end:])
}

// passBody passes what b has of the body.
func (f *headFilter) passBody(b []byte) int {
	n := min(f.bodyLeft, int64(len(b)))
	f.bodyLeft -= n
	f.inRequest = f.bodyLeft > 0
	return int(n)
}

var (
	crlf    = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
)

// looseLineEnd reports whether a line of an unfinished head ends with anything but CRLF.
func looseLineEnd(b []byte) bool {
	for i := range b {
		if b[i] == '\n' && (i == 0 || b[i-1] != '\r') || b[i] == '\r' && i+1 < len(b) && b[i+1] != '\n' {
			return true
		}
	}
	return false
}

func bad(detail string) *problem.Problem { return problem.New(problem.BadRequest, detail) }

// checkHead refuses every request that the HTTP parser takes and that two readers could understand differently. b is the
// whole head, from the request line to the empty line; into h goes what it says. What the parser refuses itself is left
// to it: a control character, no Host, a bad target.
func checkHead(b []byte, h *head) (refused *problem.Problem) {
	*h = head{forwarded: h.forwarded[:0], elements: h.elements[:0]}
	line, b, ok := cutLine(b)
	if !ok {
		return bad("lines end with CRLF")
	}
	if bytes.Count(line, space) != 2 || !bytes.HasSuffix(line, http11) && !bytes.HasSuffix(line, http10) {
		return bad("the request line must be a method, a path and HTTP/1.1 or HTTP/1.0")
	}
	h.line, h.unusual = line, bytes.HasSuffix(line, http10)
	var seen [len(known)]bool
	for n := 0; ; n++ {
		if line, b, ok = cutLine(b); !ok {
			return bad("lines end with CRLF")
		}
		if len(line) == 0 {
			return nil
		}
		if n == maxHeaders {
			return badRequest(431, "too many header fields")
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
		if len(name) >= len(knownByLength) {
			continue
		}
		for _, i := range knownByLength[len(name)] {
			if !bytes.EqualFold(name, known[i]) {
				continue
			}
			if i < singletons && seen[i] {
				return bad("the header " + string(known[i]) + " is there twice")
			}
			if refused := h.field(i, trim(value), seen[i]); refused != nil {
				return refused
			}
			seen[i] = true
		}
	}
}

// field reads the field known[i], or refuses it. again says that it has been there before.
func (h *head) field(i int, value []byte, again bool) (refused *problem.Problem) {
	switch i {
	case transferEncoding:
		return bad("Transfer-Encoding is not taken here: send a Content-Length")
	case contentLength:
		if len(value) > 18 {
			return tooLarge()
		}
		if len(value) == 0 {
			return bad("Content-Length must be digits")
		}
		for _, c := range value {
			if c < '0' || c > '9' {
				return bad("Content-Length must be digits")
			}
			h.bodyLen = 10*h.bodyLen + int64(c-'0')
		}
	case expect:
		if !bytes.EqualFold(value, continue100) {
			return badRequest(417, "only 100-continue can be expected")
		}
		h.unusual = true
	case host:
		if !validHost(value) {
			return bad("Host must be a name or address and an optional port")
		}
		h.host, h.plainHost = value, plainHost(value)
	case connection:
		if !bytes.EqualFold(value, keepAlive) {
			h.unusual, h.close = true, h.close || hasToken(value, closing)
		}
	case authorization:
		h.authorization = value
	case contentType:
		h.contentType = value
	case idempotencyKey:
		h.key, h.hasKey = value, true
	case origin:
		h.origin = value
	case trailer: // the parser refuses one that names certain fields
		h.unusual = true
	case requestID:
		if !again {
			h.id = value
		}
	case traceparent:
		h.trace = value
	case forwardedFor:
		h.forwarded = append(h.forwarded, value)
	case forwarded:
		h.elements = append(h.elements, value)
	}
	return nil
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

// hasToken reports whether a comma-separated list has the token, in any case.
func hasToken(value, token []byte) bool {
	for part := range bytes.SplitSeq(value, comma) {
		if bytes.EqualFold(trim(part), token) {
			return true
		}
	}
	return false
}

var comma = []byte(",")

// The headers that checkHead looks at. Those before singletons may come once at most.
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
	forwarded
	trailer
	traceparent

	singletons = connection
)

var known = [...][]byte{
	transferEncoding: []byte("Transfer-Encoding"), contentLength: []byte("Content-Length"), expect: []byte("Expect"), host: []byte("Host"),
	authorization: []byte("Authorization"), contentType: []byte("Content-Type"), idempotencyKey: []byte("Idempotency-Key"), origin: []byte("Origin"),
	cookie: []byte("Cookie"), paymentSignature: []byte(wire.PaymentSignature),
	connection: []byte("Connection"), requestID: headerRequestID, forwardedFor: []byte("X-Forwarded-For"), forwarded: []byte("Forwarded"),
	trailer: []byte("Trailer"), traceparent: []byte("Traceparent"),
}

// knownByLength is the indices of known by the length of the name: most names have another.
var knownByLength = func() (of [18][]int) {
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

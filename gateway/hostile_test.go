package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var statusLine = regexp.MustCompile(`HTTP/1\.[01] (\d{3}) [A-Z]`)

// exchangeRaw sends bytes and closes that direction; it returns the final statuses that came back, and everything.
func exchangeRaw(g *gw, raw string) (statuses []string, all string) {
	c := g.raw()
	defer c.Close()
	go func() {
		io.WriteString(c, raw)
		c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	b, _ := io.ReadAll(c)
	for _, m := range statusLine.FindAllStringSubmatch(string(b), -1) {
		if m[1] != "100" {
			statuses = append(statuses, m[1])
		}
	}
	return statuses, string(b)
}

// Every case is answered once with one of the wanted statuses, or the connection is closed where "close" is wanted; a
// smuggled second request is never answered, and nothing reaches the backend.
func TestHostileInput(t *testing.T) {
	for _, way := range []string{"plain", "TLS", "PROXY", "PROXY and TLS"} {
		t.Run(way, func(t *testing.T) {
			p := newPeer(t)
			p.set(1, nil)
			hostileInput(t, p, over(t, way, []string{p.addr}))
		})
	}
}

func hostileInput(t *testing.T, p *peer, g *gw) {
	auth := g.as("7") + "\r\n"
	const inner = "GET /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n"
	post := func(headers, body string) string {
		return "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: application/json\r\n" + headers + "\r\n" + body
	}
	get := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n" }
	header := func(h string) string { return "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + h + "\r\n\r\n" }
	chunked := "0\r\n\r\n"
	type hostile struct{ name, raw, want string }
	cases := []hostile{
		{"two lengths, equal", post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}"), "400"},
		{"two lengths, unequal", post("Content-Length: 2\r\nContent-Length: 40\r\n", "{}"+inner), "400"},
		{"two lengths in one", post("Content-Length: 2, 2\r\n", "{}"), "400"},
		{"length with a plus", post("Content-Length: +2\r\n", "{}"), "400"},
		{"length with a minus", post("Content-Length: -2\r\n", "{}"), "400"},
		{"length in hex", post("Content-Length: 0x2\r\n", "{}"), "400"},
		{"length beyond 64 bits", post("Content-Length: 99999999999999999999999\r\n", "{}"), "400 413"},
		{"length too large", post("Content-Length: 65537\r\n", "{}"), "413"},
		{"length empty", post("Content-Length: \r\n", "{}"+inner), "400"},
		{"length with a space inside", post("Content-Length: 1 2\r\n", "{}"), "400"},
		{"length with a semicolon", post("Content-Length: 2;x\r\n", "{}"), "400"},
		{"length and chunked", post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", chunked+inner), "400"},
		{"chunked and length", post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", chunked+inner), "400"},
		{"chunked", post("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunked, mixed case", post("tRANSFER-eNCODING: cHUNKED\r\n", chunked), "400"},
		{"chunked, identity", post("Transfer-Encoding: chunked, identity\r\n", chunked+inner), "400"},
		{"identity", post("Transfer-Encoding: identity\r\nContent-Length: 2\r\n", "{}"), "400"},
		{"xchunked", post("Transfer-Encoding: xchunked\r\n", chunked+inner), "400"},
		{"chunked after a tab", post("Transfer-Encoding:\tchunked\r\n", chunked+inner), "400"},
		{"chunked, vertical tab", post("Transfer-Encoding: \x0bchunked\r\n", chunked+inner), "400"},
		{"chunked twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked+inner), "400"},
		{"chunked then identity", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", chunked+inner), "400"},
		{"chunked, space before the colon", post("Transfer-Encoding : chunked\r\n", chunked+inner), "400"},
		{"chunked on a continued line", post("X: a\r\n Transfer-Encoding: chunked\r\n", chunked+inner), "400"},
		{"chunked under HTTP/1.0", strings.Replace(post("Transfer-Encoding: chunked\r\n", chunked+inner), "HTTP/1.1", "HTTP/1.0", 1), "400"},
		{"chunk size with a sign", post("Transfer-Encoding: chunked\r\n", "+2\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk size 0x", post("Transfer-Encoding: chunked\r\n", "0x2\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk size overflow", post("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n{}\r\n0\r\n\r\n"), "400 413"},
		{"chunk with bare LF", post("Transfer-Encoding: chunked\r\n", "2\n{}\n0\n\n"), "400"},
		{"chunk extension", post("Transfer-Encoding: chunked\r\n", "2;a=b\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk trailer", post("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\nX-User-Id: 8\r\n\r\n"), "400"},
		{"bare CR in a value", header("X: a\rb"), "400"},
		{"bare LF line", header("X: a\nY: b"), "400"},
		{"NUL in a value", header("X: a\x00b"), "400"},
		{"NUL in a name", header("X\x00: a"), "400"},
		{"control byte in a name", header("X\x01Y: a"), "400"},
		{"control byte in a value", header("X: \x07"), "400"},
		{"DEL in a value", header("X: \x7f"), "400"},
		{"8-bit in a name", header("X\xe9: a"), "400"},
		{"space before the colon", header("X : a"), "400"},
		{"space in a name", header("X Y: a"), "400"},
		{"a name in parentheses", header("(X): a"), "400"},
		{"no colon", header("nonsense"), "400"},
		{"empty name", header(": a"), "400"},
		{"obs-fold", header("X: a\r\n b"), "400"},
		{"obs-fold with a tab", header("X: a\r\n\tb"), "400"},
		{"first header folded", "GET /v1/orders HTTP/1.1\r\n Host: x\r\n\r\n", "400"},
		{"no Host", "GET /v1/orders HTTP/1.1\r\n" + auth + "\r\n", "400"},
		{"empty Host", "GET /v1/orders HTTP/1.1\r\nHost:\r\n" + auth + "\r\n", "400"},
		{"two Hosts", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nHost: y\r\n" + auth + "\r\n", "400"},
		{"two equal Hosts", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nHost: x\r\n" + auth + "\r\n", "400"},
		{"Host with a path", "GET /v1/orders HTTP/1.1\r\nHost: x/y\r\n" + auth + "\r\n", "400"},
		{"Host with user info", "GET /v1/orders HTTP/1.1\r\nHost: a@b\r\n" + auth + "\r\n", "400"},
		{"Host with a space", "GET /v1/orders HTTP/1.1\r\nHost: a b\r\n" + auth + "\r\n", "400"},
		{"two tokens", header("Authorization: Bearer x"), "400"},
		{"two idempotency keys", post("Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 0\r\n", ""), "400"},
		{"two media types", post("Content-Type: text/plain\r\nContent-Length: 2\r\n", "{}"), "400"},
		{"Expect something else", post("Expect: 200-ok\r\nContent-Length: 2\r\n", "{}"), "417"},
		{"absolute form", get("http://x/v1/orders"), "400"},
		{"absolute form, another host", get("http://evil.example/v1/orders"), "400"},
		{"authority form", "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", "400 405"},
		{"asterisk form", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"no slash", get("v1/orders"), "400"},
		{"two slashes", get("//v1/orders"), "400"},
		{"two slashes inside", get("/v1//orders"), "400"},
		{"a slash at the end", get("/v1/orders/"), "404"},
		{"dot segment", get("/v1/./orders"), "400"},
		{"dot-dot segment", get("/v1/x/../orders"), "400"},
		{"dot-dot at the end", get("/v1/orders/.."), "400"},
		{"encoded dots", get("/v1/x/%2e%2e/orders"), "400"},
		{"half encoded dots", get("/v1/x/.%2e/orders"), "400"},
		{"encoded slash", get("/v1%2forders"), "400"},
		{"encoded backslash", get("/v1%5corders"), "400"},
		{"backslash", get(`/v1\orders`), "400"},
		{"encoded NUL", get("/v1/orders%00"), "400"},
		{"encoded letter", get("/v1/%6frders"), "400"},
		{"double encoding", get("/v1/%252e%252e/orders"), "400"},
		{"overlong UTF-8", get("/v1/%c0%ae%c0%ae/orders"), "400"},
		{"raw 8-bit", get("/v1/orders\xc0\xae"), "400"},
		{"semicolon", get("/v1/orders;x=y"), "400"},
		{"fragment", get("/v1/orders#x"), "400"},
		{"fragment in the query", get("/v1/orders?a#b"), "400"},
		{"upper case", get("/V1/ORDERS"), "404"},
		{"tab in the target", get("/v1/orders\tx"), "400"},
		{"space in the target", get("/v1/orders x"), "400"},
		{"a long path", get("/v1/" + strings.Repeat("a", 300)), "400"},
		{"64 KB request line", get("/v1/" + strings.Repeat("a", 64<<10)), "431 414 close"},
		{"one 64 KB header", header("X: " + strings.Repeat("a", 64<<10)), "431 close"},
		{"10,000 headers", header(strings.TrimSuffix(strings.Repeat("X: a\r\n", 10000), "\r\n")), "431 close"},
		{"101 headers", header(strings.TrimSuffix(strings.Repeat("X: a\r\n", 101), "\r\n")), "431"},
		{"HTTP/0.9", "GET /v1/orders\r\n\r\n", "400 close"},
		{"HTTP/1.2", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.2", 1), "400"},
		{"HTTP/2.0", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/2.0", 1), "400"},
		{"HTTP/1.10", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.10", 1), "400"},
		{"http/1.1", strings.Replace(get("/v1/orders"), "HTTP/1.1", "http/1.1", 1), "400"},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"},
		{"TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 200), "400 close"},
		{"TLS hello with a line end", "\x16\x03\x01\x02\x00\n\x01\r\n\r\n", "400"},
		{"an empty line and nothing", "\r\n\r\n", "400 close"},
		{"nothing", "", "close"},
		{"half a request line", "GET /v1/or", "400 close"},
		{"half a header", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nAuth", "400 close"},
		{"half a body", post("Content-Length: 10\r\n", "{}"), "400 close"},
		{"a method that is none", "G(T /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"TRACE", "TRACE /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
		{"PUT", "PUT /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"},
		{"lower case method", "get /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n", "400 405"},
		{"a GET with a body", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Length: 38\r\n\r\n" + inner, "400"},
		// Line ends.
		{"a bare LF after the request line", "GET /v1/orders HTTP/1.1\nHost: x\r\n" + auth + "\r\n", "400"},
		{"a bare LF after HTTP/1.11", "GET /v1/orders HTTP/1.11\nHost: x\r\n" + auth + "\r\n", "400"},
		{"a bare LF after the request line and a space", "GET /v1/orders HTTP/1.1 \nHost: x\r\n" + auth + "\r\n", "400"},
		{"bare LFs throughout", strings.ReplaceAll(get("/v1/orders"), "\r\n", "\n"), "400"},
		{"a bare LF for the empty line", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "\n", "400"},
		{"a bare LF for the empty line, and a request", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "\n" + get("/v1/orders"), "400"},
		{"a bare LF for the empty line under HTTP/1.0", "GET /v1/orders HTTP/1.0\n\r\n", "400"},
		{"no headers and a bare LF under HTTP/1.0", "GET /v1/orders HTTP/1.0\r\n\n" + get("/v1/orders"), "400"},
		{"a bare LF before the request", "\n" + get("/v1/orders"), "400 close"},
		{"a bare LF after an empty line", "\r\n\n" + get("/v1/orders"), "400 close"},
		{"a bare CR before the request", "\r" + get("/v1/orders"), "400 close"},
		{"a bare CR after the request line", "GET /v1/orders HTTP/1.1\rHost: x\r\n" + auth + "\r\n", "400"},
		{"CR CR LF after the request line", "GET /v1/orders HTTP/1.1\r\r\nHost: x\r\n" + auth + "\r\n", "400"},
		{"CR CR LF after a header", header("X: a\r"), "400"},
		{"CR CR LF for the empty line", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "\r\r\n", "400"},
		{"LF CR for CR LF", "GET /v1/orders HTTP/1.1\n\rHost: x\n\r" + auth + "\n\r", "400"},
		{"a length behind a bare LF", post("X: a\nContent-Length: 2\r\n", "{}"), "400"},
		{"a length behind a bare CR", post("X: a\rContent-Length: 2\r\n", "{}"), "400"},
		{"chunked behind a bare LF", post("Content-Length: 2\r\nX: a\nTransfer-Encoding: chunked\r\n", chunked+inner), "400"},
		{"chunked behind a bare CR", post("Content-Length: 2\r\nX: a\rTransfer-Encoding: chunked\r\n", chunked+inner), "400"},
		{"a Unicode line separator in a name", header("X\u2028Y: a"), "400"},
		// The request line.
		{"two spaces after the method", strings.Replace(get("/v1/orders"), "GET ", "GET  ", 1), "400"},
		{"two spaces before the protocol", strings.Replace(get("/v1/orders"), " HTTP", "  HTTP", 1), "400"},
		{"a space before the method", " " + get("/v1/orders"), "400"},
		{"a space after the protocol", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.1 ", 1), "400"},
		{"a tab after the method", strings.Replace(get("/v1/orders"), "GET ", "GET\t", 1), "400"},
		{"a tab before the protocol", strings.Replace(get("/v1/orders"), " HTTP", "\tHTTP", 1), "400"},
		{"a vertical tab after the method", strings.Replace(get("/v1/orders"), "GET ", "GET\x0b", 1), "400"},
		{"a no-break space after the method", strings.Replace(get("/v1/orders"), "GET ", "GET\u00a0", 1), "400"},
		{"two protocols", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.1 HTTP/1.1", 1), "400"},
		{"a method alone", "GET\r\n\r\n", "400"},
		{"a protocol alone", "HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"no target", "GET  HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n", "400"},
		{"no method", "/v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n", "400"},
		{"an answer instead of a request", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "400"},
		{"HTTP/0.9 by name", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/0.9", 1), "400"},
		{"HTTP/1", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1", 1), "400"},
		{"HTTP/1.", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.", 1), "400"},
		{"HTTP/1.1.1", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.1.1", 1), "400"},
		{"HTTP/01.1", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/01.1", 1), "400"},
		{"HTTP/3", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/3", 1), "400"},
		{"HTTP/1.1 with NUL", strings.Replace(get("/v1/orders"), "HTTP/1.1", "HTTP/1.1\x00", 1), "400"},
		{"another protocol", strings.Replace(get("/v1/orders"), "HTTP/1.1", "RTSP/1.0", 1), "400"},
		{"a method with NUL", strings.Replace(get("/v1/orders"), "GET", "GET\x00", 1), "400"},
		{"a method with an 8-bit byte", strings.Replace(get("/v1/orders"), "GET", "G\xc9T", 1), "400"},
		{"a method of 4,000", strings.Repeat("A", 4000) + " /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
		{"a method of 64 KB", strings.Repeat("A", 64<<10), "431 close"},
		{"a header before the request line", "Host: x\r\nGET /v1/orders HTTP/1.1\r\n\r\n", "400"},
		// Targets.
		{"NUL in the target", get("/v1/orders\x00"), "400"},
		{"DEL in the target", get("/v1/orders\x7f"), "400"},
		{"an escape in the target", get("/v1/\x1b[31morders"), "400"},
		{"UTF-8 in the target", get("/v1/\u043erders"), "400"},
		{"a lone percent sign", get("/v1/orders%"), "400"},
		{"a percent sign and no hex", get("/v1/orders%zz"), "400"},
		{"IIS's encoding", get("/v1/%u002e%u002e/orders"), "400"},
		{"an encoded line end", get("/v1/orders%0d%0aX-User-Id:%208"), "400"},
		{"an encoded space", get("/v1/orders%20HTTP/1.1"), "400"},
		{"an encoded question mark", get("/v1/orders%3fsale_id=1"), "400"},
		{"dots and a semicolon", get("/v1/x/..;/orders"), "400"},
		{"many dot-dots", get("/../../../../../../etc/passwd"), "400"},
		{"dot-dot first", get("/../v1/orders"), "400"},
		{"a dot at the end", get("/v1/orders/."), "400"},
		{"encoded dot-dots in the assets", get("/assets/..%2f..%2fgateway.yaml"), "400"},
		{"dot-dots in the assets", get("/assets/../gateway.yaml"), "400"},
		{"backslashes and dots", get(`/assets/..\..\gateway.yaml`), "400"},
		{"another host by two slashes", get("//evil.example/v1/orders"), "400"},
		{"another host by a slash and a backslash", get(`/\evil.example/v1/orders`), "400"},
		{"user info", get("/@evil.example/v1/orders"), "400"},
		{"a scheme alone", get("http:/v1/orders"), "400"},
		{"another scheme", get("file:///etc/passwd"), "400"},
		{"a word for a target", get("localhost:9080"), "400"},
		{"absolute form, https", get("https://x/v1/orders"), "400"},
		{"absolute form without a path", get("http://x"), "400"},
		{"8-bit in the query", get("/v1/orders?sale_id=\xff"), "400"},
		{"a tab in the query", get("/v1/orders?sale_id=1\t"), "400"},
		{"a plus in the path", get("/v1/sales/+1/orders"), "400"},
		{"a sign in a sale", strings.Replace(post("Content-Length: 0\r\n", ""), "/1/", "/-1/", 1), "404"},
		{"a leading zero in a sale", strings.Replace(post("Content-Length: 0\r\n", ""), "/1/", "/01/", 1), "404"},
		{"a sale beyond 64 bits", strings.Replace(post("Content-Length: 0\r\n", ""), "/1/", "/18446744073709551617/", 1), "404"},
		{"a sale in hex", strings.Replace(post("Content-Length: 0\r\n", ""), "/1/", "/0x1/", 1), "404"},
		{"a sale with an exponent", strings.Replace(post("Content-Length: 0\r\n", ""), "/1/", "/1e0/", 1), "404"},
		{"an order of another shape", get("/v1/orders/1-OR-1"), "404"},
		{"the backends' feed", get("/internal/v1/feed"), "404"},
		{"the operators' API", get("/admin/v1/sales"), "404"},
		{"the operators' reload", strings.Replace(post("Content-Length: 0\r\n", ""), "/v1/sales/1/orders", "/-/reload", 1), "404"},
		{"the operators' metrics", get("/metrics"), "404"},
		{"the profiler", get("/debug/pprof/heap"), "404"},
		{"a hidden file", get("/.env"), "404"},
		{"the page's map", get("/assets/app.js.map"), "404"},
		{"two cursors", get("/v1/orders?cursor=a&cursor=b"), "400"},
		{"a cursor with a line end", get("/v1/orders?cursor=a%0d%0ab"), "400"},
		{"a cursor with another parameter", get("/v1/orders?cursor=a%26uid=8"), "400"},
		{"a wait without end", get("/v1/orders/" + orderID + "?wait_ms=99999999999999999999"), "400"},
		// Framing.
		{"a space before a length's colon", post("Content-Length : 2\r\n", "{}"), "400"},
		{"a tab before a length's colon", post("Content-Length\t: 2\r\n", "{}"), "400"},
		{"a length that is folded", post("Content-Length:\r\n 2\r\n", "{}"), "400"},
		{"two lengths, another case", post("Content-Length: 2\r\ncontent-LENGTH: 2\r\n", "{}"), "400"},
		{"two lengths, one empty", post("Content-Length:\r\nContent-Length: 2\r\n", "{}"), "400"},
		{"a length of wide digits", post("Content-Length: \uff12\r\n", "{}"), "400"},
		{"a length with an exponent", post("Content-Length: 2e0\r\n", "{}"), "400"},
		{"a length with a fraction", post("Content-Length: 2.0\r\n", "{}"), "400"},
		{"a length with an underscore", post("Content-Length: 1_0\r\n", "{}"), "400"},
		{"a length in quotes", post("Content-Length: \"2\"\r\n", "{}"), "400"},
		{"a length with a vertical tab", post("Content-Length: 2\x0b\r\n", "{}"), "400"},
		{"a length of minus zero", post("Content-Length: -0\r\n", inner), "400"},
		{"a length of 2 modulo 64 bits", post("Content-Length: 18446744073709551618\r\n", "{}"), "400 413"},
		{"a length beyond 63 bits", post("Content-Length: 9223372036854775808\r\n", "{}"), "400 413"},
		{"a length of 1 TB", post("Content-Length: 1099511627776\r\n", "{}"), "413"},
		{"a length of 30 zeros and 2", post("Content-Length: "+strings.Repeat("0", 30)+"2\r\n", "{}"), "400 413"},
		{"chunked on a GET", header("Transfer-Encoding: chunked") + chunked + inner, "400"},
		{"chunked and no length on a GET, kept alive under HTTP/1.0", strings.Replace(header("Connection: keep-alive\r\nTransfer-Encoding: chunked"), "HTTP/1.1", "HTTP/1.0", 1) + chunked + inner, "400"},
		{"a coding in quotes", post("Transfer-Encoding: \"chunked\"\r\n", chunked+inner), "400"},
		{"a coding with a parameter", post("Transfer-Encoding: chunked;q=1\r\n", chunked+inner), "400"},
		{"a comma before the coding", post("Transfer-Encoding: ,chunked\r\n", chunked+inner), "400"},
		{"a comma after the coding", post("Transfer-Encoding: chunked,\r\n", chunked+inner), "400"},
		{"gzip, chunked", post("Transfer-Encoding: gzip, chunked\r\n", chunked+inner), "400"},
		{"an empty coding", post("Transfer-Encoding:\r\n", chunked+inner), "400"},
		{"an empty coding and a length", post("Transfer-Encoding:\r\nContent-Length: 2\r\n", "{}"), "400"},
		{"a coding that is folded", post("Transfer-Encoding:\r\n chunked\r\n", chunked+inner), "400"},
		{"a coding with NUL", post("Transfer-Encoding: chunked\x00\r\n", chunked+inner), "400"},
		{"a coding with a form feed", post("Transfer-Encoding: chunked\x0c\r\n", chunked+inner), "400"},
		{"a coding's name with NUL", post("Transfer-Encoding\x00: chunked\r\n", chunked+inner), "400"},
		{"a coding's name on two lines", post("Transfer-\r\nEncoding: chunked\r\n", chunked+inner), "400"},
		{"a coding behind 8 bits", post("\xffTransfer-Encoding: chunked\r\n", chunked+inner), "400"},
		{"chunk size negative", post("Transfer-Encoding: chunked\r\n", "-1\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk size empty", post("Transfer-Encoding: chunked\r\n", "\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk size after a space", post("Transfer-Encoding: chunked\r\n", " 2\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk size with an underscore", post("Transfer-Encoding: chunked\r\n", "0_2\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk size of 300 zeros", post("Transfer-Encoding: chunked\r\n", strings.Repeat("0", 300)+"\r\n\r\n"+inner), "400"},
		{"chunk extension with a bare LF", post("Transfer-Encoding: chunked\r\n", "2;a\nb\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk without its end", post("Transfer-Encoding: chunked\r\n", "2\r\n{}0\r\n\r\n"+inner), "400"},
		{"chunk shorter than it says", post("Transfer-Encoding: chunked\r\n", "20\r\n{}\r\n0\r\n\r\n"), "400"},
		{"chunk trailer with a length", post("Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 40\r\n\r\n"+inner), "400"},
		{"chunked, and the body to be asked for", post("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", chunked+inner), "400"},
		// Hosts.
		{"two Hosts, another case", "GET /v1/orders HTTP/1.1\r\nhost: x\r\nHOST: x\r\n" + auth + "\r\n", "400"},
		{"two Hosts under HTTP/1.0", "GET /v1/orders HTTP/1.0\r\nHost: x\r\nHost: y\r\n" + auth + "\r\n", "400"},
		{"two Hosts in one", "GET /v1/orders HTTP/1.1\r\nHost: x, y\r\n" + auth + "\r\n", "400"},
		{"Host that is folded", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n y\r\n" + auth + "\r\n", "400"},
		{"Host with a scheme", "GET /v1/orders HTTP/1.1\r\nHost: http://x\r\n" + auth + "\r\n", "400"},
		{"Host with a query", "GET /v1/orders HTTP/1.1\r\nHost: x?y\r\n" + auth + "\r\n", "400"},
		{"Host with a fragment", "GET /v1/orders HTTP/1.1\r\nHost: x#y\r\n" + auth + "\r\n", "400"},
		{"Host, percent-encoded", "GET /v1/orders HTTP/1.1\r\nHost: x%2fy\r\n" + auth + "\r\n", "400"},
		{"Host with a tab", "GET /v1/orders HTTP/1.1\r\nHost: x\ty\r\n" + auth + "\r\n", "400"},
		{"Host with 8-bit bytes", "GET /v1/orders HTTP/1.1\r\nHost: \u0445\r\n" + auth + "\r\n", "400"},
		{"Host with NUL", "GET /v1/orders HTTP/1.1\r\nHost: x\x00\r\n" + auth + "\r\n", "400"},
		{"Host of 300", "GET /v1/orders HTTP/1.1\r\nHost: " + strings.Repeat("x", 300) + "\r\n" + auth + "\r\n", "400"},
		// Other headers.
		{"two cookies", header("Cookie: a=b\r\nCookie: c=d"), "400"},
		{"two origins", header("Origin: http://x\r\nOrigin: http://y"), "400"},
		{"two expectations", post("Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 2\r\n", "{}"), "400"},
		{"an expectation and another", post("Expect: 100-continue, 200-ok\r\nContent-Length: 2\r\n", "{}"), "417"},
		{"an empty expectation", post("Expect:\r\nContent-Length: 2\r\n", "{}"), "417"},
		{"a body too large, to be asked for", post("Expect: 100-continue\r\nContent-Length: 65537\r\n", ""), "413"},
		{"a trailer that names a length", header("Trailer: Content-Length"), "400"},
		{"an escape in a value", header("X: \x1b[31m"), "400"},
		{"a vertical tab in a value", header("X: a\x0bb"), "400"},
		{"a form feed in a value", header("X: a\x0cb"), "400"},
		{"a backspace in a value", header("X: a\x08b"), "400"},
		{"a tab in a name", header("X\tY: a"), "400"},
		{"a quote in a name", header(`X"Y: a`), "400"},
		{"a slash in a name", header("X/Y: a"), "400"},
		{"a bracket in a name", header("X[Y]: a"), "400"},
		{"a brace in a name", header("X{Y: a"), "400"},
		{"an at sign in a name", header("X@Y: a"), "400"},
		{"a comma in a name", header("X,Y: a"), "400"},
		{"a semicolon in a name", header("X;Y: a"), "400"},
		{"an equals sign in a name", header("X=Y: a"), "400"},
		{"a byte order mark before a name", header("\ufeffX: a"), "400"},
		{"DEL in a name", header("X\x7f: a"), "400"},
		{"a name of 64 KB", header(strings.Repeat("X", 64<<10) + ": a"), "431 close"},
		{"a header line of colons", header(":::::"), "400"},
		// Methods.
		{"OPTIONS", strings.Replace(get("/v1/orders"), "GET", "OPTIONS", 1), "405"},
		{"PATCH", "PATCH /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"},
		{"DELETE of orders", strings.Replace(get("/v1/orders"), "GET", "DELETE", 1), "405"},
		{"CONNECT to a path", strings.Replace(get("/v1/orders"), "GET", "CONNECT", 1), "405"},
		{"PRI", strings.Replace(get("/v1/orders"), "GET", "PRI", 1), "405"},
		{"POST for GET", strings.Replace(post("Content-Length: 0\r\n", ""), "/v1/sales/1/orders", "/v1/orders", 1), "405"},
		{"a method override", strings.Replace(header("X-HTTP-Method-Override: POST"), "/v1/orders", "/v1/sales/1/orders", 1), "405"},
		{"HEAD with a body", "HEAD /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Length: 38\r\n\r\n" + inner, "400"},
		{"DELETE with a body", "DELETE /v1/session HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Length: 2\r\n\r\n{}", "400"},
		// Credentials.
		{"no credentials", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n", "401"},
		{"credentials of another scheme", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Nzo3\r\n\r\n", "401"},
		{"a scheme alone", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer\r\n\r\n", "401"},
		{"a scheme and a space", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \r\n\r\n", "401"},
		{"a token without its scheme", strings.Replace(get("/v1/orders"), "Bearer ", "", 1), "401"},
		{"a token after a tab", strings.Replace(get("/v1/orders"), "Bearer ", "Bearer\t", 1), "401"},
		{"two tokens in one", strings.Replace(get("/v1/orders"), "Bearer ", "Bearer a, Bearer ", 1), "401"},
		{"a token and a space inside", strings.Replace(get("/v1/orders"), "Bearer eyJ", "Bearer ey J", 1), "401"},
		{"a token with 8-bit bytes", strings.Replace(get("/v1/orders"), "Bearer ", "Bearer \xff", 1), "401"},
		{"a token of 6 KB", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + strings.Repeat("a", 6<<10) + "\r\n\r\n", "401"},
		{"a token in a proxy's header", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nProxy-" + auth + "\r\n", "401"},
		{"a user by name alone", "GET /v1/orders HTTP/1.1\r\nHost: x\r\nX-User-Id: 7\r\nFloodgate-Uid: 7\r\n\r\n", "401"},
		{"a token in the query", "GET /v1/orders?access_token=" + strings.TrimSpace(strings.TrimPrefix(auth, "Authorization: Bearer ")) + " HTTP/1.1\r\nHost: x\r\n\r\n", "401"},
		{"a write by cookie from nowhere", "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\nCookie: floodgate_session=" + strings.TrimPrefix(auth, "Authorization: Bearer ") + "Content-Length: 0\r\n\r\n", "403"},
	}
	for name, body := range map[string]string{
		"JSON of depth 10,000":                    strings.Repeat("[", 10000) + strings.Repeat("]", 10000),
		"objects of depth 5,000":                  strings.Repeat(`{"quantity":`, 5000),
		"duplicate members":                       `{"quantity":1,"quantity":100}`,
		"duplicate members, one escaped":          `{"quantity":1,"\u0071uantity":1}`,
		"a number of 400 digits":                  `{"quantity":` + strings.Repeat("9", 400) + "}",
		"a number past 64 bits":                   `{"quantity":18446744073709551617}`,
		"a negative quantity":                     `{"quantity":-1}`,
		"a fractional quantity":                   `{"quantity":0.5}`,
		"a whole quantity, written as a fraction": `{"quantity":1.0}`,
		"an exponent":                             `{"quantity":1e0}`,
		"a huge exponent":                         `{"quantity":1e999999999}`,
		"zero":                                    `{"quantity":0}`,
		"minus zero":                              `{"quantity":-0}`,
		"a leading zero":                          `{"quantity":01}`,
		"a plus sign":                             `{"quantity":+1}`,
		"hex":                                     `{"quantity":0x1}`,
		"not a number":                            `{"quantity":NaN}`,
		"infinity":                                `{"quantity":Infinity}`,
		"a string":                                `{"quantity":"1"}`,
		"true":                                    `{"quantity":true}`,
		"null":                                    `{"quantity":null}`,
		"a list":                                  `{"quantity":[1]}`,
		"an object":                               `{"quantity":{"$gt":0}}`,
		"another member":                          `{"quantity":1,"uid":"8"}`,
		"a prototype":                             `{"__proto__":{"quantity":1}}`,
		"another case":                            `{"Quantity":1}`,
		"a trailing comma":                        `{"quantity":1,}`,
		"a comment":                               `{"quantity":1/**/}`,
		"single quotes":                           `{'quantity':1}`,
		"no quotes":                               `{quantity:1}`,
		"two values":                              `{"quantity":1}{"quantity":1}`,
		"a value and NUL":                         "{\"quantity\":1}\x00",
		"a byte order mark":                       "\ufeff{\"quantity\":1}",
		"UTF-16":                                  "{\x00\"\x00q\x00\"\x00:\x001\x00}\x00",
		"invalid UTF-8":                           "{\"quantit\xff\":1}",
		"a lone surrogate":                        `{"\ud800":1}`,
		"a line end in a name":                    "{\"quanti\nty\":1}",
		"half a value":                            `{"quantity":1`,
		"a form":                                  "quantity=1",
		"XML":                                     `<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>`,
		"a request":                               inner,
		"white space":                             "   ",
		"60 KB of nothing":                        strings.Repeat(" ", 60<<10) + "[",
	} {
		cases = append(cases, hostile{"a body: " + name, post(fmt.Sprintf("Content-Length: %d\r\n", len(body)), body), "400"})
	}
	for _, c := range cases {
		statuses, all := exchangeRaw(g, c.raw)
		got := "close"
		if len(statuses) > 0 {
			got = statuses[0]
		}
		if len(statuses) > 1 || !slices.Contains(strings.Fields(c.want), got) {
			t.Errorf("%s: got %v, want %s once:\n%.400s", c.name, statuses, c.want, all)
		}
		if len(statuses) > 0 && !strings.Contains(all, "application/problem+json") {
			t.Errorf("%s: not a problem:\n%.400s", c.name, all)
		}
	}
	if calls := p.got("/"); len(calls) != 0 {
		t.Errorf("the backend got %+v", calls)
	}
	if a := g.do("GET", "/v1/orders", g.as("8")); a.code != 202 || g.metric("gateway_panics_total") != "0" {
		t.Errorf("afterwards: got %v, %s panics", a, g.metric("gateway_panics_total"))
	}
	g.until("no worker is stuck", func() bool { n, _ := strconv.Atoi(g.metric("gateway_connections")); return n <= 2 })
	t.Logf("%d cases", len(cases))
}

// These are odd and harmless: they are served, in the name of whom the token names.
func TestOddButHarmless(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	p.on(echo)
	g := run(t, []string{p.addr})
	auth := g.as("7") + "\r\n"
	for _, c := range []struct{ name, raw string }{
		{"hop-by-hop tricks", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "Connection: x-user-id, authorization\r\nX-User-Id: 8\r\n\r\n"},
		{"spoofed users", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "X-User-Id: 8\r\nX_User_Id: 8\r\nX-UID: 8\r\nFloodgate-Uid: 8\r\nX-Forwarded-User: 8\r\n\r\n"},
		{"spoofed addresses", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "X-Forwarded-For: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\nX-Real-IP: 9.9.9.9\r\n\r\n"},
		{"a forged signature", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "Floodgate-Key: dev-gw\r\nFloodgate-Signature: 00\r\nFloodgate-Time: 1\r\n\r\n"},
		{"rewrite headers", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "X-Original-URL: /v1/other\r\nX-Rewrite-URL: /v1/other\r\nX-HTTP-Method-Override: DELETE\r\n\r\n"},
		{"users in the query", "GET /v1/orders?uid=8&user=8&sub=8 HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n"},
		{"8-bit in a value", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "X: \xe9\r\n\r\n"},
		{"bearer in lower case", "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + strings.Replace(auth, "Bearer", "bearer", 1) + "\r\n"},
		{"HTTP/1.0 without Host", "GET /v1/orders HTTP/1.0\r\n" + auth + "\r\n"},
	} {
		if statuses, all := exchangeRaw(g, c.raw); len(statuses) != 1 || statuses[0] != "200" || !strings.HasSuffix(all, "GET /v1/orders 7") {
			t.Errorf("%s: got %s", c.name, all)
		}
	}
	for _, c := range p.got("/") {
		if c.UID != "7" || strings.Contains(c.Header, "9.9.9.9") || strings.Contains(c.Header, "X-") && !strings.Contains(c.Header, "X-Request-Id") {
			t.Errorf("forwarded %+v", c)
		}
	}
	// Expect: 100-continue is honoured: one interim and one final answer.
	statuses, all := exchangeRaw(g, "POST /v1/orders/"+orderID+"/payment HTTP/1.1\r\nHost: x\r\n"+auth+"Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}")
	if len(statuses) != 1 || statuses[0] != "200" || !strings.Contains(all, "100 Continue") {
		t.Errorf("Expect: got %s", all)
	}
}

func TestPipeline(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr})
	statuses, _ := exchangeRaw(g, strings.Repeat("GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n", 1000))
	if len(statuses) != 1000 || slices.ContainsFunc(statuses, func(s string) bool { return s != "200" }) {
		t.Errorf("got %d answers", len(statuses))
	}
	// What stands behind a refused request is not looked at.
	statuses, _ = exchangeRaw(g, "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n"+"GET /v1/time HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"+"GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
	if fmt.Sprint(statuses) != "[200 400]" {
		t.Errorf("got %v", statuses)
	}
}

// An answer is there before the next request is, whatever of that has come already.
func TestAnAnswerWaitsForNothingOfTheNextRequest(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("read_timeout: 2s", "read_timeout: 60s"))
	first := "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n"
	next := "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\n" + g.as("7") + "\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
	const body = `{"quantity":1}`
	for name, begun := range map[string]string{"a head without its body": next, "half a body": next + body[:5], "half a head": next[:30]} {
		c := g.raw()
		r := bufio.NewReader(c)
		io.WriteString(c, first+first+begun)
		for i := range 2 {
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%s behind it, answer %d: got %v, %v", name, i, resp, err)
			}
			io.Copy(io.Discard, resp.Body)
		}
		io.WriteString(c, (next + body)[len(begun):])
		if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 202 && resp.StatusCode != 429 {
			t.Errorf("%s: the second request got %v, %v", name, resp, err)
		}
	}
}

// A client that wants its connection closed has it closed, however it says so.
func TestConnectionClose(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with("idle_timeout: 5s", "idle_timeout: 60s"))
	for _, value := range []string{"close", "Close", "CLOSE", "close, x", "x, Close", "keep-alive,\tclose", "close\r\nConnection: keep-alive", "x\r\nConnection: close"} {
		for _, sale := range []string{"/v1/time", "/v1/sales/99"} {
			c := g.raw()
			io.WriteString(c, "GET "+sale+" HTTP/1.1\r\nHost: x\r\nConnection: "+value+"\r\n\r\n")
			if b, err := io.ReadAll(c); err != nil || !strings.Contains(string(b), "\r\nConnection: close\r\n") {
				t.Errorf("Connection: %s: got %q, %v; want an answer and the end", value, b, err)
			}
		}
	}
	c := g.raw()
	io.WriteString(c, strings.Repeat("GET /v1/time HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, closed\r\n\r\n", 2))
	r := bufio.NewReader(c)
	for range 2 {
		if resp, err := http.ReadResponse(r, nil); err != nil || resp.Close {
			t.Fatalf("no close: got %v, %v", resp, err)
		} else {
			io.Copy(io.Discard, resp.Body)
		}
	}
}

// A body that is refused for its size is refused before the client is told to send it.
func TestExpectOfABodyThatIsTooLarge(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	for _, fields := range []string{"Expect: 100-continue\r\nContent-Length: 65537\r\n", "Content-Length: 999999999\r\nexpect: 100-Continue\r\n"} {
		c := g.raw()
		io.WriteString(c, "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\n"+g.as("7")+"\r\n"+fields+"\r\n")
		if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 413 ") || !strings.Contains(string(b), "PAYLOAD_TOO_LARGE") {
			t.Errorf("%q: got %q, %v; want 413 and nothing before", fields, b, err)
		}
	}
	if n := len(p.got("/v1/sales/1/orders")); n != 0 {
		t.Errorf("%d orders reached the backend", n)
	}
}

// Who is over the bound of connections is told so also where the request came first, or the client is slow to read.
func TestTheAnswerToAConnectionOverTheBoundArrives(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`), with("server: {", "server: {max_connections_per_ip: 1, "))
	held := g.raw()
	io.WriteString(held, "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
	if n, err := held.Read(make([]byte, 4096)); n == 0 || err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		c := g.raw()
		for range 4 { // whatever the gateway does in between
			if _, err := io.WriteString(c, "GET /v1/time HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 4000)+"\r\n\r\n"); err != nil {
				t.Fatalf("connection %d: %v while it is sent", i, err)
			}
		}
		b, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 503 ") || !strings.Contains(string(b), "OVERLOADED") {
			t.Fatalf("connection %d: got %q, %v; want 503 and the end", i, b, err)
		}
		c.Close()
	}
}

func TestSlowClientsAreCut(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("read_timeout: 2s", "read_timeout: 200ms"))
	for name, raw := range map[string]string{
		"half a header": "GET /v1/time HTTP/1.1\r\nHost: x\r\n",
		"half a body":   "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",
	} {
		c := g.raw()
		io.WriteString(c, raw)
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		b, err := io.ReadAll(c) // ends when the gateway closes
		if err != nil || len(b) > 0 && !strings.Contains(string(b), "408") {
			t.Errorf("%s: got %q, %v", name, b, err)
		}
	}
	c := g.raw() // nothing at all
	if b, err := io.ReadAll(c); err != nil {
		t.Errorf("a silent client: got %q, %v", b, err)
	}
}

// A thousand clients that send nothing, or a byte now and then, or nothing any more, keep nobody waiting, and each is cut: what
// it drips moves no bound.
func TestAThousandSlowClients(t *testing.T) {
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr}, with("read_timeout: 2s, idle_timeout: 5s", "read_timeout: 500ms, idle_timeout: 500ms"))
	starts := []string{
		"",
		"GET /v1/ti",
		"GET /v1/time HTTP/1.1\r\nHost: x\r\nX: ",
		"POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{",
		"POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 60000\r\n\r\n",
		"GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/time HTTP/1.1\r\nHost: x\r\nX: ",
	}
	conns := make([]net.Conn, 1000)
	for i := range conns {
		conns[i] = g.raw()
		conns[i].SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(conns[i], starts[i%len(starts)])
	}
	stop := make(chan struct{})
	var drip sync.WaitGroup
	drip.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			for i, c := range conns {
				if start := starts[i%len(starts)]; start != "" && !strings.HasSuffix(start, "x\r\n\r\n") {
					io.WriteString(c, "a")
				}
			}
		}
	})
	for range 20 {
		if a := g.do("GET", "/v1/time"); a.code != 200 {
			t.Errorf("meanwhile: got %v", a)
		}
	}
	for i, c := range conns {
		b, err := io.ReadAll(c) // ends when the gateway closes
		if netErr, ok := err.(net.Error); ok && netErr.Timeout() {
			t.Fatalf("client %d, %q: not cut", i, starts[i%len(starts)])
		}
		if all := string(b); strings.Contains(all, " 500 ") || strings.Contains(all, " 202 ") {
			t.Errorf("client %d: got %s", i, all)
		}
	}
	close(stop)
	drip.Wait()
	g.until("their places are free", func() bool { n, _ := strconv.Atoi(g.metric("gateway_connections")); return n <= 2 })
	if n := len(p.got("/v1/sales/1/orders")); n != 0 {
		t.Errorf("%d orders reached the backend", n)
	}
}

func TestConnectionBounds(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with(`ip_exempt: ["127.0.0.0/8"]`, `ip_exempt: []`), with("server: {", "server: {max_connections_per_ip: 3, "))
	ask := func(c net.Conn) string {
		io.WriteString(c, "GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		return string(b[:n])
	}
	var held []net.Conn
	for range 3 {
		c := g.raw()
		if s := ask(c); !strings.Contains(s, "200 OK") {
			t.Fatalf("got %s", s)
		}
		held = append(held, c)
	}
	if s := ask(g.raw()); !strings.Contains(s, "503") || !strings.Contains(s, "OVERLOADED") {
		t.Errorf("a fourth: got %q", s)
	}
	held[0].Close()
	g.until("a place is free", func() bool { return strings.Contains(ask(g.raw()), "200 OK") })
	g.write(configText([]string{p.addr}, with("server: {", "server: {max_connections_per_ip: 3, "))) // loopback is exempt
	g.until("exempt", func() bool { return g.generation() == 2 })
	for range 10 {
		if s := ask(g.raw()); !strings.Contains(s, "200 OK") {
			t.Errorf("exempt: got %q", s)
		}
	}
}

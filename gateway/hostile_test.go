package gateway

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
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
		c.(*net.TCPConn).CloseWrite()
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
	p := newPeer(t)
	p.set(1, nil)
	g := run(t, []string{p.addr})
	auth := g.as("7") + "\r\n"
	const inner = "GET /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n"
	post := func(headers, body string) string {
		return "POST /v1/sales/1/orders HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: application/json\r\n" + headers + "\r\n" + body
	}
	get := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n" }
	header := func(h string) string { return "GET /v1/orders HTTP/1.1\r\nHost: x\r\n" + auth + h + "\r\n\r\n" }
	chunked := "0\r\n\r\n"
	cases := []struct{ name, raw, want string }{
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
		{"JSON of depth 10,000", post("Content-Length: 20000\r\n", strings.Repeat("[", 10000)+strings.Repeat("]", 10000)), "400"},
		{"duplicate members", post("Content-Length: 29\r\n", `{"quantity":1,"quantity":100}`), "400"},
		{"a number of 400 digits", post("Content-Length: 413\r\n", `{"quantity":`+strings.Repeat("9", 400)+"}"), "400"},
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

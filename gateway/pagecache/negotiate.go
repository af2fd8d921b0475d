package pagecache

import (
	"bytes"
	"strings"
)

// Coding is a content coding.
type Coding int

// The codings that a page is kept in.
const (
	Identity Coding = iota
	Gzip
	Brotli
	codings
)

var codingNames = [codings]string{"", "gzip", "br"}

// String is the value of Content-Encoding, "" for the page as it is.
func (c Coding) String() string { return codingNames[c] }

// Choose returns the coding that the Accept-Encoding fields prefer, the smallest among equals; false: they accept none
// (RFC 9110, 12.5.3). Without such a field it is Identity. A page that is not 200 has no other coding.
func (p *Page) Choose(fields [][]byte) (Coding, bool) {
	if len(fields) == 0 {
		return Identity, true
	}
	const unsaid = -1
	weights := [codings]int{unsaid, unsaid, unsaid}
	rest := unsaid // of "*"
	for _, field := range fields {
		for len(field) > 0 {
			var one []byte
			one, field, _ = bytes.Cut(field, []byte(","))
			name, weight, ok := weigh(one)
			switch {
			case !ok:
			case string(name) == "*":
				rest = weight
			case fold(name, "gzip") || fold(name, "x-gzip"):
				weights[Gzip] = weight
			case fold(name, "br"):
				weights[Brotli] = weight
			case fold(name, "identity"):
				weights[Identity] = weight
			}
		}
	}
	for c := Gzip; c < codings; c++ {
		if weights[c] == unsaid {
			weights[c] = max(rest, 0)
		}
		if p.bodies[c] == nil {
			weights[c] = 0
		}
	}
	if weights[Identity] == unsaid {
		if weights[Identity] = rest; rest == unsaid { // acceptable, and as good as any
			weights[Identity] = max(1, weights[Gzip], weights[Brotli])
		}
	}
	best := Identity
	for c := Gzip; c < codings; c++ {
		if weights[c] > weights[best] || weights[c] == weights[best] && len(p.bodies[c]) < len(p.bodies[best]) {
			best = c
		}
	}
	return best, weights[best] > 0
}

func fold(b []byte, s string) bool { return len(b) == len(s) && strings.EqualFold(string(b), s) }

// weigh reads one element of Accept-Encoding: a name and its q-value in thousandths, 1000 where there is none.
func weigh(element []byte) (name []byte, weight int, ok bool) {
	name, params, more := bytes.Cut(element, []byte(";"))
	name = bytes.TrimSpace(name)
	if len(name) == 0 || !more {
		return name, 1000, len(name) > 0
	}
	q, v, _ := bytes.Cut(bytes.TrimSpace(params), []byte("="))
	if !fold(bytes.TrimSpace(q), "q") {
		return nil, 0, false
	}
	v = bytes.TrimSpace(v)
	if len(v) == 0 || len(v) > 5 || v[0] != '0' && v[0] != '1' || len(v) > 1 && v[1] != '.' {
		return nil, 0, false
	}
	weight = int(v[0]-'0') * 1000
	for i, unit := 2, 100; i < len(v); i, unit = i+1, unit/10 {
		if v[i] < '0' || v[i] > '9' {
			return nil, 0, false
		}
		weight += int(v[i]-'0') * unit
	}
	return name, weight, weight <= 1000
}

// Matches reports whether If-None-Match fields name etag, by weak comparison (RFC 9110, 13.1.2).
func Matches(fields [][]byte, etag string) bool {
	if etag == "" {
		return false
	}
	bare := strings.TrimPrefix(etag, "W/")
	for _, field := range fields {
		for len(field) > 0 {
			var one []byte
			one, field, _ = bytes.Cut(field, []byte(","))
			one = bytes.TrimSpace(one)
			if string(one) == "*" || string(bytes.TrimPrefix(one, []byte("W/"))) == bare {
				return true
			}
		}
	}
	return false
}

package pagecache

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
	brotli "github.com/molecule-man/go-brrr"
)

// Page is one answer. It is never changed. Make it with NewPage.
type Page struct {
	Status      int
	ContentType string
	ETag        string // weak, so that it is the same for every coding; "" for none
	Private     bool   // is given to those who wait for it, and not kept
	bodies      [codings][]byte
}

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

// brotliFrom is the size of a page, in bytes, from which brotli saves more than it costs to begin.
const brotliFrom = 1 << 10

// NewPage makes a page, and compresses it if it is a good one: once, not for each reader. body belongs to the page.
func NewPage(status int, contentType, etag string, body []byte) *Page {
	if etag != "" && !strings.HasPrefix(etag, "W/") {
		etag = "W/" + etag
	}
	p := &Page{Status: status, ContentType: contentType, ETag: etag, bodies: [codings][]byte{Identity: body}}
	if status == 200 {
		s := <-presses
		if s == nil {
			s = newPress()
		}
		p.bodies[Gzip] = s.gzip(body)
		if len(body) >= brotliFrom {
			p.bodies[Brotli] = s.brotli(body)
		}
		presses <- s
	}
	return p
}

// Body is the page in a coding that Choose has chosen.
func (p *Page) Body(c Coding) []byte { return p.bodies[c] }

// press holds compressors, which are large: there are as many as processors, and who comes when all are busy waits for one.
type press struct {
	out bytes.Buffer
	gz  *gzip.Writer
	br  *brotli.Writer
}

// presses has room for all of them; nil: not made yet.
var presses = func() chan *press {
	n := runtime.GOMAXPROCS(0)
	c := make(chan *press, n)
	for range n {
		c <- nil
	}
	return c
}()

// The levels are those at which a list of a hundred sales takes about a millisecond.
func newPress() *press {
	s := &press{}
	var err1, err2 error
	s.gz, err1 = gzip.NewWriterLevel(&s.out, 6)
	s.br, err2 = brotli.NewWriterOptions(&s.out, 5, brotli.WriterOptions{LGWin: 18})
	if err1 != nil || err2 != nil {
		panic(fmt.Sprintf("BUG: compressors of no level: %v, %v", err1, err2))
	}
	return s
}

func (s *press) gzip(body []byte) []byte {
	s.out.Reset()
	s.gz.Reset(&s.out)
	s.gz.Write(body) // into memory: never fails
	s.gz.Close()
	return bytes.Clone(s.out.Bytes())
}

func (s *press) brotli(body []byte) []byte {
	s.out.Reset()
	s.br.Reset(&s.out)
	s.br.Write(body)
	s.br.Close()
	return bytes.Clone(s.out.Bytes())
}

// Choose returns the coding that the Accept-Encoding fields prefer, the smallest of those that they like the same; false: none
// will do (RFC 9110, 12.5.3). Without such a field the page is given as it is. A page that is not 200 has no other coding.
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

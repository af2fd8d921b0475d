package pagecache

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
	brotli "github.com/molecule-man/go-brrr"
)

// Page is one answer, in every coding. It does not change. Make it with NewPage.
type Page struct {
	Status      int
	ContentType string
	ETag        string // weak, so that it is the same for every coding; "" for none
	Private     bool   // given to those who wait for it, and not kept
	bodies      [codings][]byte
}

// brotliFrom is the size of a page, in bytes, from which brotli saves more than it costs to begin.
const brotliFrom = 1 << 10

// NewPage makes a page. One with status 200 is compressed here, once for all readers. The page keeps body.
func NewPage(status int, contentType, etag string, body []byte) *Page {
	if etag != "" && !strings.HasPrefix(etag, "W/") {
		etag = "W/" + etag
	}
	p := &Page{Status: status, ContentType: contentType, ETag: etag, bodies: [codings][]byte{Identity: body}}
	if status == 200 {
		c := <-compressors
		if c == nil {
			c = newCompressor()
		}
		p.bodies[Gzip] = c.gzip(body)
		if len(body) >= brotliFrom {
			p.bodies[Brotli] = c.brotli(body)
		}
		compressors <- c
	}
	return p
}

// Body is the page in a coding that Choose returned.
func (p *Page) Body(c Coding) []byte { return p.bodies[c] }

// compressor is large, so there are only as many as processors. When all are busy, NewPage waits for one.
type compressor struct {
	out bytes.Buffer
	gz  *gzip.Writer
	br  *brotli.Writer
}

// compressors are those that are free; nil: one that is not made yet.
var compressors = func() chan *compressor {
	n := runtime.GOMAXPROCS(0)
	c := make(chan *compressor, n)
	for range n {
		c <- nil
	}
	return c
}()

// newCompressor uses levels at which a list of a hundred sales takes about a millisecond.
func newCompressor() *compressor {
	c := &compressor{}
	var err1, err2 error
	c.gz, err1 = gzip.NewWriterLevel(&c.out, 6)
	c.br, err2 = brotli.NewWriterOptions(&c.out, 5, brotli.WriterOptions{LGWin: 18})
	if err1 != nil || err2 != nil {
		panic(fmt.Sprintf("BUG: compressors of no level: %v, %v", err1, err2))
	}
	return c
}

func (c *compressor) gzip(body []byte) []byte {
	c.out.Reset()
	c.gz.Reset(&c.out)
	c.gz.Write(body) // into memory: never fails
	c.gz.Close()
	return bytes.Clone(c.out.Bytes())
}

func (c *compressor) brotli(body []byte) []byte {
	c.out.Reset()
	c.br.Reset(&c.out)
	c.br.Write(body)
	c.br.Close()
	return bytes.Clone(c.out.Bytes())
}

package pagecache

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	brotli "github.com/molecule-man/go-brrr"
)

func fields(values ...string) [][]byte {
	var all [][]byte
	for _, v := range values {
		all = append(all, []byte(v))
	}
	return all
}

func TestChoose(t *testing.T) {
	large := NewPage(200, "text/plain", `"e"`, bytes.Repeat([]byte("a page that compresses well "), 100))
	small := NewPage(200, "text/plain", `"e"`, []byte("x"))
	if n := len(large.Body(Brotli)); n >= len(large.Body(Gzip)) || len(large.Body(Gzip)) >= len(large.Body(Identity)) {
		t.Fatalf("brotli %d, gzip %d, as it is %d", n, len(large.Body(Gzip)), len(large.Body(Identity)))
	}
	const none = Coding(-1)
	for _, c := range []struct {
		fields       [][]byte
		large, small Coding
	}{
		{nil, Identity, Identity},
		{fields(""), Identity, Identity},
		{fields("gzip"), Gzip, Identity}, {fields("br"), Brotli, Identity}, {fields("deflate, zstd"), Identity, Identity},
		{fields("gzip, deflate, br, zstd"), Brotli, Identity}, {fields("GZip"), Gzip, Identity}, {fields("x-gzip"), Gzip, Identity},
		{fields("gzip", "br"), Brotli, Identity}, // two fields
		{fields("gzip;q=1.0, br;q=0.9"), Gzip, Identity}, {fields("gzip;q=0.001"), Gzip, Identity},
		{fields("gzip;q=0"), Identity, Identity}, {fields("gzip;q=0, br"), Brotli, Identity}, {fields("gzip;q=0.000,br;q=0.0"), Identity, Identity},
		{fields("*"), Brotli, Identity}, {fields("*, br;q=0"), Gzip, Identity}, {fields("*;q=0"), none, none}, {fields("*;q=0, gzip"), Gzip, Gzip},
		{fields("identity"), Identity, Identity}, {fields("identity;q=0.5, gzip;q=1"), Gzip, Gzip}, {fields("identity;q=1, gzip;q=0.5"), Identity, Identity},
		{fields("identity;q=0"), none, none}, {fields("identity;q=0, gzip"), Gzip, Gzip}, {fields("identity;q=0, *"), Brotli, Gzip}, {fields("identity;q=0, br"), Brotli, none}, {fields("identity, *;q=0"), Identity, Identity},
		{fields("gzip ; q=0.5 , br ; Q=0.4"), Gzip, Identity},
		{fields("gzip;q=2"), Identity, Identity}, {fields("gzip;q=1.5"), Identity, Identity}, {fields("gzip;q=-1"), Identity, Identity}, {fields("gzip;q="), Identity, Identity},
		{fields("gzip;q=0.5555"), Identity, Identity}, {fields("gzip;level=9"), Identity, Identity}, {fields(",,;,;q=1,gzip"), Gzip, Identity},
	} {
		for p, want := range map[*Page]Coding{large: c.large, small: c.small} {
			got, ok := p.Choose(c.fields)
			if ok != (want != none) || ok && got != want {
				t.Errorf("%q, %d bytes: got %d %q, %v; want %d", c.fields, len(p.Body(Identity)), got, got, ok, want)
			}
		}
	}
	refused := NewPage(404, "text/plain", "", []byte("no"))
	if got, ok := refused.Choose(fields("gzip, br")); got != Identity || !ok || refused.Body(Gzip) != nil {
		t.Errorf("a page that is not kept is compressed: %v %v", got, ok)
	}
	if large.ETag != `W/"e"` || NewPage(200, "", "", nil).ETag != "" {
		t.Errorf("got ETag %s: one tag of three codings must be weak", large.ETag)
	}
}

// What is unpacked is the page, also when many are made at once.
func TestCodingsHoldThePage(t *testing.T) {
	unpack := map[Coding]func(io.Reader) (io.Reader, error){
		Gzip:   func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		Brotli: func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil },
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for _, size := range []int{0, 1, 100, 10_000} {
				body := strings.Repeat(fmt.Sprint("page ", i), size)
				p := NewPage(200, "text/plain", "", []byte(body))
				for c, open := range unpack {
					if c == Brotli && len(body) < brotliFrom {
						continue
					}
					r, err := open(bytes.NewReader(p.Body(c)))
					if err != nil {
						t.Error(err)
						continue
					}
					if got, err := io.ReadAll(r); string(got) != body || err != nil {
						t.Errorf("%v: %d bytes became %d, %v", c, len(body), len(got), err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func FuzzChoose(f *testing.F) {
	f.Add([]byte("gzip;q=0.5, *;q=0"))
	p := NewPage(200, "text/plain", "", bytes.Repeat([]byte("x"), 1000))
	f.Fuzz(func(t *testing.T, field []byte) {
		if c, ok := p.Choose([][]byte{field}); ok && p.Body(c) == nil {
			t.Errorf("%q: chose %v, which there is not", field, c)
		}
	})
}

func BenchmarkNewPage(b *testing.B) {
	var list strings.Builder
	for i := range 100 {
		fmt.Fprintf(&list, `{"id":%d,"kind":"goods","title":"Item %d","price":%d,"currency":"EUR","starts_at":"2026-01-01T00:00:00.000Z","state":"open","per_user_limit":1},`, i, i*7919%1000, i*31)
	}
	for name, body := range map[string]string{"one sale": list.String()[:150], "a hundred": list.String()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewPage(200, "application/json", "", []byte(body))
			}
		})
	}
}

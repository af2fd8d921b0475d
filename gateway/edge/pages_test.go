package edge

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/pagecache"
	"floodgate.internal/shared/clock"
)

// BenchmarkPageHit is one read of a page that is kept, without the network.
func BenchmarkPageHit(b *testing.B) {
	reg := prometheus.NewRegistry()
	rule := pagecache.Rule{TTL: time.Hour}
	s := New(Config{Clock: &clock.Clock{}, Cache: pagecache.New(1<<20, reg), Log: slog.New(slog.DiscardHandler)}, Settings{Pages: rule}, reg)
	page := pagecache.NewPage(200, "application/json", `"e"`, bytes.Repeat([]byte("a page of 4 KB. "), 256))
	if _, _, err := s.Cache.Get("/v1/sales", rule, time.Now(), 0, func() (*pagecache.Page, error) { return page, nil }); err != nil {
		b.Fatal(err)
	}
	for name, headers := range map[string][2]string{"identity": {}, "gzip": {"Accept-Encoding", "gzip, deflate, br;q=0.5"}, "not modified": {"If-None-Match", `"x", W/"e"`}} {
		b.Run(name, func(b *testing.B) {
			var ctx fasthttp.RequestCtx
			ctx.Init(&fasthttp.Request{}, nil, nil)
			ctx.Request.Header.SetRequestURI("/v1/sales")
			if headers[0] != "" {
				ctx.Request.Header.Set(headers[0], headers[1])
			}
			x := s.begin(&ctx)
			x.path = []byte("/v1/sales")
			b.ReportAllocs()
			for b.Loop() {
				ctx.Response.Reset()
				x.cached()
			}
			if name == "gzip" && string(ctx.Response.Header.ContentEncoding()) != "gzip" || string(ctx.Response.Header.Peek("X-Cache")) != "HIT" {
				b.Fatalf("got %s", &ctx.Response.Header)
			}
		})
	}
}

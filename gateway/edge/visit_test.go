package edge

import (
	"bufio"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/tlscert"
	"floodgate.internal/gateway/tlscert/certtest"
)

// BenchmarkVisit is a whole visit: connect, a handshake where there is one, three presses that are refused as sold out, gone. It
// counts the processor time of both sides, which are in this process.
func BenchmarkVisit(b *testing.B) {
	s, tokens := refusing(b)
	for id := range int64(10) {
		s.Gate.Probe(s.Gate.Order(id, time.Now()), time.Now())
	}
	cert := certtest.New(b, 24*time.Hour, "shop.example")
	certificate, key := cert.Write(b, b.TempDir(), "shop")
	files := tlscert.Files{Certificates: []tlscert.Pair{{Certificate: certificate, Key: key}}, MinVersion: "1.2"}
	material, errs := files.Read(time.Now())
	if errs != nil {
		b.Fatal(errs)
	}
	store := tlscert.NewStore(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	store.Set(files, material)
	roots := certtest.Pool(cert)
	press := "POST /v1/sales/2/orders HTTP/1.1\r\nHost: shop.example\r\nAuthorization: Bearer " + tokens["7"] + "\r\nContent-Length: 0\r\n\r\n"
	for _, c := range []struct {
		name    string
		secure  bool
		tickets tls.ClientSessionCache
	}{{"plain", false, nil}, {"TLS-full", true, nil}, {"TLS-resumed", true, tls.NewLRUClientSessionCache(1)}} {
		b.Run(c.name, func(b *testing.B) {
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			l := NewListener(inner, s, Bounds{Max: 1000, PerAddress: 1000}, prometheus.NewRegistry())
			if c.secure {
				l.SetTransport(Transport{TLS: store.Config(), MaxHandshakes: 64})
			}
			server := s.HTTPServer()
			done := make(chan error, 1)
			go func() { done <- server.Serve(l) }()
			defer func() { l.CloseAll(); server.Shutdown(); <-done }()
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				conn, err := net.Dial("tcp", inner.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				if c.secure {
					conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "shop.example", ClientSessionCache: c.tickets})
				}
				r := bufio.NewReader(conn)
				var resp fasthttp.Response
				for range 3 {
					if _, err := io.WriteString(conn, press); err != nil {
						b.Fatal(err)
					}
					if err := resp.Read(r); err != nil || resp.StatusCode() != 403 {
						b.Fatal(resp.StatusCode(), err)
					}
				}
				conn.Close()
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/visit")
		})
	}
}

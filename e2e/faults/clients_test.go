//go:build servers

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/world"
)

// perAddress is how many connections one address may have in the world of rude clients.
const perAddress = 400

// clientFaults are clients who take what they can get and give nothing, all from one address, while others buy.
func clientFaults(t *testing.T, g *ground) {
	w := g.system(t, options{extra: fmt.Sprintf("server: {read_timeout: 1s, max_connections_per_ip: %d}\n", perAddress)})
	w.group(t, partClients,
		disorder{
			what: "clients: 1,000 idle connections", injected: "each opened, and opened again when it is closed",
			strike: func(s *trial) {
				s.rude(1000, func(ctx context.Context, c net.Conn) error {
					_, err := io.Copy(io.Discard, c) // until it is closed
					return err
				})
			},
			heal: (*trial).alone,
		},
		disorder{
			what: "clients: slow headers", injected: "300 at once, a byte each 50 ms",
			strike: func(s *trial) {
				s.rude(300, func(ctx context.Context, c net.Conn) error {
					return trickle(ctx, c, fmt.Sprintf("POST /v1/sales/%d/orders HTTP/1.1\r\nHost: shop\r\nX-Slow: ", s.sale))
				})
			},
			heal: (*trial).alone,
		},
		disorder{
			what: "clients: slow bodies", injected: "300 at once, a byte each 50 ms",
			strike: func(s *trial) {
				_, tokens, err := w.mint(1)
				world.Must(s.T, err)
				head := request(s.sale, tokens[0], "slow", 60000)
				s.rude(300, func(ctx context.Context, c net.Conn) error { return trickle(ctx, c, head) })
			},
			heal: (*trial).alone,
		},
		disorder{
			what: "clients: gone before the answer", injected: "500 send an order and close, or reset, the connection at once", times: 500,
			strike: gone,
			heal:   (*trial).alone,
		},
		disorder{
			what: "clients: every request repeated", injected: "at the same time, with the same key and without", twice: true,
			strike: func(s *trial) { s.more(200) },
			heal:   func(*trial) {},
		},
	)
	w.drained(t)
}

// request is the head of an order, up to its body of so many bytes.
func request(sale int64, token, key string, body int) string {
	return fmt.Sprintf("POST /v1/sales/%d/orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer %s\r\nIdempotency-Key: %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", sale, token, key, body)
}

// trickle sends a text and then a byte now and then, until the other side has enough.
func trickle(ctx context.Context, c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
	}
}

// rudely connects to the gateway from another address than the shoppers'.
func (s *trial) rudely() (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: patience}
	return d.Dial("tcp", strings.TrimPrefix(s.w.Ports.PublicURL(), "http://"))
}

// rude lets n clients do so, each again and again, until others have bought 100 and every one of them was closed by the
// gateway at least once. The connections and the memory of the gateway must stay within their bounds meanwhile.
func (s *trial) rude(n int, do func(context.Context, net.Conn) error) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	var closed atomic.Int64
	for range n {
		clients.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				c, err := s.rudely()
				if err != nil {
					s.Errorf("connect: %v", err)
					return
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				_ = do(ctx, c) // however it ends
				if stop() && first {
					closed.Add(1)
				}
				c.Close()
			}
		})
	}
	target := s.log.Promised() + 100
	s.until("others buy, and the rude are shown the door", func(context.Context) error {
		s.bounded()
		if p, c := s.log.Promised(), closed.Load(); p < target || c < int64(n) {
			return fmt.Errorf("%d orders are still to be promised, %d of %d clients were closed", target-p, c, n)
		}
		return nil
	})
}

// bounded holds what the gateway says of itself against its bounds.
func (s *trial) bounded() {
	s.Helper()
	const others = 200 // the shoppers' connections, at most
	const memory = 512 << 20
	if n := s.w.Metric(s.T, s.w.Ports.OpsURL(), "gateway_connections"); n > perAddress+others {
		s.Errorf("the gateway has %.0f connections, want at most %d of the rude and some of others", n, perAddress)
	}
	if n := s.w.Metric(s.T, s.w.Ports.OpsURL(), "process_resident_memory_bytes"); n > memory {
		s.Errorf("the gateway has %.0f bytes of memory, want at most %d", n, memory)
	}
}

// alone waits until the gateway has forgotten the rude.
func (s *trial) alone() {
	s.Helper()
	s.until("only the shoppers are connected", func(context.Context) error {
		if n := s.w.Metric(s.T, s.w.Ports.OpsURL(), "gateway_connections"); n > 100 {
			return fmt.Errorf("%.0f connections", n)
		}
		return nil
	})
}

// gone sends orders whose buyers do not wait for the answer: what becomes of them nobody was told, and they are the buyers'
// all the same.
func gone(s *trial) {
	const n = 500
	first, tokens, err := s.w.mint(n)
	world.Must(s.T, err)
	const body = `{"quantity":1}`
	for i, token := range tokens {
		uid, key := strconv.Itoa(first+i), "gone-"+strconv.Itoa(first+i)
		s.log.Add(oracle.Answer{UID: uid, Key: key}) // before it is sent: it may have an order
		c, err := s.rudely()
		world.Must(s.T, err)
		_, err = io.WriteString(c, request(s.sale, token, key, len(body))+body)
		world.Must(s.T, err)
		if i%2 == 0 {
			world.Must(s.T, c.(*net.TCPConn).SetLinger(0))
		}
		world.Must(s.T, c.Close())
	}
	s.until("some of them have an order", func(ctx context.Context) error {
		var rows int
		err := s.w.Books.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE sale_id = ? AND idem_key LIKE 'gone-%'", s.sale).Scan(&rows)
		if err == nil && rows == 0 {
			err = errors.New("none has")
		}
		return err
	})
}

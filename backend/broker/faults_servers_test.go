//go:build servers

package broker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/netfault"
)

// proxy is a link to the real broker that can also drop frames, or add some, on their way to us.
type proxy struct {
	*netfault.Link
	t *testing.T

	mu      sync.Mutex // guards what follows
	drop    func(class, method uint16) bool
	clients []*frames
	changed chan struct{} // closed, and made anew, when a frame was dropped
	dropped int
}

func newProxy(t *testing.T, target string) (w *proxy, through string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	w = &proxy{Link: netfault.New(t, u.Host), t: t, changed: make(chan struct{})}
	w.Wrap(func(client io.Writer) io.Writer {
		f := &frames{proxy: w, client: client, mute: map[uint16]bool{}}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.clients = append(w.clients, f)
		return f
	})
	u.Host = w.Addr()
	return w, u.String()
}

// frames passes on what the broker sends to one client, a whole frame at a time: type, channel, size, payload, end mark.
type frames struct {
	proxy  *proxy
	mu     sync.Mutex // guards what follows
	client io.Writer
	rest   []byte          // the begin of a frame
	mute   map[uint16]bool // channels of which what follows a dropped method is dropped, too
}

func (f *frames) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.rest = append(f.rest, b...); len(f.rest) >= 7; {
		size := 8 + int(binary.BigEndian.Uint32(f.rest[3:]))
		if len(f.rest) < size {
			break
		}
		frame := f.rest[:size]
		f.rest = f.rest[size:]
		channel := binary.BigEndian.Uint16(frame[1:])
		if frame[0] == 1 {
			f.mute[channel] = f.proxy.drops(binary.BigEndian.Uint16(frame[7:]), binary.BigEndian.Uint16(frame[9:]))
		}
		if f.mute[channel] {
			continue
		}
		if _, err := f.client.Write(frame); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func (w *proxy) drops(class, method uint16) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drop == nil || !w.drop(class, method) {
		return false
	}
	w.dropped++
	close(w.changed)
	w.changed = make(chan struct{})
	return true
}

// confirms are dropped, or pass.
func (w *proxy) confirms(pass bool) { w.pass(80, pass) }

// deliveries are dropped, or pass.
func (w *proxy) deliveries(pass bool) { w.pass(60, pass) }

func (w *proxy) pass(method uint16, pass bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop = func(class, m uint16) bool { return !pass && class == 60 && m == method }
}

// untilDropped waits until more than n frames were.
func (w *proxy) untilDropped(n int) {
	w.t.Helper()
	for {
		w.mu.Lock()
		dropped, changed := w.dropped, w.changed
		w.mu.Unlock()
		if dropped > n {
			return
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Minute):
			w.t.Fatal("no frame was dropped")
		}
	}
}

// inject sends a method frame without arguments, or with one short string, on channel 0 of every connection.
func (w *proxy) inject(class, method uint16, args ...byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	payload := append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), method), args...)
	frame := append(binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload))), append(payload, 0xCE)...)
	for _, f := range w.clients {
		f.mu.Lock()
		_, err := f.client.Write(frame)
		f.mu.Unlock()
		if err != nil && !errors.Is(err, net.ErrClosed) {
			w.t.Error(err)
		}
	}
}

// eventually waits until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestALostConfirmIsNotPublished(t *testing.T) {
	w, url := newProxy(t, backendtest.AMQP(t))
	b := openWith(t, broker.Config{URL: url, Partitions: 1, ConfirmTimeout: 3 * time.Second})
	eventually(t, "healthy", func() bool { return b.Healthy() == nil })
	publish(t, b, orders(1, 1))
	w.confirms(false)
	if err := b.Publish(t.Context(), orders(1, 5)); !errors.Is(err, broker.ErrUnconfirmed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v at its time-out", err, broker.ErrUnconfirmed)
	}
	w.confirms(true)
	eventually(t, "healthy", func() bool { return b.Healthy() == nil })
	publish(t, b, orders(1, 5)) // the later ones are not taken for the earlier ones
}

// What refuses one order may refuse all, for as long as its connection lives, and another connection none.
func TestAConnectionThatRefusesIsReplaced(t *testing.T) {
	u := backendtest.AMQP(t)
	vhost := u[strings.LastIndex(u, "/"):]
	reg := prometheus.NewRegistry()
	b, err := broker.Open(broker.Config{URL: u, Partitions: 1, Log: backendtest.Log(t), Register: reg})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	publish(t, b, orders(1, 1))
	policy := func(method, body string) {
		t.Helper()
		if err := backendtest.Management(t.Context(), t, method, "/policies"+vhost+"/full", body); err != nil {
			t.Fatal(err)
		}
	}
	policy(http.MethodPut, `{"pattern": "^fg.orders.0$", "definition": {"max-length": 1}, "apply-to": "queues"}`)
	eventually(t, "an order is refused", func() bool {
		err := b.Publish(t.Context(), orders(1, 1))
		return errors.Is(err, broker.ErrUnconfirmed) && strings.Contains(err.Error(), "negative")
	})
	eventually(t, "another connection", func() bool {
		var opened float64
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "backend_broker_connects_total" {
				for _, m := range f.Metric { // labels are sorted: result, role
					if m.Label[0].GetValue() == "ok" && m.Label[1].GetValue() == "publish" {
						opened = m.GetCounter().GetValue()
					}
				}
			}
		}
		return opened >= 2 && b.Healthy() == nil
	})
	policy(http.MethodDelete, "")
	eventually(t, "an order is taken", func() bool { return b.Publish(t.Context(), orders(1, 1)) == nil })
}

func TestABlockedBrokerFailsAtOnce(t *testing.T) {
	w, url := newProxy(t, backendtest.AMQP(t))
	b := openWith(t, broker.Config{URL: url, Partitions: 1, ConfirmTimeout: time.Hour})
	publish(t, b, orders(1, 1))
	w.confirms(false)
	waiting := make(chan error, 1)
	go func() { waiting <- b.Publish(t.Context(), orders(1, 1)) }()
	w.untilDropped(0)
	w.inject(10, 60, append([]byte{3}, "low"...)...) // connection.blocked
	if err := <-waiting; !errors.Is(err, broker.ErrBlocked) {
		t.Errorf("one that waited for its confirm: got %v, want %v", err, broker.ErrBlocked)
	}
	if err := b.Publish(t.Context(), orders(1, 1)); !errors.Is(err, broker.ErrBlocked) {
		t.Errorf("one that came later: got %v, want %v", err, broker.ErrBlocked)
	}
	if err := b.Healthy(); !errors.Is(err, broker.ErrBlocked) {
		t.Errorf("healthy: got %v, want %v", err, broker.ErrBlocked)
	}
	w.confirms(true)
	w.inject(10, 61) // connection.unblocked
	eventually(t, "healthy", func() bool { return b.Healthy() == nil })
	publish(t, b, orders(1, 1))
}

func TestWithoutAConnectionPublishingFailsAtOnce(t *testing.T) {
	w, url := newProxy(t, backendtest.AMQP(t))
	b := openWith(t, broker.Config{URL: url, Partitions: 1, ConfirmTimeout: time.Hour})
	publish(t, b, orders(1, 1))
	w.confirms(false)
	waiting := make(chan error, 1)
	go func() { waiting <- b.Publish(t.Context(), orders(1, 3)) }()
	w.untilDropped(0)
	w.Refuse()
	w.Cut()
	if err := <-waiting; !errors.Is(err, broker.ErrUnconfirmed) {
		t.Errorf("one that waited for its confirm: got %v, want %v", err, broker.ErrUnconfirmed)
	}
	eventually(t, "it is known to be down", func() bool { return errors.Is(b.Healthy(), broker.ErrDown) })
	if err := b.Publish(t.Context(), orders(1, 1)); !errors.Is(err, broker.ErrDown) {
		t.Errorf("one that came later: got %v, want %v", err, broker.ErrDown)
	}
	w.confirms(true)
	w.Heal()
	eventually(t, "healthy", func() bool { return b.Healthy() == nil })
	publish(t, b, orders(1, 1))
}

func TestALostConnectionLosesNoOrder(t *testing.T) {
	target := backendtest.AMQP(t)
	w, url := newProxy(t, target)
	direct, b := open(t, target, 2), openWith(t, broker.Config{URL: url, Partitions: 2})
	bk := newBook()
	blocked := make(chan struct{}, 1)
	proceed := make(chan struct{})
	consume(t, b, 50, func(ctx context.Context, es []queued.Entry) error {
		if es[0].Sale == 2 {
			select {
			case blocked <- struct{}{}:
			default:
			}
			<-proceed
		}
		return bk.settle(ctx, es)
	}, bk.settled)
	publish(t, direct, orders(2, 300))
	<-blocked // a batch is in hand, more is prefetched
	passed := make(chan error, 1)
	go func() { passed <- b.Fence(t.Context(), 2) }() // over the connections that are cut
	w.Cut()
	close(proceed)
	for range 5 {
		publish(t, direct, orders(1, 200))
		w.Cut()
	}
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	fence(t, direct, 1)
	fence(t, direct, 2)
	bk.mu.Lock()
	defer bk.mu.Unlock()
	seen := map[string]int{}
	for _, e := range bk.retired {
		seen[e.ID]++
	}
	if len(seen) != 1300 {
		t.Errorf("%d different orders were settled, want 1300", len(seen))
	}
	for _, q := range []int{0, 1} {
		eventually(t, "nothing is left in "+broker.QueueName(q), func() bool { return ready(t, channel(t, target), broker.QueueName(q)) == 0 })
	}
}

// Two consumers are lost one after the other, the first with all of the queue, the second with its first two orders: these
// come back behind the fence that followed them. So does the fourth order, when the third one's consumer changes its pace.
func TestAFenceThatCameBackHasPassedNothing(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	es := orders(1, 4)
	publishApart(t, b, es)
	passed := make(chan error, 1)
	go func() { passed <- b.Fence(t.Context(), 1) }()
	watch := channel(t, url)
	eventually(t, "four orders and a fence are queued", func() bool { return ready(t, watch, broker.QueueName(0)) >= 5 })
	for _, held := range []int{1000, 2} {
		lost := channel(t, url)
		if err := lost.Qos(held, 0, false); err != nil {
			t.Fatal(err)
		}
		ds, err := lost.Consume(broker.QueueName(0), "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range min(held, 5) {
			<-ds
		}
		if err := lost.Close(); err != nil {
			t.Fatal(err)
		}
	}
	bk := newBook()
	var early error
	consume(t, b, 1, func(ctx context.Context, got []queued.Entry) error {
		if got[0].ID == es[0].ID { // held until the fence has passed, or is queued again
			eventually(t, "the fence's verdict", func() bool {
				select {
				case err := <-passed:
					early = fmt.Errorf("the fence passed (%v) while an order ahead of it was held", err)
					passed <- err
					return true
				default:
					return ready(t, watch, broker.QueueName(0)) == 2 // with an order that is not handed over yet
				}
			})
		}
		return bk.settle(ctx, got)
	}, bk.settled)
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	bk.mu.Lock()
	defer bk.mu.Unlock()
	if early != nil {
		t.Error(early)
	}
	if len(bk.retired) != len(es) {
		t.Errorf("when the fence passed %d orders were retired, want %d", len(bk.retired), len(es))
	}
	if got, want := ids(bk.seen), []string{es[2].ID, es[0].ID, es[1].ID, es[3].ID}; !slices.Equal(got, want) {
		t.Errorf("settled %v, want %v: the queue no longer reorders, and this test shows nothing", got, want)
	}
}

// A broker may lose a delivery when a queue's leader dies, and waits for its acknowledgement for ever.
func TestALostDeliveryDoesNotStopAConsumer(t *testing.T) {
	w, url := newProxy(t, backendtest.AMQP(t))
	b := openWith(t, broker.Config{URL: url, Partitions: 1, StallAfter: 500 * time.Millisecond})
	eventually(t, "healthy", func() bool { return b.Healthy() == nil })
	w.deliveries(false)
	k := newBook()
	consume(t, b, 10, k.settle, k.settled)
	all := orders(1, 5)
	publishApart(t, b, all) // the first is lost, the others wait
	w.untilDropped(0)
	w.deliveries(true)
	k.until(t, "all settled", func() bool { return len(k.retired) >= len(all) })
	for _, id := range ids(all) {
		if !slices.Contains(ids(k.retired), id) {
			t.Errorf("%s was not settled", id)
		}
	}
}

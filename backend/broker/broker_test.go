package broker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/wire"
)

func TestOpenNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{URL: "http://x", Partitions: 1}, "queue.url"},
		{Config{URL: "amqp://127.0.0.1:1/", Partitions: 0}, "queue.partitions: 0"},
		{Config{URL: "amqp://127.0.0.1:1/", Partitions: 1, ManagementURL: "nowhere"}, "queue.management_url"},
	} {
		c.cfg.Log, c.cfg.Register = slog.New(slog.DiscardHandler), prometheus.NewRegistry()
		b, err := Open(c.cfg)
		if err == nil {
			_ = b.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %s...", c.cfg, err, c.want)
		}
	}
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	one := queued.Entry{ID: wire.NewOrderID(uuid.NewString(), 9), Sale: 9, UID: "a.b-c", Quantity: 3, Slots: "1,2,3", Key: "k", Epoch: 4, At: 5, Trace: "00-t", Entry: "1-1"}
	other := queued.Entry{ID: wire.NewOrderID(uuid.NewString(), 9), Sale: 9, UID: "b", Quantity: 1, Slots: "1", Epoch: 5, At: 6, Entry: "1-2"}
	for _, es := range [][]queued.Entry{{one}, {one, other}} {
		p := encode(es, 77)
		if p.DeliveryMode != amqp.Persistent || p.CorrelationId != "77" || p.MessageId != one.ID {
			t.Errorf("got %+v", p)
		}
		d := amqp.Delivery{Type: p.Type, Headers: p.Headers, Body: p.Body}
		if got, err := decode(d); err != nil || !slices.Equal(got, es) {
			t.Errorf("got %+v, %v; want %+v", got, err, es)
		}
		d.Type = "other"
		if got, err := decode(d); err == nil || errors.Is(err, errNewer) {
			t.Errorf("a message of another type was taken for %v, %v", got, err)
		}
	}
	if p := encode([]queued.Entry{one}, 1); p.Headers["traceparent"] != "00-t" {
		t.Errorf("the trace of a single order: got %v", p.Headers)
	}
}

func TestOrdersOfASaleShareAMessage(t *testing.T) {
	var all []queued.Entry
	for i := range 2*perMessage + 1 { // of two sales, in turns, and one of a third
		all = append(all, queued.Entry{ID: strconv.Itoa(i), Sale: int64(i%2 + 1)})
	}
	all = append(all, queued.Entry{ID: "last", Sale: 3})
	var sizes []int
	got := map[int64][]queued.Entry{}
	for _, m := range together(all) {
		sizes = append(sizes, len(m))
		for _, e := range m {
			if e.Sale != m[0].Sale {
				t.Errorf("an order of sale %d is in a message of sale %d", e.Sale, m[0].Sale)
			}
			got[e.Sale] = append(got[e.Sale], e)
		}
	}
	if want := []int{perMessage, perMessage, 1, 1}; !slices.Equal(sizes, want) {
		t.Errorf("messages of %v orders, want %v", sizes, want)
	}
	for sale, es := range got {
		if want := slices.DeleteFunc(slices.Clone(all), func(e queued.Entry) bool { return e.Sale != sale }); !slices.Equal(es, want) {
			t.Errorf("sale %d: got %v, want %v", sale, es, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	const order = `{"id":"0190163d-8694-739b-aea5-966c26f8ad91-42","sale":42,"uid":"a","quantity":1}`
	f.Add(typeOrder, []byte(order))
	f.Add(typeOrder, []byte(`{"id":"","sale":-1}`))
	f.Add(typeOrders, []byte("["+order+","+order+"]"))
	f.Add(typeOrders, []byte(`[]`))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		es, err := decode(amqp.Delivery{Type: kind, Body: body})
		if err != nil {
			return
		}
		if len(es) == 0 {
			t.Errorf("%q was taken for no orders at all", body)
		}
		for _, e := range es {
			if sale, ok := wire.SaleOfOrder(e.ID); !ok || sale != e.Sale || !wire.ValidUID(e.UID) || e.Quantity < 1 {
				t.Errorf("%q was taken for %+v", body, e)
			}
		}
	})
}

func TestASettleUnderWayOutlivesItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		ctx, release := lasting(parent)
		defer release()
		cancel()
		time.Sleep(drainGrace - time.Millisecond)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("it ended before its grace was over")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("it outlived its grace")
		}
	})
}

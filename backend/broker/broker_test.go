package broker

import (
	"context"
	"log/slog"
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
	e := queued.Entry{ID: wire.NewOrderID(uuid.NewString(), 9), Sale: 9, UID: "a.b-c", Quantity: 3, Slots: "1,2,3", Key: "k", Epoch: 4, At: 5, Trace: "00-t", Entry: "1-1"}
	p := encode(e, 77)
	if p.DeliveryMode != amqp.Persistent || p.CorrelationId != "77" || p.MessageId != e.ID || p.Headers["traceparent"] != "00-t" {
		t.Errorf("got %+v", p)
	}
	got, err := decode(amqp.Delivery{Type: p.Type, Body: p.Body})
	if err != nil || got != e {
		t.Errorf("got %+v, %v; want %+v", got, err, e)
	}
	if _, err := decode(amqp.Delivery{Type: "other", Body: p.Body}); err == nil {
		t.Error("a message of another type was taken for an order")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"id":"0190163d-8694-739b-aea5-966c26f8ad91-42","sale":42,"uid":"a","quantity":1}`))
	f.Add([]byte(`{"id":"","sale":-1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := decode(amqp.Delivery{Type: typeOrder, Body: body})
		if err != nil {
			return
		}
		if sale, ok := wire.SaleOfOrder(e.ID); !ok || sale != e.Sale || !wire.ValidUID(e.UID) || e.Quantity < 1 {
			t.Errorf("%q was taken for %+v", body, e)
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

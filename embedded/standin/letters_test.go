package standin

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/clock"
)

// noOrders is called for what is an order; these letters are none.
type noOrders struct{ t *testing.T }

func (n noOrders) Reject(context.Context, queued.Entry, string) error {
	n.t.Error("Reject was called")
	return nil
}

func (n noOrders) Settle(context.Context, []queued.Entry) error {
	n.t.Error("Settle was called")
	return nil
}

func (n noOrders) Retire(context.Context, []queued.Entry) error {
	n.t.Error("Retire was called")
	return nil
}

// The stand-in keeps dead letters as the real server does.
func TestDeadLettersAreKept(t *testing.T) {
	_, db := openMySQL(t, 1)
	box := deadletter.NewStore(deadletter.Config{DB: db, Orders: noOrders{t}, Clock: new(clock.Clock), Log: slog.New(slog.DiscardHandler), Register: prometheus.NewRegistry()})
	for range 2 {
		if err := box.Take(t.Context(), queued.DeadMessage{Queue: "outbox", Reason: "it is none", Payload: []byte("\xff\x00"), Deliveries: 1}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := box.List(t.Context(), 1<<62, 10, true)
	if err != nil || len(list) != 1 || list[0].Times != 2 || list[0].Encoding != "base64" || list[0].Payload != "/wA=" || list[0].Status != "" {
		t.Fatalf("got %+v, %v; want the one, dead twice", list, err)
	}
	if r, err := box.Replay(t.Context(), list[0].ID); err != nil || r.Result != deadletter.Unreadable {
		t.Errorf("got %+v, %v", r, err)
	}
	if n, err := box.Open(t.Context()); err != nil || n != 1 {
		t.Errorf("got %d letters, %v; want 1", n, err)
	}
}

package live

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// begin runs a hub whose samples are 1, 2, 3 and so on, in a bubble.
func begin(t *testing.T) (h *Hub[int, int], stop func()) {
	n := 0
	h = New(func(context.Context) (int, int) { n++; return n, n })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	synctest.Wait()
	return h, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := begin(t)
		defer stop()
		time.Sleep(time.Duration(Points+9)*HistoryEvery + time.Millisecond)
		history, last, l, err := h.Listen()
		if err != nil || len(history) != Points || history[0] != 11 || *last != Points+10 {
			t.Fatalf("got %d points from %d, last %d, %v", len(history), history[0], *last, err)
		}
		// Somebody listens: there are four times as many samples, and as many points as before.
		for want := Points + 11; want < Points+15; want++ {
			if got := <-l.Samples; got != want {
				t.Errorf("got sample %d, want %d", got, want)
			}
		}
		h.Leave(l)
		h.Leave(l)
		again, _, l, _ := h.Listen()
		h.Leave(l)
		if len(again) != Points || again[0] != 12 || history[0] != 11 {
			t.Errorf("got %d points from %d; what was handed out begins with %d", len(again), again[0], history[0])
		}
	})
}

func TestListenersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := begin(t)
		var all []*Listener[int]
		for range MaxListeners {
			_, _, l, err := h.Listen()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		if _, _, _, err := h.Listen(); !errors.Is(err, ErrFull) {
			t.Errorf("one more: got %v, want ErrFull", err)
		}
		// One that takes nothing is dropped, and makes room; the others go on.
		for range buffered + 1 {
			time.Sleep(Every)
			synctest.Wait()
			for _, l := range all[1:] {
				<-l.Samples
			}
		}
		n := 0
		for range all[0].Samples {
			n++
		}
		if n != buffered {
			t.Errorf("the slow one got %d samples, want %d", n, buffered)
		}
		if _, _, _, err := h.Listen(); err != nil {
			t.Errorf("there is room again: got %v", err)
		}
		stop()
		if _, ok := <-all[1].Samples; ok {
			t.Error("the hub has ended, and a listener is not told")
		}
		h.Leave(all[1])
		if _, _, _, err := h.Listen(); !errors.Is(err, ErrEnded) {
			t.Errorf("got %v, want ErrEnded", err)
		}
	})
}

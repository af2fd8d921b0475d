package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPausesGrowUpToTheBound(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Most: 3 * time.Second}
	for range 2 {
		for i, most := range []time.Duration{100, 200, 400, 800, 1600, 3000, 3000} {
			most *= time.Millisecond
			if got := b.Next(); got < most/2 || got > most {
				t.Errorf("pause %d: got %v, want %v to %v", i, got, most/2, most)
			}
		}
		b.Reset()
	}
}

func TestAWaitEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{First: time.Minute, Most: time.Minute}
		began := time.Now()
		early := make(chan struct{})
		close(early)
		b.Wait(t.Context(), early)
		ended, end := context.WithCancel(t.Context())
		end()
		b.Wait(ended, nil)
		if d := time.Since(began); d != 0 {
			t.Errorf("it waited for %v", d)
		}
		b.Wait(t.Context(), nil)
		if d := time.Since(began); d < 30*time.Second || d > time.Minute {
			t.Errorf("it waited for %v", d)
		}
	})
}

package backend

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTierEndsItsPartsAndSaysWhatTheySaid(t *testing.T) {
	broke := errors.New("it broke")
	for name, c := range map[string]struct {
		part  func(context.Context) error
		cause error  // of the process's end, before the stage is ended
		end   string // what end says
	}{
		"runs until it is told":    {func(ctx context.Context) error { <-ctx.Done(); return nil }, nil, ""},
		"fails at its end":         {func(ctx context.Context) error { <-ctx.Done(); return broke }, nil, "part: it broke"},
		"fails by itself":          {func(context.Context) error { return broke }, broke, ""},
		"ends by itself":           {func(context.Context) error { return nil }, context.Canceled, ""},
		"does not end when told":   {func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Minute); return nil }, nil, "there still runs: part"},
		"takes its time, but ends": {func(ctx context.Context) error { <-ctx.Done(); time.Sleep(9 * time.Second); return nil }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, fail := context.WithCancelCause(context.Background())
				stage := newStage(ctx, fail)
				stage.start("part", c.part)
				synctest.Wait()
				if got := context.Cause(ctx); !errors.Is(got, c.cause) || (got == nil) != (c.cause == nil) {
					t.Errorf("got cause %v, want %v", got, c.cause)
				}
				limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				err := stage.end(limit)
				if (err == nil) != (c.end == "") || err != nil && !strings.Contains(err.Error(), c.end) {
					t.Errorf("got %v, want %q", err, c.end)
				}
				fail(nil)
				time.Sleep(2 * time.Minute) // whatever still runs ends
			})
		})
	}
}

func TestGraceOutlivesItsParentForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, stop := context.WithCancel(t.Context())
		ctx, cancel := grace(parent, 5*time.Second)
		defer cancel()
		stop()
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("it ended too soon")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("it did not end")
		}
		early, cancelEarly := grace(t.Context(), time.Hour)
		cancelEarly()
		if early.Err() == nil {
			t.Error("it did not end when it was cancelled")
		}
	})
}

// The timer works as long as there is work, and rests when there is none.
func TestTimerRestsOnlyWhenThereIsNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		left, failures := 3, 2
		ctx, stop := context.WithCancel(t.Context())
		p, err := newProcess("", valid(), Roles{Timer: true}, valid().logger(&strings.Builder{}))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- p.repeat(periodic{"test", timerEvery, passTime, func(context.Context) (int, error) {
				at = append(at, time.Since(began))
				if left > 0 {
					left--
					return 1, nil
				}
				if failures > 0 {
					failures--
					return 0, errors.New("mysql is away")
				}
				return 0, nil
			}})(ctx)
		}()
		time.Sleep(7500 * time.Millisecond)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []time.Duration{0, 0, 0, 0, 2 * time.Second, 6 * time.Second, 7 * time.Second}
		if len(at) != len(want) {
			t.Fatalf("got passes at %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("got passes at %v, want %v", at, want)
				break
			}
		}
	})
}

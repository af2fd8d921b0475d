package world

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Must ends the test with an error, if there is one.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Await asks again and again until ok returns nil. When ctx is done it returns the last error that ok gave before.
func Await(ctx context.Context, ok func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// Whether makes a condition for Await of one that says whether it holds, and what it saw.
func Whether(ok func() (bool, string)) func(context.Context) error {
	return func(context.Context) error {
		if done, last := ok(); !done {
			return errors.New(last)
		}
		return nil
	}
}

// Until is Await for a test, which ends with the last error when it takes longer than within.
func Until(t testing.TB, ctx context.Context, what string, within time.Duration, ok func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := Await(ctx, ok); err != nil {
		t.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

// Pause lets time pass, until ctx is done at most.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Package backoff is the pause between two attempts at what fails: it doubles up to a bound, with jitter, so that many who failed
// together do not come back together ("equal jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is made with its bounds: the first pause is at most First, no pause is longer than Most. It belongs to one goroutine.
type Backoff struct {
	First, Most time.Duration

	next time.Duration
}

// Reset makes the next pause the first again: an attempt succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Next returns the next pause: from half of its length to all of it.
func (b *Backoff) Next() time.Duration {
	if b.next == 0 {
		b.next = b.First
	}
	d := b.next
	b.next = min(2*b.next, b.Most)
	return d/2 + rand.N(d/2+1)
}

// Wait waits for the next pause, or until ctx ends or early is closed; nil is never closed.
func (b *Backoff) Wait(ctx context.Context, early <-chan struct{}) {
	t := time.NewTimer(b.Next())
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-early:
	case <-t.C:
	}
}

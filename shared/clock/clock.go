// Package clock tells the time of the one clock that decides: Redis's TIME.
//
// A process learns it from time to time (the backend asks Redis, a gateway reads it off the sale-state feed) and goes on
// from there by its own monotonic clock; its wall clock decides nothing once the first reading is in.
package clock

import (
	"sync/atomic"
	"time"
)

// Clock is safe for concurrent use; the zero Clock runs on the wall clock until the first Set.
type Clock struct{ anchor atomic.Pointer[anchor] }

type anchor struct {
	server time.Time // what the server's clock said ...
	local  time.Time // ... when our monotonic clock said this
}

// Set anchors the clock: the server's clock said server at some moment between asked and now. The middle of that span is
// taken, so the error is at most half a round trip.
func (c *Clock) Set(server, asked time.Time) {
	now := time.Now()
	c.anchor.Store(&anchor{server: server, local: asked.Add(now.Sub(asked) / 2)})
}

// Synced reports whether Set was ever called.
func (c *Clock) Synced() bool { return c.anchor.Load() != nil }

// Now is the server's time, as well as it is known.
func (c *Clock) Now() time.Time { return c.At(time.Now()) }

// At is Now for who has read the monotonic clock already.
func (c *Clock) At(local time.Time) time.Time {
	a := c.anchor.Load()
	if a == nil {
		return local.UTC()
	}
	return a.server.Add(local.Sub(a.local)).UTC()
}

// NowMillis is Now in milliseconds since 1970.
func (c *Clock) NowMillis() int64 { return c.Now().UnixMilli() }

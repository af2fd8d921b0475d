package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClockFollowsTheServerAndItsOwnMonotonicClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		if c.Synced() || !c.Now().Equal(time.Now()) {
			t.Fatalf("an unset clock: got synced %v, %v; want the wall clock", c.Synced(), c.Now())
		}
		asked := time.Now()
		time.Sleep(20 * time.Millisecond) // the round trip: the server read its clock in the middle of it
		server := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
		c.Set(server, asked)
		if got, want := c.Now(), server.Add(10*time.Millisecond); !got.Equal(want) {
			t.Errorf("after Set: got %v, want %v", got, want)
		}
		time.Sleep(time.Hour)
		if got, want := c.Now(), server.Add(time.Hour+10*time.Millisecond); !got.Equal(want) {
			t.Errorf("an hour later: got %v, want %v", got, want)
		}
	})
}

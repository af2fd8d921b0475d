package edge

import (
	"fmt"
	"math"
	"testing"
)

// The share is that of the users; the same salt picks the same ones, another picks others; picking allocates nothing.
func TestCanaryPicksAShare(t *testing.T) {
	const users = 100_000
	for _, share := range []float64{0, 0.001, 0.05, 0.5, 1} {
		a, same, other := NewCanary(Settings{}, "a", share), NewCanary(Settings{}, "a", share), NewCanary(Settings{}, "b", share)
		n, both := 0., 0.
		for i := range users {
			uid := fmt.Sprint("user-", i)
			if a.Has(uid) != same.Has(uid) {
				t.Fatalf("%s is in one of two canaries of one salt", uid)
			}
			if a.Has(uid) {
				n++
				if other.Has(uid) {
					both++
				}
			}
		}
		if want, off := share*users, 5*math.Sqrt(users*share*(1-share)); math.Abs(n-want) > off {
			t.Errorf("got %v of %d users in a share of %v", n, users, share)
		}
		if want, off := share*share*users, 5*math.Sqrt(users*share*share)+1; math.Abs(both-want) > off {
			t.Errorf("share %v: %v users are in the canaries of two salts, want about %v", share, both, want)
		}
	}
	c := NewCanary(Settings{}, "a", 0.5)
	x := &exchange{set: &Settings{Canary: c}}
	if n := testing.AllocsPerRun(100, func() { x.userSettings("user-1"); x.countCanary(200) }); n != 0 {
		t.Errorf("picking takes %v allocations", n)
	}
}

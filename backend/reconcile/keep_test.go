package reconcile

import (
	"testing"
	"testing/synctest"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// after looks each second until it is time to take over, and says when that was.
func (c *closed) after(s reserve.State) time.Duration {
	for began := time.Now(); ; time.Sleep(time.Second) {
		if c.observe(s) {
			return time.Since(began)
		}
	}
}

func TestAGateThatDoesNotMoveIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shut := reserve.State{Gate: lua.GateShut, Token: 1}
		c := &closed{gate: shut.Gate, token: 1, since: time.Now(), patience: patience}
		if got := c.after(shut); got != patience {
			t.Errorf("taken over after %v, want %v", got, patience)
		}
		// progress is given its time
		c = &closed{gate: shut.Gate, token: 1, since: time.Now(), patience: patience}
		time.Sleep(patience)
		adopting := reserve.State{Gate: lua.GateAdopt, Token: 1}
		if c.observe(adopting) {
			t.Error("taken over though it went on")
		}
		if got := c.after(adopting); got != patience {
			t.Errorf("taken over %v after it stopped, want %v", got, patience)
		}
		// so is one who shows to be at work, for however long
		c = &closed{gate: shut.Gate, token: 1, since: time.Now(), patience: patience}
		for range 1000 {
			time.Sleep(beatEvery)
			shut.Beat++
			if c.observe(shut) {
				t.Fatalf("taken over at beat %d", shut.Beat)
			}
		}
		if got := c.after(shut); got != patience {
			t.Errorf("taken over %v after the last beat, want %v", got, patience)
		}
		if c.patience != patience {
			t.Errorf("the patience is %v, want it as it was, %v", c.patience, patience)
		}
		c = &closed{gate: adopting.Gate, token: 1, since: time.Now(), patience: patience}
		// this process is at it
		done := make(chan struct{})
		c.done = done
		time.Sleep(time.Hour)
		if c.observe(adopting) {
			t.Error("taken over from oneself")
		}
		close(done)
		if c.observe(adopting) {
			t.Error("taken over at once after an attempt ended")
		}
		if got := c.after(adopting); got != patience {
			t.Errorf("taken over %v after an attempt ended, want %v", got, patience)
		}
	})
}

func TestReconcilersDoNotTakeOverFromEachOtherForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &closed{gate: lua.GateShut, since: time.Now(), patience: patience}
		last := time.Duration(0)
		for token := int64(1); token < 10; token++ { // each time somebody else was sooner
			got := c.after(reserve.State{Gate: lua.GateShut, Token: token})
			if got < last || got > mostPatience+time.Second {
				t.Errorf("after %d take-overs the patience was %v, before it %v", token, got, last)
			}
			last = got
		}
		if last < mostPatience {
			t.Errorf("the patience ends at %v, want %v", last, mostPatience)
		}
	})
}

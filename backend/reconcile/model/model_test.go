package model

import "testing"

func TestTheProtocolHolds(t *testing.T) {
	for _, mode := range []Promise{AfterFsync, AfterConfirm, AfterReplicas, Offers, Torn, Deferred, Forgets} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			if testing.Short() && (mode == AfterConfirm || mode == AfterReplicas || mode == Torn || mode == Deferred || mode == Forgets) {
				t.Skip("half a minute or more: make test explores it")
			}
			r := Explore(mode, None)
			if r.Broken != "" {
				t.Fatal(r)
			}
			if r.States < 100_000 {
				t.Errorf("got only %d states: the rules no longer reach what they should", r.States)
			}
			t.Log(r)
		})
	}
}

func TestEveryPlantedBugIsFound(t *testing.T) {
	for _, bug := range Bugs {
		t.Run(string(bug), func(t *testing.T) {
			t.Parallel()
			modes := []Promise{AfterFsync, AfterConfirm}
			switch bug {
			case UnionWithOrphans:
				modes = []Promise{Torn}
			case OpenOverDeferred, RetireDeferred:
				modes = []Promise{Deferred}
			case PromiseUnreplicated, FewerThanAll, WaitElsewhere, WaitUnheld:
				modes = []Promise{AfterReplicas}
			case DropForgotten, FailoverMissed, ComparedOnce, EndsForgotten, ServeBeforeEnds, TokenOfOlder, EpochOfOlder:
				modes = []Promise{Forgets}
			}
			for _, mode := range modes {
				if r := Explore(mode, bug); r.Broken != "" {
					t.Logf("%v: %v", mode, r)
					return
				}
			}
			t.Error("not found")
		})
	}
}

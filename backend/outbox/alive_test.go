package outbox

import (
	"maps"
	"slices"
	"strconv"
	"testing"
)

func TestAReaderIsDeadWhenItsBeatsStandStill(t *testing.T) {
	p := peers{seen: map[string]peer{}}
	hash := map[string]string{"steady": "1", "late": "1", "mute": "1"}
	died := map[string]int{}
	steady := 1
	look := func(n int) (forget []string) {
		t.Helper()
		for range n {
			steady++
			hash["steady"] = strconv.Itoa(steady)
			dead, old := p.look(maps.Clone(hash))
			for _, name := range dead {
				died[name]++
			}
			forget = append(forget, old...)
		}
		return forget
	}
	is := func(what string, names ...string) {
		t.Helper()
		for _, name := range []string{"steady", "late", "mute", "unknown"} {
			if got, want := p.dead(name), slices.Contains(names, name); got != want {
				t.Errorf("%s: %s is dead: got %v, want %v", what, name, got, want)
			}
		}
	}
	look(stillLooks) // the first sees them for the first time
	is("one look is missing")
	hash["late"] = "2"
	look(1)
	is("all looks, but late came back before the last", "mute")
	look(stillLooks)
	is("late stands still, too", "mute", "late")
	hash["late"] = "1" // Redis came back with an older copy of itself, and late beats on
	look(1)
	is("late was only paused", "mute")
	look(stillLooks)
	if died["mute"] != 1 || died["late"] != 2 || died["steady"] != 0 || p.deaths.Load() != 3 {
		t.Errorf("who died, and how often: got %v and %d in all", died, p.deaths.Load())
	}
	delete(hash, "late") // another reader has forgotten it, or Redis has
	look(1)
	is("late is not in the hash", "mute")
	if _, kept := p.seen["late"]; kept {
		t.Error("late is not in the hash, and still kept in memory")
	}
	if forget := look(forgetLooks); !slices.Contains(forget, "mute") || slices.Contains(forget, "steady") {
		t.Errorf("got %v to be forgotten, want mute alone", forget)
	}
}

//go:build servers

package outbox_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/reserve"
)

// What a dead reader holds is taken over long before ClaimIdle, also by one that was started after its death. Who lives keeps what it
// holds. So does who counts no beats: it may be of an older version.
//
// Row B4: what a dead consumer holds is claimed by a living one.
func TestADeadReadersEntriesAreTakenOverLongBeforeClaimIdle(t *testing.T) {
	t.Attr("row", "B4")
	s := backendtest.Redis(t)
	held := map[int64][]string{}
	for sale := int64(1); sale <= 3; sale++ {
		load(t, s, sale)
		held[sale] = press(t, s, sale, 10)
	}
	holder := func(name string, sale int64) (stop func()) {
		c := newCrowd(s)
		c.keep = true
		stop = read(t, s, name, time.Hour, sales(sale), c.handle)
		c.until(t, "ten entries", func() bool { return c.has(held[sale]) })
		return stop
	}
	dying := holder("dying", 1)
	holder("living", 2)
	x := s.Client()
	if _, err := s.Join(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if err := x.Do(t.Context(), x.B().Xreadgroup().Group(reserve.Group, "older").Count(100).Streams().Key(s.OutboxKey(3)).Id(">").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	dying()
	heir := newCrowd(s)
	read(t, s, "heir", time.Hour, sales(1, 2, 3), heir.handle)
	heir.until(t, "the dead one's", func() bool { return heir.has(held[1]) })
	fresh := press(t, s, 3, 1)
	heir.until(t, "a fresh one, which is read after all sales were looked at", func() bool { return heir.has(fresh) })
	if two, three := consumers(t, s, 2)["living"], consumers(t, s, 3)["older"]; two != 10 || three != 10 || len(heir.all()) != 11 {
		t.Errorf("the living one holds %d, the older one %d, and the heir has handled %d; want 10, 10, 11", two, three, len(heir.all()))
	}
}

// The hash of the beats does not grow by every process that ever was.
func TestADeadReaderIsForgotten(t *testing.T) {
	s := backendtest.Redis(t)
	reader := func(name string) func() {
		r := outbox.NewReader(outbox.ReaderConfig{Redis: s, Live: sales(), Name: name, ClaimIdle: time.Hour, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
		return func() {
			t.Helper()
			if err := r.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	is := func(want ...string) {
		t.Helper()
		x := s.Client()
		beats, err := x.Do(t.Context(), x.B().Hgetall().Key(x.Prefix()+"readers").Build()).AsStrMap()
		if got := slices.Sorted(maps.Keys(beats)); err != nil || !slices.Equal(got, want) {
			t.Fatalf("got readers %v, %v; want %v", got, err, want)
		}
	}
	paused, living := reader("paused"), reader("living")
	paused()
	for range outbox.ForgetLooks {
		living()
	}
	is("living", "paused")
	living()
	is("living")
	paused()
	is("living", "paused")
}

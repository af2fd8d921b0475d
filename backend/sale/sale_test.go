package sale

import (
	"testing"
	"time"
)

func TestDefinitionHasTheLaterTranches(t *testing.T) {
	t0 := time.UnixMilli(1_000_000)
	s := Sale{StartsAt: t0, EndsAt: t0.Add(time.Hour), PerUserLimit: 1,
		Tranches: []Tranche{{t0.Add(-time.Minute), 3}, {t0, 4}, {t0.Add(time.Minute), 5}}}
	d := s.Definition()
	if len(d.Later) != 1 || d.Later[0].At != 1_060_000 || d.Later[0].Units != 5 || d.Starts != 1_000_000 || d.Ends != 4_600_000 || d.Limit != 1 {
		t.Errorf("got %+v", d)
	}
	if got := s.Unreleased(t0.Add(-time.Hour)); got != 5 {
		t.Errorf("before the start: got %d units unreleased, want 5: those of the start are not counted as later", got)
	}
}

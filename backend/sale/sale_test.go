package sale

import (
	"errors"
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

func TestWhatMayChangeWhileItSells(t *testing.T) {
	start := time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC)
	mug := Sale{Title: "Mug", Price: 100, Currency: "EUR", StartsAt: start, EndsAt: start.Add(time.Hour), PerUserLimit: 2, PayWithin: time.Minute,
		Tranches: []Tranche{{start.Add(10 * time.Minute), 5}, {start.Add(30 * time.Minute), 5}}}
	for name, c := range map[string]struct {
		change        func(*Sale)
		before, while string // the field that is refused; "" for none
	}{
		"title":            {func(s *Sale) { s.Title = "Cup" }, "", ""},
		"price":            {func(s *Sale) { s.Price = 200 }, "", "price"},
		"same price":       {func(*Sale) {}, "", ""},
		"start later":      {func(s *Sale) { s.StartsAt = start.Add(5 * time.Minute) }, "", "starts_at"},
		"start too late":   {func(s *Sale) { s.StartsAt = start.Add(20 * time.Minute) }, "starts_at", "starts_at"},
		"end later":        {func(s *Sale) { s.EndsAt = start.Add(2 * time.Hour) }, "", ""},
		"end in a tranche": {func(s *Sale) { s.EndsAt = start.Add(20 * time.Minute) }, "ends_at", "ends_at"},
		"end first":        {func(s *Sale) { s.EndsAt = start.Add(-time.Minute) }, "ends_at", "ends_at"},
		"limit up":         {func(s *Sale) { s.PerUserLimit = 3 }, "", ""},
		"limit down":       {func(s *Sale) { s.PerUserLimit = 1 }, "", "per_user_limit"},
		"time to pay":      {func(s *Sale) { s.PayWithin = 5 * time.Second }, "", ""},
	} {
		for when, now := range map[string]time.Time{"before": start.Add(-time.Minute), "about to start": start.Add(-time.Second), "while it sells": start.Add(time.Minute)} {
			want := c.before
			if when != "before" {
				want = c.while
			}
			next := mug
			c.change(&next)
			got := ""
			var refused *FieldError
			if errors.As(mug.Allows(&next, now), &refused) {
				got = refused.Field
			}
			if got != want {
				t.Errorf("%s, %s: got %q refused, want %q", name, when, got, want)
			}
		}
	}
}

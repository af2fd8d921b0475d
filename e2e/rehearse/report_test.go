package rehearse

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"floodgate.internal/backend/preflight"
	"floodgate.internal/e2e/oracle"
)

func TestQuantilesAreAClassWideAtMost(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("of nothing: got %v", got)
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for part, exact := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := h.quantile(part); got < exact || float64(got) > 1.25*float64(exact) {
			t.Errorf("%g: got %v, want %v to a quarter more", part, got, exact)
		}
	}
	var long histogram
	long.add(24 * time.Hour)
	long.merge(&h)
	if got := long.quantile(1); got < 10*time.Minute {
		t.Errorf("a day: got %v", got)
	}
}

// sample is a result with something of everything, the strange too.
func sample() *Result {
	c := newCrowd("http://127.0.0.1:1", 7, time.Now().Add(-10*time.Second), 20*time.Second, 1)
	for o := range outcomes {
		c.note(time.Now().Add(-time.Duration(o)*time.Millisecond), 0, o)
	}
	c.oddly(`500 <INTERNAL> & "more"`)
	return &Result{Options: Options{Shoppers: 9, Stock: 3, Length: 20 * time.Second, Seed: 1}, Sale: 7, Began: c.began, crowd: c, Audit: "balanced", Balanced: true,
		Faults: []Fault{{Victim: "redis", At: time.Second, Down: time.Second, Answered: 2 * time.Second}, {Victim: "mysql", At: 2 * time.Second, Error: "<no>"}, {Victim: "gateway"}},
		Units:  []units{{At: time.Second, Sold: 1, Locked: 1, Available: 1}, {At: 2 * time.Second, Sold: 3}}}
}

func TestTheReportTellsWhatHolds(t *testing.T) {
	for _, c := range []struct {
		change func(*Result)
		good   bool
	}{
		{func(*Result) {}, true},
		{func(r *Result) { r.Balanced = false }, false},
		{func(r *Result) { r.Broken = []string{"redis: stock 1 + reserved 1 <> 3"} }, false},
		{func(r *Result) { r.Tally = oracle.Tally{Promised: 3, Lost: 1} }, false},
	} {
		r := sample()
		c.change(r)
		var b bytes.Buffer
		var brief bytes.Buffer
		var told preflight.Rehearsal
		if err := errors.Join(r.WriteJSON(&brief), json.Unmarshal(brief.Bytes(), &told)); err != nil || told.Good != c.good || told.Stock != 3 || told.Shoppers != 9 || told.Seconds != 20 || told.Faults != 3 ||
			told.Presses == 0 || told.At.IsZero() || told.Version == "" {
			t.Errorf("got %+v, %v", told, err)
		}
		if err := r.WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		if r.Good() != c.good || strings.Contains(text, "Every promise was kept") != c.good {
			t.Errorf("%+v: good is %v, want %v", r.Tally, r.Good(), c.good)
		}
		for _, bad := range []string{"<INTERNAL>", "<no>", "<> 3", "NaN", "Inf", "https://", "%!"} {
			if strings.Contains(text, bad) {
				t.Errorf("the report holds %q", bad)
			}
		}
		if !strings.Contains(text, `y="9" text-anchor="middle">redis<`) || !strings.Contains(text, `y="20" text-anchor="middle">mysql<`) {
			t.Error("the names of two faults within a second are on one another")
		}
		for rest, i := text, 0; i < 3; i++ { // each picture is well formed
			_, after, found := strings.Cut(rest, "<svg")
			picture, after, closed := strings.Cut(after, "</svg>")
			if !found || !closed {
				t.Fatalf("there are %d pictures, want 3", i)
			}
			d := xml.NewDecoder(strings.NewReader("<svg" + picture + "</svg>"))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("picture %d: %v", i, err)
				}
			}
			rest = after
		}
	}
}

func TestTheReportTellsWhatBoundedTheSale(t *testing.T) {
	for want, c := range map[string]struct {
		took, queued time.Duration // of each press
		told         outcome
		units        []units
		load         load
	}{
		"The stock: every unit was taken 3.0 s":            {took: 20 * time.Second, queued: 19 * time.Second, units: []units{{At: -time.Second}, {At: time.Second, Available: 1}, {At: 3 * time.Second}}},
		"The crowd, not the system: of the 20.0 s of a":    {took: 20 * time.Second, queued: 19 * time.Second},
		"Refusals: 4 of 4 presses":                         {took: time.Second, told: busy},
		"The system: half of the presses took longer than": {took: 20 * time.Second, queued: time.Second},
		"The machine: other programs had most":             {took: 20 * time.Second, queued: time.Second, load: load{Passed: 20 * time.Second, Busy: 19 * time.Second, System: 4 * time.Second}},
		"The crowd: fewer wanted a unit":                   {took: 20 * time.Millisecond, queued: 19 * time.Millisecond, units: []units{{At: time.Second, Available: 1}}},
	} {
		r := &Result{Units: c.units, Load: c.load, crowd: newCrowd("", 1, time.Now(), time.Minute, 1)}
		for range 4 {
			r.crowd.note(time.Now().Add(-c.took), c.queued, c.told)
		}
		if got := r.Bound(); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	empty := &Result{crowd: newCrowd("", 1, time.Now(), time.Minute, 1)}
	if got := empty.Bound(); got != "The crowd: nobody pressed." {
		t.Errorf("of no press: got %q", got)
	}
	l := load{Passed: 20 * time.Second, Busy: 19 * time.Second, Crowd: 5 * time.Second, System: 4 * time.Second}
	if got, want := l.Words(), "The processors were busy 95 % of the time: the crowd 25 %, the system 20 %, other programs 50 %."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMostComeAtTheStart(t *testing.T) {
	c := newCrowd("", 1, time.Now(), time.Minute, 1)
	before, first, all := 0, 0, 10000
	for i := range all {
		s := newShopper(c, i, "")
		switch at := s.arrives(); {
		case at < 0:
			before++
		case at < 5*time.Second:
			first++
		case at > time.Minute:
			t.Fatalf("a shopper comes %v after the start of a sale of a minute", at)
		}
	}
	if before < all/20 || before > all/5 || first < all/2 {
		t.Errorf("of %d, %d come before the start and %d within 5 s", all, before, first)
	}
}

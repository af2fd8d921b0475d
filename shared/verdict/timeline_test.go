package verdict

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"floodgate.internal/shared/wire"
)

func TestEveryRuleSaysWhatItMeans(t *testing.T) {
	form := regexp.MustCompile(`^[a-z_]{1,24}$`)
	for r := range rules {
		if known, ok := Known([]byte(r)); !ok || known != r || !r.Valid() || !form.MatchString(string(r)) || len(r) > MaxRule {
			t.Errorf("%q is not known, or not of the form of a rule", r)
		}
		if w := r.What(); w != Taken && w != Limited && w != Refused && w != Unknown || !strings.HasSuffix(r.Detail(), ".") {
			t.Errorf("%s: got %q, %q", r, w, r.Detail())
		}
	}
	if r, ok := Known([]byte("no_such_rule")); ok || r != "" || Rule("").Valid() {
		t.Errorf("got %q for what is no rule", r)
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	at := wire.At(time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC))
	good := func() Batch {
		return Batch{Gateway: "g", Seq: 1, Records: []Record{{1, "ann", SoldOut, at, at, 1}}, Dropped: []Dropped{{0, 1}}}
	}
	b := good()
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*Batch){
		"gateway: ":                     func(b *Batch) { b.Gateway = "a/b" },
		"seq: 0 ":                       func(b *Batch) { b.Seq = 0 },
		"records: 201 of them":          func(b *Batch) { b.Records = make([]Record, MaxBatch+1) },
		"dropped: 51 of them":           func(b *Batch) { b.Dropped = make([]Dropped, MaxDropped+1) },
		`records/0: 0, "ann"`:           func(b *Batch) { b.Records[0].Sale = 0 },
		`records/0: 1, "a b"`:           func(b *Batch) { b.Records[0].UID = "a b" },
		`"none" is no sale`:             func(b *Batch) { b.Records[0].Rule = "none" },
		"records/0: 0 presses":          func(b *Batch) { b.Records[0].Count = 0 },
		"records/0: 1 presses from":     func(b *Batch) { b.Records[0].Last = wire.At(at.Add(-time.Second)) },
		"records/1: it is there twice":  func(b *Batch) { b.Records = append(b.Records, b.Records[0]) },
		"dropped/0: 0 of sale 0 cannot": func(b *Batch) { b.Dropped[0].Count = 0 },
	} {
		b := good()
		spoil(&b)
		if err := b.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// The largest batch that there can be fits into what a backend takes.
func TestTheLargestBatchFits(t *testing.T) {
	at := wire.At(time.Now())
	b := Batch{Gateway: strings.Repeat("g", 36), Seq: 1 << 62}
	for i := range MaxBatch {
		b.Records = append(b.Records, Record{1<<63 - 1, fmt.Sprintf("%064d", i), AlreadyOrdered, at, at, 1<<63 - 1})
	}
	for range MaxDropped {
		b.Dropped = append(b.Dropped, Dropped{1<<63 - 1, 1<<63 - 1})
	}
	if text, err := json.Marshal(&b); err != nil || b.Check() != nil || len(text) > 63<<10 {
		t.Errorf("%d bytes, %v, %v", len(text), err, b.Check())
	}
}

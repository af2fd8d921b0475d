package reserve

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/uuid"

	"floodgate.internal/shared/wire"
)

func TestParseEntry(t *testing.T) {
	id := wire.NewOrderID(uuid.NewString(), 42)
	good := map[string]string{"id": id, "uid": "ann", "quantity": "2", "slots": "1,2", "key": "", "epoch": "3", "at": "4", "trace": ""}
	if e, err := ParseEntry(42, "1-1", good); err != nil || e != (Entry{ID: id, Sale: 42, UID: "ann", Quantity: 2, Slots: "1,2", Epoch: 3, At: 4, Entry: "1-1"}) {
		t.Errorf("got %+v, %v", e, err)
	}
	for field, value := range map[string]string{"id": "x", "uid": "a b", "quantity": "0", "epoch": "", "at": "soon"} {
		bad := maps.Clone(good)
		bad[field] = value
		if e, err := ParseEntry(42, "1-1", bad); err == nil {
			t.Errorf("%s %q was taken: %+v", field, value, e)
		}
	}
	if e, err := ParseEntry(43, "1-1", good); err == nil {
		t.Errorf("another sale's order was taken: %+v", e)
	}
}

func FuzzParseHeld(f *testing.F) {
	f.Add("ann 2 1,2 1-1 5 a key")
	f.Add("ann 2 1,2 - 5 ")
	f.Add("ann 2")
	f.Fuzz(func(t *testing.T, value string) {
		h, err := parseHeld("o", value)
		if err != nil {
			return
		}
		again, err := parseHeld("o", fmt.Sprintf("%s %d %s %s %d %s", h.UID, h.Quantity, h.Slots, h.Entry, h.At, h.Key))
		if err != nil || again != h {
			t.Errorf("%q is %+v, and written again %+v, %v", value, h, again, err)
		}
	})
}

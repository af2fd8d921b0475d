package queued

import (
	"maps"
	"testing"

	"github.com/google/uuid"

	"floodgate.internal/shared/wire"
)

func TestParseEntry(t *testing.T) {
	id := wire.NewOrderID(uuid.NewString(), 42)
	good := map[string]string{"id": id, "uid": "ann", "quantity": "2", "slots": "1,2", "key": "", "epoch": "3", "at": "4", "trace": ""}
	if e, err := Parse(42, "1-1", good); err != nil || e != (Entry{ID: id, Sale: 42, UID: "ann", Quantity: 2, Slots: "1,2", Epoch: 3, At: 4, Entry: "1-1"}) {
		t.Errorf("got %+v, %v", e, err)
	}
	for field, value := range map[string]string{"id": "x", "uid": "a b", "quantity": "0", "epoch": "", "at": "soon"} {
		bad := maps.Clone(good)
		bad[field] = value
		if e, err := Parse(42, "1-1", bad); err == nil {
			t.Errorf("%s %q was taken: %+v", field, value, e)
		}
	}
	if e, err := Parse(43, "1-1", good); err == nil {
		t.Errorf("another sale's order was taken: %+v", e)
	}
}

// An entry that is taken is an order of its sale, which the database can take.
func FuzzParseEntry(f *testing.F) {
	f.Add(int64(42), "0190163d-8694-739b-aea5-966c26f8ad91-42", "ann", "1", "3", "1800000000000")
	f.Add(int64(0), "", "", "-1", "x", "")
	f.Fuzz(func(t *testing.T, sale int64, order, uid, quantity, epoch, at string) {
		e, err := Parse(sale, "1-1", map[string]string{"id": order, "uid": uid, "quantity": quantity, "epoch": epoch, "at": at})
		if err != nil {
			return
		}
		if of, ok := wire.SaleOfOrder(e.ID); !ok || of != sale || !wire.ValidUID(e.UID) || e.Quantity < 1 {
			t.Errorf("took %+v", e)
		}
	})
}

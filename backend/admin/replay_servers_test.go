//go:build servers

package admin

import (
	"encoding/json"
	"fmt"
	"testing"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/problem"
)

// Dead letters are replayed in order, of a sale or all. A replay stops at the first that cannot be processed and says so; replayed alone,
// that one is out of the way.
func TestDeadLettersAreReplayedInOrder(t *testing.T) {
	o := newOffice(t, 1)
	one := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale("")).ID
	other := do[adminapi.Sale](o, 201, "POST", "/admin/v1/sales", openSale("")).ID
	dead := func(sale int64, uid string) {
		t.Helper()
		m := queued.DeadMessage{Queue: "q", Reason: "r", Payload: []byte("no order of " + uid)}
		if sale > 0 {
			id := o.press(sale, uid, 1)
			e := queued.Entry{ID: id, Sale: sale, UID: uid, Quantity: 1, Slots: "1", Epoch: o.state(sale).Epoch, At: o.Clock.NowMillis()}
			m.Payload, _ = json.Marshal(e) // it cannot fail
			m.Entry = &e
		}
		if err := o.DeadLetters.Take(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	dead(one, "ann")
	dead(other, "bob")
	dead(one, "cyd")
	dead(0, "dan")
	dead(other, "eve")
	replay := func(body, replayed string, stopped, left int64) {
		t.Helper()
		v := do[adminapi.ReplayDone](o, 200, "POST", "/admin/v1/dead-letters/replay", body)
		var ids []int64
		for _, l := range v.Replayed {
			ids = append(ids, l.ID)
		}
		at := int64(0)
		if v.Stopped != nil {
			at = v.Stopped.ID
			if v.Stopped.Result != deadletter.Unreadable || v.Stopped.Detail == "" {
				t.Errorf("%s: it stopped with %+v", body, v.Stopped)
			}
		}
		if fmt.Sprint(ids) != replayed || at != stopped || v.Left != left {
			t.Errorf("%s: got %v, stopped at %d, %d left; want %s, %d, %d", body, ids, at, v.Left, replayed, stopped, left)
		}
	}
	replay(fmt.Sprintf(`{"sale_id":%d,"limit":1}`, one), "[1]", 0, 1)
	replay(fmt.Sprintf(`{"sale_id":%d}`, other), "[2 5]", 0, 0)
	replay("", "[3]", 4, 1)
	replay("", "[]", 4, 1)
	do[deadletter.Replayed](o, 200, "POST", "/admin/v1/dead-letters/4/replay", "")
	replay("", "[]", 0, 0)
	if n := o.count(`SELECT COUNT(*) FROM audit_log WHERE action = 'dead-letter.replay'`); n != 4 {
		t.Errorf("the log has %d replays, want 4", n)
	}
	for body, field := range map[string]string{`{"sale_id":0}`: "sale_id", `{"limit":101}`: "limit", `{"limit":0}`: "limit", `{"sale":1}`: "sale"} {
		refused(t, send(o.Admin, "POST", "/admin/v1/dead-letters/replay", body), problem.BadRequest, field)
	}
}

//go:build servers

package reserve_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// A snapshot is of one moment, though it is read by pages while buyers order, their orders are released, and entries retired.
func TestSnapshotIsOfOneMoment(t *testing.T) {
	const begin, stock, snapshots = 3000, 100_000, 8
	var before []reserve.Held
	for i := range begin {
		uid := fmt.Sprint("early", i)
		before = append(before, reserve.Held{ID: request(uid, 1).OrderID, UID: uid, Quantity: 2, Slots: "1,2", Entry: "-", At: 1})
	}
	s := loaded(t, func(l *reserve.Loaded) { l.Orders, l.Total, l.Stock, l.Limit = before, stock, stock-2*begin, 5 })

	var mu sync.Mutex // guards the rest
	var order []string
	at := map[string]int64{} // order -> the snapshot before which it was reserved
	for _, h := range before {
		order = append(order, h.ID)
		at[h.ID] = 0
	}
	gone, over := map[string]int64{}, map[string]int64{} // order -> the newest snapshot when its release began, and had ended
	retired := map[string]bool{}                         // orders whose entry's retirement began
	var now atomic.Int64                                 // the snapshot that is being taken
	stop := make(chan struct{})
	var g errgroup.Group
	running := func() bool {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}
	for w := range 3 {
		g.Go(func() error {
			for n := 0; running(); n++ {
				r := request(fmt.Sprint("buyer", w, ".", rand.IntN(2000)), 1+rand.IntN(3))
				v, err := s.Reserve(t.Context(), r)
				if err != nil {
					return err
				}
				if v.Answer == lua.Reserved {
					mu.Lock()
					order, at[r.OrderID] = append(order, r.OrderID), now.Load()
					mu.Unlock()
					if n%2 == 0 {
						mu.Lock()
						retired[r.OrderID] = true
						mu.Unlock()
						if err := s.Retire(t.Context(), 42, []string{v.Entry}); err != nil {
							return err
						}
					}
				}
				mu.Lock()
				i := rand.IntN(len(order))
				id := order[i]
				order[i] = order[len(order)-1]
				order = order[:len(order)-1]
				gone[id] = now.Load()
				mu.Unlock()
				if done, err := s.Release(t.Context(), sale, id); !done || err != nil {
					return errors.Join(err, fmt.Errorf("release of %s: %v", id, done))
				}
				mu.Lock()
				over[id] = now.Load()
				mu.Unlock()
			}
			return nil
		})
	}
	moved := 0
	for i := int64(1); i <= snapshots; i++ {
		now.Store(i)
		snap, err := s.Snapshot(t.Context(), sale)
		if err != nil {
			t.Error(err)
			break
		}
		if len(snap.Bad) > 0 {
			t.Errorf("bad: %v", snap.Bad)
		}
		units, slots, ids := int64(0), map[string]string{}, map[string]bool{}
		for _, h := range snap.Orders {
			units += int64(h.Quantity)
			ids[h.ID] = true
			for slot := range strings.SplitSeq(h.Slots, ",") {
				slots[h.UID+" "+slot] = h.ID
			}
		}
		if snap.State.Stock+units != stock || snap.State.Total != stock {
			t.Errorf("snapshot %d: stock %d + reserved %d is not total %d, %d", i, snap.State.Stock, units, stock, snap.State.Total)
		}
		for uid, value := range snap.Buyers {
			for pair := range strings.SplitSeq(value, ",") {
				slot, id, _ := strings.Cut(pair, "=")
				if key := uid + " " + slot; slots[key] == id {
					delete(slots, key)
				} else {
					t.Errorf("snapshot %d: slot %s of uid %s has order %q; the reservations say %q", i, slot, uid, id, slots[key])
				}
			}
		}
		if len(slots) > 0 {
			t.Errorf("snapshot %d: %d slots of reservations are not the buyers'", i, len(slots))
		}
		queued := map[string]bool{}
		for _, e := range snap.Outbox {
			queued[e.ID] = true
		}
		mu.Lock()
		for _, h := range snap.Orders {
			if h.Entry != "-" && !queued[h.ID] && !retired[h.ID] {
				t.Errorf("snapshot %d lacks the outbox entry of %s", i, h.ID)
			}
		}
		for id, reserved := range at {
			released, ended := gone[id]
			if ended && released == i {
				moved++
			}
			if reserved < i && !ended && !ids[id] {
				t.Errorf("snapshot %d lacks %s", i, id)
			}
			if last, ok := over[id]; ok && last < i && ids[id] {
				t.Errorf("snapshot %d has %s, which was released before", i, id)
			}
		}
		mu.Unlock()
	}
	close(stop)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if moved == 0 {
		t.Error("nothing was released while a snapshot was taken: the test shows nothing")
	}
	t.Logf("%d releases while snapshots were taken", moved)
}

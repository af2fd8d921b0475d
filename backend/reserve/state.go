package reserve

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
)

// State is a sale as Redis has it.
type State struct {
	Definition
	Present bool
	Gate    string
	Token   int64
	Beat    int64 // rises while the reconciler that closed the gate is at work
	Epoch   int64
	Stock   int64
	Total   int64
	Standby int64 // the newest place in the standby line, for which Available is kept; 0: nobody waits
}

// Available is what can be reserved at now: the stock without the tranches still to come.
func (s State) Available(nowMillis int64) int64 {
	n := s.Stock
	for _, t := range s.Later {
		if t.At > nowMillis {
			n -= t.Units
		}
	}
	return n
}

// States reads several sales at once, in one round trip.
func (s *Store) States(ctx context.Context, sales []int64) ([]State, error) {
	some, err := s.SomeStates(ctx, sales)
	if err != nil {
		return nil, err
	}
	out := make([]State, len(sales))
	for i, id := range sales {
		out[i] = some[id]
	}
	return out, nil
}

// SomeStates is States for as many of the sales as can be read: another node may be away. The error says why one cannot.
func (s *Store) SomeStates(ctx context.Context, sales []int64) (some map[int64]State, err error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	cmds := make(rueidis.Commands, len(sales))
	for i, id := range sales {
		cmds[i] = s.client.B().Hgetall().Key(s.state(id)).Build()
	}
	some = make(map[int64]State, len(sales))
	for i, r := range s.client.DoMulti(ctx, cmds...) {
		m, failed := r.AsStrMap()
		if failed != nil {
			err = fmt.Errorf("state of sale %d: %w", sales[i], failed)
			continue
		}
		some[sales[i]] = parseState(m)
	}
	return some, err
}

func parseState(m map[string]string) State {
	if m["gate"] == "" {
		return State{}
	}
	num := func(name string) int64 { n, _ := strconv.ParseInt(m[name], 10, 64); return n }
	st := State{Present: true, Gate: m["gate"], Token: num("token"), Beat: num("beat"), Epoch: num("epoch"), Stock: num("stock"), Total: num("total"), Standby: num("standby"),
		Definition: Definition{Version: num("version"), Starts: num("starts"), Ends: num("ends"), Limit: int(num("limit")),
			Paused: m["paused"] == "1", Closed: m["closed"] == "1"}}
	for _, pair := range strings.Fields(m["later"]) {
		at, units, _ := strings.Cut(pair, ":")
		var t Tranche
		t.At, _ = strconv.ParseInt(at, 10, 64)
		t.Units, _ = strconv.ParseInt(units, 10, 64)
		st.Later = append(st.Later, t)
	}
	return st
}

// Snapshot is all of a sale in Redis, read in one moment.
type Snapshot struct {
	State  State
	Orders []Held
	Buyers map[string]string // uid -> "slot=order,..."
	Outbox []queued.Entry
	// Applied is the admin intents that State's stock and total include.
	Applied map[int64]bool
	Bad     []error // entries that are no orders
	Keys    int64   // that the sale has, of any kind
}

// Snapshot reads all of a sale in one MULTI: for reconciling and auditing.
func (s *Store) Snapshot(ctx context.Context, sale int64) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*redis.Timeout)
	defer cancel()
	var snap Snapshot
	err := s.client.Dedicated(func(c rueidis.DedicatedClient) error {
		all, err := redis.Multi(ctx, c,
			c.B().Hgetall().Key(s.state(sale)).Build(),
			c.B().Hgetall().Key(s.orders(sale)).Build(),
			c.B().Hgetall().Key(s.buyers(sale)).Build(),
			c.B().Xrange().Key(s.OutboxKey(sale)).Start("-").End("+").Build(),
			c.B().Smembers().Key(s.applied(sale)).Build(),
			c.B().Exists().Key(s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.OutboxKey(sale), s.applied(sale)).Build())
		if err != nil {
			return err
		}
		state, err := all[0].AsStrMap()
		if err != nil {
			return err
		}
		orders, err := all[1].AsStrMap()
		if err != nil {
			return err
		}
		if snap.Buyers, err = all[2].AsStrMap(); err != nil {
			return err
		}
		entries, err := all[3].AsXRange()
		if err != nil {
			return err
		}
		applied, err := all[4].AsStrSlice()
		if err != nil {
			return err
		}
		if snap.Keys, err = all[5].AsInt64(); err != nil {
			return err
		}
		snap.State = parseState(state)
		snap.Applied = make(map[int64]bool, len(applied))
		for _, id := range applied {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				snap.Bad = append(snap.Bad, fmt.Errorf("applied intent %q is no id", id))
				continue
			}
			snap.Applied[n] = true
		}
		for id, value := range orders {
			h, err := parseHeld(id, value)
			if err != nil {
				snap.Bad = append(snap.Bad, err)
				continue
			}
			snap.Orders = append(snap.Orders, h)
		}
		for _, x := range entries {
			e, err := queued.Parse(sale, x.ID, x.FieldValues)
			if err != nil {
				snap.Bad = append(snap.Bad, err)
				continue
			}
			snap.Outbox = append(snap.Outbox, e)
		}
		return nil
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of sale %d: %w", sale, err)
	}
	return snap, nil
}

func parseHeld(id, value string) (Held, error) {
	f := strings.SplitN(value, " ", 6)
	if len(f) != 6 {
		return Held{}, fmt.Errorf("reservation %s: %q has not six parts", id, value)
	}
	h := Held{ID: id, UID: f[0], Slots: f[2], Entry: f[3], Key: f[5]}
	var err1, err2 error
	h.Quantity, err1 = strconv.Atoi(f[1])
	h.At, err2 = strconv.ParseInt(f[4], 10, 64)
	if err1 != nil || err2 != nil {
		return h, fmt.Errorf("reservation %s: %q is no reservation", id, value)
	}
	return h, nil
}

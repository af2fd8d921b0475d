package reserve

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

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

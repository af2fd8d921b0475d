// Package gateways keeps what each gateway last reported of itself.
//
// A gateway reports to any backend, and an operator may look at any. So reports stand in one Redis hash, a field each: every process
// has Redis, and losing them costs nothing, for each gateway reports again within a second. MySQL would have a write a second and
// gateway that need not last. What this process took itself stays in memory, too: that is what there is to see while Redis is away.
package gateways

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/redis"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

const (
	// Max is how many gateways are kept. Reports taken at the same moment may bring a few more.
	Max = 200
	// Forget is after which silence a gateway is forgotten.
	Forget = time.Minute

	soonest = 500 * time.Millisecond // between two reports of a gateway that are written
)

// ErrFull says that Max other gateways have reported within Forget.
var ErrFull = errors.New("too many gateways report")

// Gateway is the last report of one.
type Gateway struct {
	wire.GatewayReport
	HeardAt wire.Time `json:"heard_at"` // by the backends' clock
}

// Store keeps the reports. It is safe for concurrent use.
type Store struct {
	redis *redis.Client
	clk   *clock.Clock

	mu    sync.Mutex         // guards taken
	taken map[string]Gateway // by this process, by name
}

// New makes a store that has taken nothing.
func New(r *redis.Client, clk *clock.Clock) *Store {
	return &Store{redis: r, clk: clk, taken: map[string]Gateway{}}
}

func (s *Store) key() string { return s.redis.Prefix() + "gateways" }

// Take keeps a report that was checked. One that comes too soon after the last of the same gateway is dropped. ErrFull.
func (s *Store) Take(ctx context.Context, r wire.GatewayReport) error {
	g := Gateway{r, wire.At(s.clk.Now())}
	s.mu.Lock()
	s.forget(s.taken)
	last, known := s.taken[r.Name]
	full := !known && len(s.taken) >= Max
	soon := known && last.Life == r.Life && g.HeardAt.Sub(last.HeardAt.Time) < soonest
	if !full && !soon {
		s.taken[r.Name] = g
	}
	s.mu.Unlock()
	if full {
		return ErrFull
	}
	if soon {
		return nil
	}
	value, err := json.Marshal(g)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	if !known { // to this process
		others, err := s.read(ctx)
		if err != nil {
			return err
		}
		if _, there := others[r.Name]; !there && len(others) >= Max {
			s.mu.Lock()
			delete(s.taken, r.Name)
			s.mu.Unlock()
			return ErrFull
		}
	}
	for _, answer := range s.redis.DoMulti(ctx,
		s.redis.B().Hset().Key(s.key()).FieldValue().FieldValue(r.Name, string(value)).Build(),
		s.redis.B().Pexpire().Key(s.key()).Milliseconds(Forget.Milliseconds()).Build()) {
		if err := answer.Error(); err != nil {
			return fmt.Errorf("keep the report of gateway %s: %w", r.Name, err)
		}
	}
	return nil
}

// List returns the last reports of all gateways, by name. With an error it returns those that this process took itself.
func (s *Store) List(ctx context.Context) ([]Gateway, error) {
	all, err := s.read(ctx)
	if err != nil {
		s.mu.Lock()
		s.forget(s.taken)
		all = maps.Clone(s.taken)
		s.mu.Unlock()
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Gateway) int { return cmp.Compare(a.Name, b.Name) }), err
}

// read returns what Redis has, and takes out of it whoever is silent.
func (s *Store) read(ctx context.Context) (map[string]Gateway, error) {
	fields, err := s.redis.Do(ctx, s.redis.B().Hgetall().Key(s.key()).Build()).AsStrMap()
	if err != nil {
		return nil, fmt.Errorf("reports of gateways: %w", err)
	}
	all := make(map[string]Gateway, len(fields))
	for name, value := range fields {
		var g Gateway
		if json.Unmarshal([]byte(value), &g) == nil { // another version may write otherwise
			all[name] = g
		}
	}
	s.forget(all)
	var silent []string
	for name := range fields {
		if _, ok := all[name]; !ok {
			silent = append(silent, name)
		}
	}
	if len(silent) > 0 { // one that comes back meanwhile reports again
		_ = s.redis.Do(ctx, s.redis.B().Hdel().Key(s.key()).Field(silent...).Build()).Error() // the next reader tries again
	}
	return all, nil
}

func (s *Store) forget(all map[string]Gateway) {
	now := s.clk.Now()
	maps.DeleteFunc(all, func(_ string, g Gateway) bool { return now.Sub(g.HeardAt.Time) >= Forget })
}

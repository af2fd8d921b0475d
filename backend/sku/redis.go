package sku

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
)

// keys are the names of a SKU's keys in Redis, under one hash tag.
type keys struct{ state, orders, open, applied string }

func keysOf(redis *redis.Client, sku int64) keys {
	base := redis.Prefix() + "{sku:" + strconv.FormatInt(sku, 10) + "}:"
	return keys{base + "state", base + "orders", base + "open", base + "applied"}
}

func (k keys) all() []string { return []string{k.state, k.orders, k.open, k.applied} }

// held are the keys of sku_lock.lua and sku_unlock.lua.
func (k keys) held() []string { return []string{k.state, k.orders, k.open} }

// ErrLoading: the SKU is being brought into Redis: keep the intent, ask again.
var ErrLoading = errors.New("the SKU is being loaded into redis")

// EndLock gives the units of a hold back in Redis (lua.ToBack) or says that they are sold (lua.ToSold). Idempotent. A SKU that is
// not in Redis needs none: loading it brings what MySQL has. ErrLoading.
func EndLock(ctx context.Context, redis *redis.Client, h Hold, to string) error {
	reply, err := redis.Call(ctx, lua.SKUUnlock, keysOf(redis, h.SKU).held(), h.Order, h.Lock, to)
	if err != nil {
		return fmt.Errorf("unlock order %s at SKU %d: %w", h.Order, h.SKU, err)
	}
	if reply.Answer() == lua.GateClosed {
		return ErrLoading
	}
	return nil
}

// Adjust changes a SKU's available units in Redis, once for each intent. A SKU that is not in Redis needs none. ErrLoading.
func Adjust(ctx context.Context, redis *redis.Client, sku, intent, units int64) error {
	k := keysOf(redis, sku)
	reply, err := redis.Call(ctx, lua.SKUAdjust, []string{k.state, k.applied}, strconv.FormatInt(intent, 10), strconv.FormatInt(units, 10))
	if err != nil {
		return fmt.Errorf("adjust SKU %d by %d: %w", sku, units, err)
	}
	if reply.Answer() == lua.GateClosed {
		return ErrLoading
	}
	return nil
}

// Line is units of a SKU.
type Line struct{ SKU, Units int64 }

// Verdict is what sku_lock.lua answered for a line.
type Verdict struct {
	Answer lua.Answer // Reduced, AlreadyApplied, NotEnough, NotLoaded
	Lock   string     // of the first two
}

// Epoch is that of a lock: MySQL is asked in it. -1 for what is no lock.
func Epoch(lock string) int64 {
	epoch, _, _ := strings.Cut(lock, ".")
	n, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Lock locks units for an order, each line by itself, in one pipeline: the SKUs may live in different slots. It may be
// repeated. redis.ErrRestarted: a Redis locks nothing before Keep was there, and Wake was called. After any error some lines
// may be locked.
func (s *Cache) Lock(ctx context.Context, order string, lines []Line) ([]Verdict, error) {
	calls := make([]redis.Args, len(lines))
	for i, l := range lines {
		calls[i] = redis.Args{Keys: keysOf(s.redis, l.SKU).held(), Args: []string{order, strconv.FormatInt(l.Units, 10)}}
	}
	script := s.redis.Incarnation().Lock
	replies, err := s.redis.CallAll(ctx, script, calls)
	if err != nil {
		if errors.Is(err, redis.ErrRestarted) {
			s.Wake()
		}
		return nil, fmt.Errorf("lock %d SKUs for order %s: %w", len(lines), order, err)
	}
	verdicts := make([]Verdict, len(lines))
	for i, reply := range replies {
		v := &verdicts[i]
		if v.Answer = reply.Answer(); v.Answer == lua.Reduced || v.Answer == lua.AlreadyApplied {
			v.Lock = reply.Text(3)
		}
	}
	return verdicts, nil
}

// Hold is a lock that an order has on units of a SKU in Redis.
type Hold struct {
	SKU         int64
	Order, Lock string
}

// Unlock gives the units of holds back, or says that they are sold, and reports how many holds are over. Those of a SKU
// that is being loaded stay.
func (s *Cache) Unlock(ctx context.Context, to string, holds ...Hold) (n int, err error) {
	var errs []error
	for _, h := range holds {
		switch err := EndLock(ctx, s.redis, h, to); {
		case err == nil:
			n++
		case !errors.Is(err, ErrLoading):
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

// Due returns holds of these SKUs that were locked before a moment and that nobody has Compared, at most most of each SKU.
func (s *Cache) Due(ctx context.Context, skus []int64, before time.Time, most int64) ([]Hold, error) {
	if len(skus) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis
	commands := make(rueidis.Commands, len(skus))
	for i, sku := range skus {
		commands[i] = c.B().Zrange().Key(keysOf(s.redis, sku).open).Min("-inf").Max(strconv.FormatInt(before.UnixMilli(), 10)).Byscore().Limit(0, most).Build()
	}
	var due []Hold
	for i, r := range c.DoMulti(ctx, commands...) {
		orders, err := r.AsStrSlice()
		if err != nil {
			return nil, fmt.Errorf("holds of SKU %d: %w", skus[i], err)
		}
		for _, order := range orders {
			due = append(due, Hold{SKU: skus[i], Order: order})
		}
	}
	commands = commands[:0]
	for _, h := range due {
		commands = append(commands, c.B().Hget().Key(keysOf(s.redis, h.SKU).orders).Field(h.Order).Build())
	}
	for i, r := range c.DoMulti(ctx, commands...) {
		value, err := r.ToString()
		if err != nil && !rueidis.IsRedisNil(err) { // it may be over by now: then nothing ends it again
			return nil, fmt.Errorf("lock of order %s at SKU %d: %w", due[i].Order, due[i].SKU, err)
		}
		_, due[i].Lock, _ = strings.Cut(value, " ")
	}
	return due, nil
}

// Compared notes that MySQL has what these holds stand for: the end of the order ends them.
func (s *Cache) Compared(ctx context.Context, holds []Hold) error {
	if len(holds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis
	commands := make(rueidis.Commands, len(holds))
	for i, h := range holds {
		commands[i] = c.B().Zrem().Key(keysOf(s.redis, h.SKU).open).Member(h.Order).Build()
	}
	for i, r := range c.DoMulti(ctx, commands...) {
		if err := r.Error(); err != nil {
			return fmt.Errorf("hold of order %s at SKU %d: %w", holds[i].Order, holds[i].SKU, err)
		}
	}
	return nil
}

// State is a SKU as Redis has it: available + locked + sold = total.
type State struct {
	Gate                           string // "" where it is not there, lua.GateOpen, or lua.GateShut while it is being loaded
	Epoch                          int64
	Available, Locked, Sold, Total int64
	Floor                          int64 // the newest intent that the load included
	until                          int64 // when who is loading it may be taken over, in milliseconds
}

func parseState(m map[string]string) State {
	num := func(name string) int64 { n, _ := strconv.ParseInt(m[name], 10, 64); return n }
	return State{Gate: m["gate"], Epoch: num("epoch"), Available: num("available"), Locked: num("locked"), Sold: num("sold"), Total: num("total"), Floor: num("floor"), until: num("until")}
}

// states reads several SKUs in one round trip.
func (s *Cache) states(ctx context.Context, skus []int64) ([]State, error) {
	if len(skus) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := s.redis
	commands := make(rueidis.Commands, len(skus))
	for i, sku := range skus {
		commands[i] = c.B().Hgetall().Key(keysOf(s.redis, sku).state).Build()
	}
	out := make([]State, len(skus))
	for i, r := range c.DoMulti(ctx, commands...) {
		m, err := r.AsStrMap()
		if err != nil {
			return nil, fmt.Errorf("state of SKU %d: %w", skus[i], err)
		}
		out[i] = parseState(m)
	}
	return out, nil
}

// Snapshot is all of a SKU in Redis, read in one moment.
type Snapshot struct {
	State   State
	Orders  map[string]int64 // order id -> units that it has locked
	Locks   map[string]string
	Open    map[string]int64 // of them, those that nobody has Compared: since when, in milliseconds
	Applied map[int64]bool   // intents above Floor that the numbers include
}

// Read reads all of a SKU in Redis in one MULTI: for auditing.
func Read(ctx context.Context, client *redis.Client, sku int64) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*redis.Timeout)
	defer cancel()
	k := keysOf(client, sku)
	snap := Snapshot{Orders: map[string]int64{}, Locks: map[string]string{}, Open: map[string]int64{}, Applied: map[int64]bool{}}
	err := client.Dedicated(func(c rueidis.DedicatedClient) error {
		all, err := redis.Multi(ctx, c,
			c.B().Hgetall().Key(k.state).Build(),
			c.B().Hgetall().Key(k.orders).Build(),
			c.B().Zrange().Key(k.open).Min("0").Max("-1").Withscores().Build(),
			c.B().Smembers().Key(k.applied).Build())
		if err != nil {
			return err
		}
		state, err1 := all[0].AsStrMap()
		orders, err2 := all[1].AsStrMap()
		open, err3 := all[2].AsZScores()
		applied, err4 := all[3].AsStrSlice()
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		snap.State = parseState(state)
		for order, value := range orders {
			units, lock, _ := strings.Cut(value, " ")
			snap.Locks[order] = lock
			if snap.Orders[order], err = strconv.ParseInt(units, 10, 64); err != nil {
				return fmt.Errorf("order %s has %q units", order, units)
			}
		}
		for _, z := range open {
			snap.Open[z.Member] = int64(z.Score)
		}
		for _, id := range applied {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				return fmt.Errorf("applied intent %q is no id", id)
			}
			snap.Applied[n] = true
		}
		return nil
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of SKU %d: %w", sku, err)
	}
	return snap, nil
}

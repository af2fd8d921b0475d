package reserve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
)

// Lookup reads one reservation; false if there is none. That is certain only while the gate is open, in the incarnation
// in use: ErrGateClosed says that the reservations are being written anew, or have to be, and this one was not among them,
// ErrNotLoaded that none of the sale's is there.
func (s *Store) Lookup(ctx context.Context, sale int64, orderID string) (Held, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	b := s.client.B()
	gate := b.Hmget().Key(s.state(sale)).Field("gate", "token").Build().Pin() // asked twice: it may move in between
	r := s.client.DoMulti(ctx, gate, b.Hget().Key(s.orders(sale)).Field(orderID).Build(), s.whole(sale), gate)
	value, err := r[1].ToString()
	if err == nil {
		h, err := parseHeld(orderID, value)
		return h, err == nil, err
	}
	if !rueidis.IsRedisNil(err) {
		return Held{}, false, fmt.Errorf("reservation %s: %w", orderID, err)
	}
	before, err1 := r[0].AsStrSlice()
	whole, err3 := isWhole(r[2])
	after, err2 := r[3].AsStrSlice()
	if err := errors.Join(err1, err2, err3); err != nil {
		return Held{}, false, fmt.Errorf("reservation %s: the gate of sale %d: %w", orderID, sale, err)
	}
	switch {
	case whole && before[0] == lua.GateOpen && slices.Equal(before, after):
		return Held{}, false, nil
	case before[0] == "" && after[0] == "":
		return Held{}, false, ErrNotLoaded
	default:
		return Held{}, false, ErrGateClosed
	}
}

// whole asks whether the sale's gate is not closed in the incarnation in use: by sale_adopt.lua in an epoch that never is, which does
// nothing. A Redis that was started anew, or a replica that was promoted, does not know the script. Its gate may be open still,
// as it was in its older copy, until a reconciler closes it.
func (s *Store) whole(sale int64) rueidis.Completed {
	return s.client.B().Evalsha().Sha1(s.client.Incarnation().Adopt.SHA).Numkeys(5).
		Key(s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.OutboxKey(sale)).Arg("no epoch").Build()
}

func isWhole(r rueidis.RedisResult) (bool, error) {
	reply, err := redis.Reply(r)
	if errors.Is(err, redis.ErrRestarted) {
		return false, nil
	}
	return err == nil && reply.Answer() == lua.StaleEpoch, err
}

// OrdersOf returns the ids of the orders that hold a buyer's slots in each of the sales, in one round trip. Of those in unsure
// there may be more: the gate is not open in the incarnation in use, so the slots are being written anew, or have to be, or
// are not there.
func (s *Store) OrdersOf(ctx context.Context, sales []int64, uid string) (held map[int64][]string, unsure []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	b := s.client.B()
	cmds := make(rueidis.Commands, 0, 4*len(sales))
	for _, id := range sales {
		gate := b.Hmget().Key(s.state(id)).Field("gate", "token").Build().Pin() // asked twice: it may move in between
		cmds = append(cmds, gate, b.Hget().Key(s.buyers(id)).Field(uid).Build(), s.whole(id), gate)
	}
	r := s.client.DoMulti(ctx, cmds...)
	held = map[int64][]string{}
	for i, id := range sales {
		before, err1 := r[4*i].AsStrSlice()
		value, err2 := r[4*i+1].ToString()
		whole, err4 := isWhole(r[4*i+2])
		after, err3 := r[4*i+3].AsStrSlice()
		if rueidis.IsRedisNil(err2) {
			err2 = nil
		}
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, nil, fmt.Errorf("orders of uid %s in sale %d: %w", uid, id, err)
		}
		if !whole || before[0] != lua.GateOpen || !slices.Equal(before, after) {
			unsure = append(unsure, id)
		}
		for pair := range strings.SplitSeq(value, ",") {
			if _, order, ok := strings.Cut(pair, "="); ok && !slices.Contains(held[id], order) {
				held[id] = append(held[id], order)
			}
		}
	}
	return held, unsure, nil
}

// Accepted is the order that a buyer's Idempotency-Key made, and its units; false if it made none, as far as Redis knows:
// nothing is known of a sale that is not loaded.
func (s *Store) Accepted(ctx context.Context, sale int64, uid, key string) (orderID string, quantity int, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	value, err := s.client.Do(ctx, s.client.B().Hget().Key(s.idem(sale)).Field(uid+":"+key).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", 0, false, nil
	}
	if err != nil {
		return "", 0, false, fmt.Errorf("key of uid %s in sale %d: %w", uid, sale, err)
	}
	orderID, units, _ := strings.Cut(value, " ")
	if quantity, err = strconv.Atoi(units); err != nil {
		return "", 0, false, fmt.Errorf("key of uid %s in sale %d: %q: %w", uid, sale, value, err)
	}
	return orderID, quantity, true, nil
}

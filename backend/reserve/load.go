package reserve

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
)

// Shut closes a sale's gate for the reconciler with this token, and says whether the sale was in Redis before. ErrLost: a
// newer reconciler was here.
func (s *Store) Shut(ctx context.Context, sale, token int64) (present bool, err error) {
	return s.shut(ctx, s.client, sale, token)
}

func (s *Store) shut(ctx context.Context, conn rueidis.CoreClient, sale, token int64) (present bool, err error) {
	reply, err := redis.CallOn(ctx, conn, lua.SaleClose, []string{s.state(sale)}, strconv.FormatInt(token, 10))
	if err != nil {
		return false, fmt.Errorf("close sale %d: %w", sale, err)
	}
	if reply.Answer() == lua.Lost {
		return false, ErrLost
	}
	return reply.Int(1) == 1, nil
}

// Beat raises the beat of the reconciler with this token. ErrLost: the gate is not its own any more.
func (s *Store) Beat(ctx context.Context, sale, token int64) error {
	reply, err := s.client.Call(ctx, lua.SaleBeat, []string{s.state(sale)}, strconv.FormatInt(token, 10))
	if err != nil {
		return fmt.Errorf("beat of sale %d: %w", sale, err)
	}
	if reply.Answer() == lua.Lost {
		return ErrLost
	}
	return nil
}

// Loaded is what Load writes.
type Loaded struct {
	Definition
	Epoch   int64
	Stock   int64 // units that no reservation holds, unreleased tranches included
	Total   int64
	Orders  []Held
	Keys    []AcceptedKey // one for each order that has ended, Key may be ""; those of Orders are added by themselves
	Applied []int64       // intents that Stock includes
	Standby int64         // the newest place in the standby line; 0: nobody waits
}

// Held is one reservation.
type Held struct {
	ID, UID  string
	Quantity int
	Slots    string // "1,2"
	Entry    string // its id in the outbox, or "-"
	At       int64  // of the press, in milliseconds
	Key      string // Idempotency-Key or ""
}

// AcceptedKey is an Idempotency-Key and the order it made.
type AcceptedKey struct {
	UID, Key, OrderID string
	Quantity          int
}

const (
	loadStep  = 200 // reservations that one script call writes, at most: Redis answers nobody else meanwhile
	loadAhead = 8   // calls that are sent before the first of them is answered
)

// Load writes a sale behind the gate that token closed, and opens the gate to adopt. ErrLost: another reconciler took over.
// All of it goes over one connection: a Redis that is restarted half way, and forgot a part, ends it with an error.
func (s *Store) Load(ctx context.Context, sale, token int64, l Loaded) error {
	return s.client.Dedicated(func(c rueidis.DedicatedClient) error { return s.load(ctx, c, sale, token, l) })
}

func (s *Store) load(ctx context.Context, conn rueidis.CoreClient, sale, token int64, l Loaded) error {
	keys := []string{s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.applied(sale)}
	step := func(name string, args ...string) error {
		reply, err := redis.CallOn(ctx, conn, lua.SaleLoad, keys, append([]string{strconv.FormatInt(token, 10), name}, args...)...)
		if err != nil {
			return fmt.Errorf("load sale %d, step %s: %w", sale, name, err)
		}
		if reply.Answer() == lua.Lost {
			return ErrLost
		}
		return nil
	}
	if err := step(lua.StepBegin); err != nil {
		return err
	}
	ended := map[string]int{}
	var idem []AcceptedKey
	for _, k := range l.Keys {
		ended[k.UID]++
		if k.Key != "" {
			idem = append(idem, k)
		}
	}
	var args []string
	var calls [][]string
	flush := func(name string, width, most int) error {
		if len(args) < most*width {
			return nil
		}
		if len(args) > 0 {
			calls = append(calls, append([]string{strconv.FormatInt(token, 10), name}, args...))
			args = args[:0]
		}
		if most > 0 && len(calls) < loadAhead {
			return nil
		}
		err := loadAll(ctx, conn, keys, calls)
		calls = calls[:0]
		if err != nil && !errors.Is(err, ErrLost) {
			err = fmt.Errorf("load sale %d, step %s: %w", sale, name, err)
		}
		return err
	}
	for _, o := range l.Orders {
		args = append(args, o.ID, o.UID, strconv.Itoa(o.Quantity), o.Slots, o.Entry, strconv.FormatInt(o.At, 10), o.Key)
		if o.Key != "" {
			idem = append(idem, AcceptedKey{o.UID, o.Key, o.ID, o.Quantity})
		}
		if err := flush(lua.StepOrders, 7, loadStep); err != nil {
			return err
		}
	}
	if err := flush(lua.StepOrders, 7, 0); err != nil {
		return err
	}
	for _, k := range idem {
		args = append(args, k.UID+":"+k.Key, k.OrderID+" "+strconv.Itoa(k.Quantity))
		if err := flush(lua.StepKeys, 2, loadStep); err != nil {
			return err
		}
	}
	for uid, n := range ended {
		args = append(args, uid, strconv.Itoa(n))
		if err := flush(lua.StepKeys, 2, loadStep); err != nil {
			return err
		}
	}
	if err := flush(lua.StepKeys, 2, 0); err != nil {
		return err
	}
	for _, id := range l.Applied {
		args = append(args, strconv.FormatInt(id, 10))
		if err := flush(lua.StepIntent, 1, loadStep); err != nil {
			return err
		}
	}
	if err := flush(lua.StepIntent, 1, 0); err != nil {
		return err
	}
	failpoint.Hit("reconcile.mid-write")
	finish := []string{strconv.FormatInt(l.Epoch, 10), strconv.FormatInt(l.Stock, 10), strconv.FormatInt(l.Total, 10)}
	finish = append(finish, l.args()...)
	return step(lua.StepFinish, append(finish, strconv.FormatInt(l.Version, 10), strconv.FormatInt(l.Standby, 10))...)
}

// loadAll makes calls of sale_load.lua in one pipeline. Any of them may be done after an error.
func loadAll(ctx context.Context, conn rueidis.CoreClient, keys []string, calls [][]string) error {
	if len(calls) == 0 {
		return nil
	}
	all, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	commands := make(rueidis.Commands, len(calls))
	for i, args := range calls {
		commands[i] = conn.B().Evalsha().Sha1(lua.SaleLoad.SHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
	for i, r := range conn.DoMulti(all, commands...) {
		reply, err := redis.Reply(r)
		if errors.Is(err, redis.ErrRestarted) { // it was not done, for the script is not there
			reply, err = redis.CallOn(ctx, conn, lua.SaleLoad, keys, calls[i]...)
		}
		if err != nil {
			return err
		}
		if reply.Answer() == lua.Lost {
			return ErrLost
		}
	}
	return nil
}

// Unlock opens the gate of a loaded sale. ErrLost: another reconciler took over, or the gate is open already.
func (s *Store) Unlock(ctx context.Context, sale, token int64) error {
	reply, err := s.client.Call(ctx, lua.SaleOpen, []string{s.state(sale)}, strconv.FormatInt(token, 10))
	if err != nil {
		return fmt.Errorf("open sale %d: %w", sale, err)
	}
	if reply.Answer() == lua.Lost {
		return ErrLost
	}
	return nil
}

// ErrQueued: a sale's outbox still holds orders.
var ErrQueued = errors.New("the outbox still holds orders of the sale")

// Forget takes every key of a sale out of Redis, in one moment. Only for a sale that MySQL has as archived, under the token that
// MySQL has then: see sale.Reader.ArchiveToken. ErrQueued: nothing was done, its orders must be settled and retired first. ErrLost: nothing was
// done, a reconciler with a newer token was here. Idempotent.
func (s *Store) Forget(ctx context.Context, sale, token int64) error {
	reply, err := s.client.Call(ctx, lua.SaleForget, s.all(sale), strconv.FormatInt(token, 10))
	if err != nil {
		return fmt.Errorf("forget sale %d: %w", sale, err)
	}
	if reply.Answer() == lua.Lost {
		return fmt.Errorf("forget sale %d under token %d, redis has %d: %w", sale, token, reply.Int(1), ErrLost)
	}
	if reply.Answer() == lua.Queued {
		return fmt.Errorf("forget sale %d, %d in the outbox: %w", sale, reply.Int(1), ErrQueued)
	}
	return nil
}

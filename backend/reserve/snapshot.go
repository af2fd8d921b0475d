package reserve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/redis"
	"floodgate.internal/lua"
)

// Snapshot is all of a sale in Redis, as of one moment.
type Snapshot struct {
	State  State
	Orders []Held
	Buyers map[string]string // uid -> "slot=order,..."
	// Outbox lacks entries that were retired since the moment: MySQL has their orders.
	Outbox []queued.Entry
	// Applied is the admin intents that State's stock and total include.
	Applied map[int64]bool
	Bad     []error // entries that are no orders
	Keys    int64   // that the sale has, of any kind
}

const (
	snapshotPage  = 500 // elements that one call reads, about: Redis answers nobody else meanwhile
	goneMost      = 500 // members of the list gone: see sale_release.lua
	snapshotTries = 5
)

// errMoved: a reading by pages cannot be made one of a moment. The next one may be.
var errMoved = errors.New("its orders were adopted or reloaded meanwhile, or more were released than Redis notes: ask again")

// Snapshot reads all of a sale by pages, while it goes on, and returns it as it was at the moment at which the reading began. While
// the gate is not open it is what was found, of no one moment, and State's gate says so.
//
// HSCAN finds all that is there from its beginning to its end. What was reserved since the moment has a newer outbox entry than the
// newest of that moment, and is left out. What was released since is in the list gone, and is put back.
func (s *Store) Snapshot(ctx context.Context, sale int64) (snap Snapshot, err error) {
	err = s.client.Dedicated(func(c rueidis.DedicatedClient) error { // one node, whose cursors they are
		for range snapshotTries {
			r := reading{store: s, conn: c, sale: sale}
			if snap, err = r.read(ctx); !errors.Is(err, errMoved) {
				break
			}
		}
		return err
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of sale %d: %w", sale, err)
	}
	return snap, nil
}

// reading is one reading of a sale.
type reading struct {
	store *Store
	conn  rueidis.DedicatedClient
	sale  int64

	// Of the moment:
	state  State
	keys   int64
	time   int64    // in milliseconds
	newest streamID // entry that the outbox ever had

	released int64  // that state counted when gone was read last
	gone     []Held // that were released since the moment
	bad      []error
}

func (r *reading) read(ctx context.Context) (Snapshot, error) {
	applied, err := r.begin(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	found, unread := map[string]Held{}, map[string]error{}
	err = r.scan(ctx, r.store.orders(r.sale), func(id, value string) {
		h, err := parseHeld(id, value)
		if err != nil {
			unread[id] = err
			return
		}
		if before, ok := found[id]; !ok || !r.since(before) { // an order that is adopted while it is read is found twice
			found[id] = h
		}
	})
	if err != nil {
		return Snapshot{}, err
	}
	buyers := map[string]string{}
	if err := r.scan(ctx, r.store.buyers(r.sale), func(uid, value string) { buyers[uid] = value }); err != nil {
		return Snapshot{}, err
	}
	since, err := r.reservedSince(ctx, found, buyers)
	if err != nil {
		return Snapshot{}, err
	}
	outbox, bad, err := r.store.outbox(ctx, r.conn, r.sale)
	if err != nil {
		return Snapshot{}, err
	}
	end, err := r.follow(ctx)
	if err != nil {
		return Snapshot{}, err
	}

	snap := Snapshot{State: r.state, Buyers: buyers, Applied: applied, Keys: r.keys, Bad: slices.Concat(r.bad, slices.Collect(maps.Values(unread)), bad)}
	if r.state.Gate == lua.GateOpen && end.Present && end.Gate != lua.GateOpen {
		snap.State = end
	}
	if snap.State.Gate == lua.GateOpen {
		if end.Token != r.state.Token || end.Epoch != r.state.Epoch {
			return Snapshot{}, errMoved
		}
		if err := r.rewind(found, buyers, since); err != nil {
			return Snapshot{}, err
		}
	}
	snap.Orders = slices.AppendSeq(make([]Held, 0, len(found)), maps.Values(found))
	for _, e := range outbox {
		if _, held := found[e.ID]; held || snap.State.Gate != lua.GateOpen || !r.after(e.Entry) { // held: adopted since
			snap.Outbox = append(snap.Outbox, e)
		}
	}
	return snap, nil
}

// begin reads the intents, and fixes the moment: of that moment are all intents, for a set that only grows has as many members.
func (r *reading) begin(ctx context.Context) (map[int64]bool, error) {
	for ctx.Err() == nil {
		ids := map[string]bool{}
		for cursor := uint64(0); ; {
			page, err := r.do(ctx, r.conn.B().Sscan().Key(r.store.applied(r.sale)).Cursor(cursor).Count(snapshotPage).Build())[0].AsScanEntry()
			if err != nil {
				return nil, err
			}
			for _, id := range page.Elements {
				ids[id] = true
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
		n, err := r.fix(ctx)
		if err != nil {
			return nil, err
		}
		if n != int64(len(ids)) && r.state.Gate == lua.GateOpen {
			continue
		}
		r.bad = nil
		applied := make(map[int64]bool, len(ids))
		for id := range ids {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				r.bad = append(r.bad, fmt.Errorf("applied intent %q is no id", id))
				continue
			}
			applied[n] = true
		}
		return applied, nil
	}
	return nil, ctx.Err()
}

// fix reads what is of bounded size in one moment, and returns how many intents are applied.
func (r *reading) fix(ctx context.Context) (applied int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	s, b := r.store, r.conn.B()
	all, err := redis.Multi(ctx, r.conn,
		b.Hgetall().Key(s.state(r.sale)).Build(),
		b.Exists().Key(s.all(r.sale)...).Build(),
		b.Scard().Key(s.applied(r.sale)).Build(),
		b.Time().Build(),
		b.XinfoStream().Key(s.OutboxKey(r.sale)).Build())
	if err != nil {
		return 0, err
	}
	state, err1 := all[0].AsStrMap()
	keys, err2 := all[1].AsInt64()
	applied, err3 := all[2].AsInt64()
	now, err4 := all[3].AsIntSlice()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return 0, err
	}
	r.state, r.keys, r.time = parseState(state), keys, now[0]*1000+now[1]/1000
	r.released, _ = strconv.ParseInt(state["released"], 10, 64)
	// A stream that is not there, or was made anew, does not know what entries it had.
	r.newest = streamID{uint64(r.time) - 1, ^uint64(0)}
	if info, err := all[4].AsMap(); err == nil {
		last := info["last-generated-id"]
		if id, err := last.ToString(); err == nil && id != "" && id != "0-0" {
			r.newest = parseStreamID(id)
		}
	} else if _, said := rueidis.IsRedisErr(err); !said {
		return 0, err
	}
	return applied, nil
}

// scan reads a hash by pages, and follows what is released meanwhile. f may be called twice for a field.
func (r *reading) scan(ctx context.Context, key string, f func(field, value string)) error {
	for cursor := uint64(0); ; {
		rs := r.do(ctx, r.conn.B().Hscan().Key(key).Cursor(cursor).Count(snapshotPage).Build())
		page, err := rs[0].AsScanEntry()
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			f(page.Elements[i], page.Elements[i+1])
		}
		if err := r.followed(ctx, rs[1]); err != nil {
			return err
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

// do runs a command, and asks how many were released.
func (r *reading) do(ctx context.Context, command rueidis.Completed) []rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	return r.conn.DoMulti(ctx, command, r.conn.B().Hget().Key(r.store.state(r.sale)).Field("released").Build())
}

// followed reads the list gone, if more were released than is known.
func (r *reading) followed(ctx context.Context, released rueidis.RedisResult) error {
	n, err := released.AsInt64()
	if err != nil && !rueidis.IsRedisNil(err) {
		return err
	}
	if n != r.released {
		_, err = r.follow(ctx)
		return err
	}
	return nil
}

// follow notes what was released since the last call, and returns the state.
func (r *reading) follow(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	all, err := redis.Multi(ctx, r.conn,
		r.conn.B().Hgetall().Key(r.store.state(r.sale)).Build(), r.conn.B().Lrange().Key(r.store.gone(r.sale)).Start(-goneMost).Stop(-1).Build())
	if err != nil {
		return State{}, err
	}
	state, err1 := all[0].AsStrMap()
	gone, err2 := all[1].AsStrSlice()
	if err := errors.Join(err1, err2); err != nil {
		return State{}, err
	}
	released, _ := strconv.ParseInt(state["released"], 10, 64)
	if more := released - r.released; more > int64(len(gone)) || more < 0 {
		return State{}, errMoved
	} else {
		gone = gone[int64(len(gone))-more:]
	}
	r.released = released
	for _, text := range gone {
		id, value, _ := strings.Cut(text, " ")
		h, err := parseHeld(id, value)
		if err != nil {
			r.bad = append(r.bad, err)
			continue
		}
		r.gone = append(r.gone, h)
	}
	return parseState(state), nil
}

// reservedSince returns those orders of the buyers' slots that were reserved after the moment, and that Redis holds. The reading of the
// orders may have missed them.
func (r *reading) reservedSince(ctx context.Context, found map[string]Held, buyers map[string]string) (map[string]Held, error) {
	var unknown []string
	since := map[string]Held{}
	for _, value := range buyers {
		for _, pair := range strings.Split(value, ",") {
			_, id, _ := strings.Cut(pair, "=")
			if h, ok := found[id]; !ok {
				unknown = append(unknown, id)
			} else if r.since(h) {
				since[id] = h
			}
		}
	}
	for ids := range slices.Chunk(unknown, snapshotPage) {
		rs := r.do(ctx, r.conn.B().Hmget().Key(r.store.orders(r.sale)).Field(ids...).Build())
		values, err := rs[0].ToArray()
		if err != nil {
			return nil, err
		}
		for i, v := range values {
			if value, err := v.ToString(); err == nil {
				if h, err := parseHeld(ids[i], value); err == nil && r.since(h) {
					since[h.ID] = h
				}
			}
		}
		if err := r.followed(ctx, rs[1]); err != nil {
			return nil, err
		}
	}
	return since, nil
}

// rewind makes of what was found what was there at the moment.
func (r *reading) rewind(found map[string]Held, buyers map[string]string, since map[string]Held) error {
	for id, h := range found {
		if r.since(h) {
			since[id] = h
			delete(found, id)
		}
	}
	for _, h := range r.gone {
		if r.since(h) {
			since[h.ID] = h
		} else {
			found[h.ID] = h
		}
	}
	for _, h := range since {
		if h.At < r.time { // it is older than its entry: it was adopted since, and may have been held before under another
			return errMoved
		}
		r.slots(buyers, h, false)
	}
	for _, h := range r.gone {
		if !r.since(h) {
			r.slots(buyers, h, true)
		}
	}
	return nil
}

// slots gives the slots of a reservation to its buyer, or takes them away, where they are not so already.
func (r *reading) slots(buyers map[string]string, h Held, give bool) {
	pairs := strings.Split(buyers[h.UID], ",")
	if buyers[h.UID] == "" {
		pairs = nil
	}
	for _, slot := range strings.Split(h.Slots, ",") {
		pair := slot + "=" + h.ID
		i := slices.Index(pairs, pair)
		switch {
		case give && i < 0:
			pairs = append(pairs, pair)
		case !give && i >= 0:
			pairs = slices.Delete(pairs, i, i+1)
		}
	}
	if len(pairs) == 0 {
		delete(buyers, h.UID)
	} else {
		buyers[h.UID] = strings.Join(pairs, ",")
	}
}

// since reports whether a reservation was written after the moment.
func (r *reading) since(h Held) bool { return h.Entry != "-" && r.after(h.Entry) }

func (r *reading) after(entry string) bool { return parseStreamID(entry).compare(r.newest) > 0 }

// streamID is the id of an entry of a stream.
type streamID struct{ ms, n uint64 }

func parseStreamID(text string) (id streamID) {
	ms, n, _ := strings.Cut(text, "-")
	id.ms, _ = strconv.ParseUint(ms, 10, 64)
	id.n, _ = strconv.ParseUint(n, 10, 64)
	return id
}

func (id streamID) compare(other streamID) int {
	return cmp.Or(cmp.Compare(id.ms, other.ms), cmp.Compare(id.n, other.n))
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

package reserve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
)

// Shut closes a sale's gate for the reconciler with this token, and says whether the sale was in Redis before. ErrLost: a
// newer reconciler was here.
func (s *Store) Shut(ctx context.Context, sale, token int64) (present bool, err error) {
	list, err := s.call(ctx, lua.Close, []string{s.state(sale)}, strconv.FormatInt(token, 10))
	if err != nil {
		return false, fmt.Errorf("close sale %d: %w", sale, err)
	}
	if word(list) == lua.Lost {
		return false, ErrLost
	}
	return number(list, 1) == 1, nil
}

// Loaded is what Load writes.
type Loaded struct {
	Definition
	Epoch   int64
	Stock   int64 // units that no reservation holds, unreleased tranches included
	Total   int64
	Orders  []Held
	Keys    []AcceptedKey // of orders that no longer hold anything; those of Orders are added by themselves
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

// loadStep is how many reservations one script call writes, at most: Redis answers nobody else meanwhile.
const loadStep = 500

// Load writes a sale behind the gate that token closed, and opens the gate to adopt. ErrLost: another reconciler took over.
// All of it goes over one connection: a Redis that is restarted half way, and forgot a part, ends it with an error.
func (s *Store) Load(ctx context.Context, sale, token int64, l Loaded) error {
	return s.client.Dedicated(func(c rueidis.DedicatedClient) error { return s.load(ctx, c, sale, token, l) })
}

func (s *Store) load(ctx context.Context, c rueidis.CoreClient, sale, token int64, l Loaded) error {
	keys := []string{s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.applied(sale)}
	step := func(name string, args ...string) error {
		r, err := runOn(ctx, c, lua.Load, keys, append([]string{strconv.FormatInt(token, 10), name}, args...))
		if err != nil {
			return fmt.Errorf("load sale %d, step %s: %w", sale, name, err)
		}
		words, err := r.AsStrSlice()
		if err != nil || len(words) == 0 {
			return fmt.Errorf("load sale %d, step %s: no answer: %w", sale, name, err)
		}
		if words[0] == lua.Lost {
			return ErrLost
		}
		return nil
	}
	if err := step(lua.StepBegin); err != nil {
		return err
	}
	idem := slices.Clone(l.Keys)
	var args []string
	flush := func(name string, width, most int) error {
		if len(args) == 0 || len(args) < most*width {
			return nil
		}
		err := step(name, args...)
		args = args[:0]
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

// Unlock opens the gate of a loaded sale. ErrLost: another reconciler took over, or the gate is open already.
func (s *Store) Unlock(ctx context.Context, sale, token int64) error {
	r, err := s.run(ctx, lua.Open, []string{s.state(sale)}, []string{strconv.FormatInt(token, 10)})
	if err != nil {
		return fmt.Errorf("open sale %d: %w", sale, err)
	}
	words, err := r.AsStrSlice()
	if err != nil || len(words) == 0 {
		return fmt.Errorf("open sale %d: no answer: %w", sale, err)
	}
	if words[0] == lua.Lost {
		return ErrLost
	}
	return nil
}

// Armed reports whether every Redis node knows the reserve.lua of the life that is believed in: one that does not was started
// or has taken over since, and the gates of its sales must be closed before Arm.
func (s *Store) Armed(ctx context.Context) (bool, error) {
	l := s.Life()
	defer l.End()
	return l.Armed(ctx)
}

// Arm is a Life's, which is believed in then, whatever MySQL has, and the life's reduce.lua: for who is alone with this store.
func (s *Store) Arm(ctx context.Context) error {
	l := s.Life()
	defer l.End()
	name, err := l.Arm(ctx)
	if err != nil {
		return err
	}
	s.Believe(name)
	return l.Teach(ctx, lua.ReduceIn(name))
}

// Life is the present life of every Redis node, held by a connection to each: when one is restarted, everything fails.
// So a gate that was closed before an Arm that ends well was closed in the life that it names.
type Life struct {
	store *Store
	nodes []node
}

type node struct {
	addr string
	c    rueidis.DedicatedClient
	end  func()
}

// Life begins to hold; End must be called.
func (s *Store) Life() *Life {
	l := Life{store: s}
	for addr, n := range s.client.Nodes() {
		c, end := n.Dedicate()
		l.nodes = append(l.nodes, node{addr, c, end})
	}
	return &l
}

// End lets go.
func (l *Life) End() {
	for _, n := range l.nodes {
		n.end()
	}
}

// Armed is the Store's.
func (l *Life) Armed(ctx context.Context) (bool, error) {
	return l.Knows(ctx, l.store.life.Load().reserve)
}

// Knows reports whether every node knows a script.
func (l *Life) Knows(ctx context.Context, script lua.Script) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	all := true
	for _, n := range l.nodes {
		known, err := n.c.Do(ctx, n.c.B().ScriptExists().Sha1(script.SHA).Build()).AsIntSlice()
		if err != nil {
			return false, fmt.Errorf("redis %s: SCRIPT EXISTS: %w", n.addr, err)
		}
		all = all && known[0] == 1
	}
	return all, nil
}

// Arm gives this life a name that no other has, and loads its adopt.lua and then its reserve.lua into every node. Only for a
// reconciler, after it has closed the gate of every live sale. Nobody calls them before the life is believed in.
func (l *Life) Arm(ctx context.Context) (name string, err error) {
	name = uuid.NewString()
	if err := l.Teach(ctx, lua.AdoptIn(name)); err != nil {
		return "", err
	}
	return name, l.Teach(ctx, lua.ReserveIn(name))
}

// Teach loads a script into every node.
func (l *Life) Teach(ctx context.Context, script lua.Script) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for _, n := range l.nodes {
		if err := n.c.Do(ctx, n.c.B().ScriptLoad().Script(script.Source).Build()).Error(); err != nil {
			return fmt.Errorf("redis %s: SCRIPT LOAD: %w", n.addr, err)
		}
	}
	return nil
}

// State is a sale as Redis has it.
type State struct {
	Definition
	Present bool
	Gate    string
	Token   int64
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
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	cmds := make(rueidis.Commands, len(sales))
	for i, id := range sales {
		cmds[i] = s.client.B().Hgetall().Key(s.state(id)).Build()
	}
	out := make([]State, len(sales))
	for i, r := range s.client.DoMulti(ctx, cmds...) {
		m, err := r.AsStrMap()
		if err != nil {
			return nil, fmt.Errorf("state of sale %d: %w", sales[i], err)
		}
		out[i] = parseState(m)
	}
	return out, nil
}

func parseState(m map[string]string) State {
	if m["gate"] == "" {
		return State{}
	}
	num := func(name string) int64 { n, _ := strconv.ParseInt(m[name], 10, 64); return n }
	st := State{Present: true, Gate: m["gate"], Token: num("token"), Epoch: num("epoch"), Stock: num("stock"), Total: num("total"), Standby: num("standby"),
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
	Outbox []Entry
	// Applied is the admin intents that State's stock and total include.
	Applied map[int64]bool
	Bad     []error // entries that are no orders
	Keys    int64   // that the sale has, of any kind
}

// Snapshot reads all of a sale in one MULTI: for reconciling and auditing.
func (s *Store) Snapshot(ctx context.Context, sale int64) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*Timeout)
	defer cancel()
	var snap Snapshot
	err := s.client.Dedicated(func(c rueidis.DedicatedClient) error {
		rs := c.DoMulti(ctx,
			c.B().Multi().Build(),
			c.B().Hgetall().Key(s.state(sale)).Build(),
			c.B().Hgetall().Key(s.orders(sale)).Build(),
			c.B().Hgetall().Key(s.buyers(sale)).Build(),
			c.B().Xrange().Key(s.OutboxKey(sale)).Start("-").End("+").Build(),
			c.B().Smembers().Key(s.applied(sale)).Build(),
			c.B().Exists().Key(s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.OutboxKey(sale), s.applied(sale)).Build(),
			c.B().Exec().Build())
		for _, r := range rs {
			if err := r.Error(); err != nil {
				return err
			}
		}
		all, err := rs[len(rs)-1].ToArray()
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
			e, err := ParseEntry(sale, x.ID, x.FieldValues)
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

// Lookup reads one reservation; false if there is none. That is certain only while the gate is open: ErrGateClosed says
// that the reservations are being written anew and this one was not among them, ErrNotLoaded that none of the sale's is there.
func (s *Store) Lookup(ctx context.Context, sale int64, orderID string) (Held, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	b := s.client.B()
	gate := b.Hmget().Key(s.state(sale)).Field("gate", "token").Build().Pin() // asked twice: it may move in between
	r := s.client.DoMulti(ctx, gate, b.Hget().Key(s.orders(sale)).Field(orderID).Build(), gate)
	value, err := r[1].ToString()
	if err == nil {
		h, err := parseHeld(orderID, value)
		return h, err == nil, err
	}
	if !rueidis.IsRedisNil(err) {
		return Held{}, false, fmt.Errorf("reservation %s: %w", orderID, err)
	}
	before, err1 := r[0].AsStrSlice()
	after, err2 := r[2].AsStrSlice()
	if err := errors.Join(err1, err2); err != nil {
		return Held{}, false, fmt.Errorf("reservation %s: the gate of sale %d: %w", orderID, sale, err)
	}
	switch {
	case before[0] == lua.GateOpen && slices.Equal(before, after):
		return Held{}, false, nil
	case before[0] == "" && after[0] == "":
		return Held{}, false, ErrNotLoaded
	default:
		return Held{}, false, ErrGateClosed
	}
}

// OrdersOf returns the ids of the orders that hold a buyer's slots in each of the sales, in one round trip. Of those in unsure
// there may be more: the gate is not open, so the slots are being written anew, or are not there.
func (s *Store) OrdersOf(ctx context.Context, sales []int64, uid string) (held map[int64][]string, unsure []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	b := s.client.B()
	cmds := make(rueidis.Commands, 0, 3*len(sales))
	for _, id := range sales {
		gate := b.Hmget().Key(s.state(id)).Field("gate", "token").Build().Pin() // asked twice: it may move in between
		cmds = append(cmds, gate, b.Hget().Key(s.buyers(id)).Field(uid).Build(), gate)
	}
	r := s.client.DoMulti(ctx, cmds...)
	held = map[int64][]string{}
	for i, id := range sales {
		before, err1 := r[3*i].AsStrSlice()
		value, err2 := r[3*i+1].ToString()
		after, err3 := r[3*i+2].AsStrSlice()
		if rueidis.IsRedisNil(err2) {
			err2 = nil
		}
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, nil, fmt.Errorf("orders of uid %s in sale %d: %w", uid, id, err)
		}
		if before[0] != lua.GateOpen || !slices.Equal(before, after) {
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

// ErrQueued: a sale's outbox still holds orders.
var ErrQueued = errors.New("the outbox still holds orders of the sale")

// Forget takes every key of a sale out of Redis, in one moment. Only for a sale that MySQL has as archived. ErrQueued:
// nothing was done, its orders must be settled and retired first. Idempotent.
func (s *Store) Forget(ctx context.Context, sale int64) error {
	list, err := s.call(ctx, lua.Forget, []string{s.state(sale), s.orders(sale), s.buyers(sale), s.idem(sale), s.OutboxKey(sale), s.applied(sale)})
	if err != nil {
		return fmt.Errorf("forget sale %d: %w", sale, err)
	}
	if word(list) == lua.Queued {
		return fmt.Errorf("forget sale %d, %d in the outbox: %w", sale, number(list, 1), ErrQueued)
	}
	return nil
}

// Join makes the consumer group of a sale's outbox, from its first entry on, where there is none; false: nothing of the
// sale is in Redis.
func (s *Store) Join(ctx context.Context, sale int64) (bool, error) {
	list, err := s.call(ctx, lua.Group, []string{s.state(sale), s.OutboxKey(sale)}, Group)
	if err != nil {
		return false, fmt.Errorf("make the group of sale %d's outbox: %w", sale, err)
	}
	return word(list) != lua.NotLoaded, nil
}

// Accepted is the order that a buyer's Idempotency-Key made, and its units; false if it made none, as far as Redis knows:
// nothing is known of a sale that is not loaded.
func (s *Store) Accepted(ctx context.Context, sale int64, uid, key string) (orderID string, quantity int, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
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

// outboxPage is how many entries one call reads of an outbox: Redis answers nobody else meanwhile.
const outboxPage = 500

// Outbox reads a sale's outbox, page by page: what is added or retired meanwhile may be in it or not. Bad are entries that
// are no orders.
func (s *Store) Outbox(ctx context.Context, sale int64) (entries []Entry, bad []error, err error) {
	for from := "-"; ; {
		page, err := s.outboxPage(ctx, sale, from)
		if err != nil {
			return nil, nil, fmt.Errorf("outbox of sale %d: %w", sale, err)
		}
		for _, x := range page {
			e, err := ParseEntry(sale, x.ID, x.FieldValues)
			if err != nil {
				bad = append(bad, err)
				continue
			}
			entries = append(entries, e)
		}
		if len(page) < outboxPage {
			return entries, bad, nil
		}
		from = "(" + page[len(page)-1].ID
	}
}

// Unheld are those of the entries whose orders this Redis itself does not hold. None where its reservations are not whole: a load of
// them has begun and not ended, or nobody has said yet that they are. Both are certain only behind a closed gate.
func (s *Store) Unheld(ctx context.Context, sale int64, entries []Entry) (map[string]bool, error) {
	unheld := map[string]bool{}
	b := s.client.B()
	for page := range slices.Chunk(entries, outboxPage) {
		ids := make([]string, len(page))
		for i, e := range page {
			ids[i] = e.ID
		}
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		r := s.client.DoMulti(ctx, b.Hmget().Key(s.orders(sale)).Field(ids...).Build(), b.Hget().Key(s.state(sale)).Field("whole").Build())
		cancel()
		held, err := r[0].ToArray()
		if err != nil {
			return nil, fmt.Errorf("reservations of sale %d: %w", sale, err)
		}
		whole, err := r[1].ToString() // after them: a load that began in between has said so
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, fmt.Errorf("reservations of sale %d: %w", sale, err)
		}
		if whole != "1" {
			return nil, nil
		}
		for i, h := range held {
			if h.IsNil() {
				unheld[ids[i]] = true
			}
		}
	}
	return unheld, nil
}

func (s *Store) outboxPage(ctx context.Context, sale int64, from string) ([]rueidis.XRangeEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return s.client.Do(ctx, s.client.B().Xrange().Key(s.OutboxKey(sale)).Start(from).End("+").Count(outboxPage).Build()).AsXRange()
}

// StrayEntries gives entries of a sale's outbox that were given to somebody before and are pending with nobody to consumer. It looks at
// most at a hundred that are at least that old, after an entry, "-" for the first ones, and says after which to go on.
func (s *Store) StrayEntries(ctx context.Context, sale int64, consumer, after string, old time.Duration) (next string, found []string, err error) {
	const most = "100"
	r, err := s.run(ctx, lua.Stray, []string{s.OutboxKey(sale)}, []string{Group, consumer, after, strconv.FormatInt(old.Milliseconds(), 10), most})
	var words []string
	if err == nil {
		words, err = r.AsStrSlice()
	}
	if err != nil || len(words) == 0 {
		return "", nil, fmt.Errorf("look for stray entries of sale %d: %w", sale, err)
	}
	return words[0], words[1:], nil
}

// SweepOutbox forgets consumers of a sale's outbox that hold nothing and have been silent for idle, but for those named.
func (s *Store) SweepOutbox(ctx context.Context, sale int64, idle time.Duration, keep ...string) error {
	_, err := s.run(ctx, lua.Sweep, []string{s.OutboxKey(sale)}, append([]string{Group, strconv.FormatInt(idle.Milliseconds(), 10)}, keep...))
	if err != nil {
		return fmt.Errorf("forget silent consumers of sale %d's outbox: %w", sale, err)
	}
	return nil
}

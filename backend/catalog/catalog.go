// Package catalog is the live sales in memory: what operators decided (from MySQL), what is available (from Redis), and what
// the public is told of both, as answers to readers and as the feed that gateways follow.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
)

// MaxArchived is how many archived sales are still told of, as ended: the newest. A sale archived before them is unknown to
// the public; its orders stay.
const MaxArchived = 1000

// How often MySQL and Redis are asked, and the clock is set.
const (
	definitionsEvery = 500 * time.Millisecond
	statesEvery      = 100 * time.Millisecond
	clockEvery       = time.Second
	wholeEvery       = 10 * time.Second // between two readings of sales none of which has changed
	publishEvery     = time.Second      // between two looks at what the public is told while nothing is known to have changed
	readTimeout      = 3 * time.Second
)

// How many turns of statesEvery lie between two readings of a sale. One that moves is read at each turn: its state was another at its
// last reading, somebody asked for a unit here, or its gate is not open. It is taken to move for a while after that.
const (
	movingTurns  = 20  // for how many turns a sale is taken to move
	soldOutTurns = 5   // nothing is left, and a unit may come back
	restingTurns = 100 // neither
)

var (
	// ErrUnknown: there is no such sale, or it is hidden.
	ErrUnknown = errors.New("no such sale")
	// ErrArchived: the sale is archived: it is over, and nothing of it is in Redis.
	ErrArchived = errors.New("the sale is archived")
	// ErrEmpty: the catalog has not been read yet.
	ErrEmpty = errors.New("the sales have not been read from mysql yet")
)

// Catalog keeps every live sale in memory, and of the archived ones the newest. It is safe for concurrent use.
type Catalog struct {
	db      *sql.DB
	redis   *reserve.Store
	clk     *clock.Clock
	log     *slog.Logger
	metrics metrics

	live    atomic.Pointer[view] // nil before the first read
	slot    chan struct{}        // of one: who holds it may read MySQL and install what was read
	changed chan struct{}        // of one: wakes Run to publish; never closed
	unknown absent
	over    absent // archived sales that are not in the view
	feed    feed
	turn    atomic.Int64 // counts readings of the states
	mark    sale.Mark    // of what is known; used by who holds the slot, like whole
	whole   time.Time    // when all sales were last read
	begun   time.Time    // New
	heard   atomic.Int64 // when MySQL last gave the sales, in nanoseconds after begun
}

// view is one reading of the sales; it is never changed.
type view struct {
	byID     map[int64]*item
	ids      []int64 // of the live sales, ascending
	items    []*item // the live sales, in this order
	archived []int64 // ascending
}

// item is a sale and what is known of its stock, which outlives the view.
type item struct {
	sale.Sale
	stock *stock
}

// stock is what Redis said of a sale's stock.
type stock struct {
	epoch     atomic.Int64
	known     atomic.Bool   // left and queued were read, or observed
	left      atomic.Int64  // units nobody holds, unreleased tranches included
	waited    atomic.Bool   // for by the standby line: whatever is left is kept for it
	queued    atomic.Int64  // orders in the outbox; 0 before it was read
	oldest    atomic.Int64  // when the oldest of them was made, in milliseconds; 0: there is none
	eighth    atomic.Int64  // the same of the headOf-th oldest; 0: there are fewer
	counted   atomic.Bool   // the three were read
	sightings atomic.Uint64 // counts observations of "nothing left"
	moved     atomic.Int64  // the turn at which it was last seen to move
}

func (s *stock) moves(turn int64) bool { return turn-s.moved.Load() < movingTurns }

type metrics struct {
	sales    prometheus.Gauge
	failures *prometheus.CounterVec
	lookups  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		sales: prometheus.NewGauge(prometheus.GaugeOpts{Name: "backend_catalog_sales", Help: "Live sales in memory."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_catalog_failures_total",
			Help: "Readings of the sales that failed, by where they were read."}, []string{"source"}),
		lookups: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_catalog_lookups_total",
			Help: "Sale ids that were not in memory and were looked up in MySQL."}),
	}
	reg.MustRegister(m.sales, m.failures, m.lookups)
	return m
}

// Config is what a Catalog needs.
type Config struct {
	DB       *sql.DB
	Redis    *reserve.Store
	Clock    *clock.Clock // Run keeps it on Redis's clock
	Log      *slog.Logger
	Register prometheus.Registerer
}

// New makes a Catalog and registers its metrics. It knows nothing before Run or Refresh.
func New(c Config) *Catalog {
	return &Catalog{db: c.DB, redis: c.Redis, clk: c.Clock, log: c.Log, metrics: newMetrics(c.Register),
		slot: make(chan struct{}, 1), changed: make(chan struct{}, 1), feed: newFeed(), begun: time.Now()}
}

// Run keeps the catalog up to date until ctx ends: definitions from MySQL, stock and the clock from Redis. What cannot be
// read stays as it was, and is read again at the next turn.
func (c *Catalog) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		report := c.reporter("mysql")
		tick := time.NewTicker(definitionsEvery)
		defer tick.Stop()
		for {
			report(ctx, c.readDefinitions(ctx, false))
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	})
	group.Go(func() error {
		report := c.reporter("redis")
		tick := time.NewTicker(statesEvery)
		defer tick.Stop()
		boundary := time.NewTimer(0) // when time alone changes what the public is told
		defer boundary.Stop()
		var published time.Time
		publish := func() {
			boundary.Reset(c.publish())
			published = time.Now()
		}
		var set time.Time
		var err error
		for {
			all := err != nil
			err = nil
			if time.Since(set) >= clockEvery {
				if err = c.setClock(ctx); err == nil {
					set = time.Now()
				}
			}
			news, failed := c.readStates(ctx, all)
			err = errors.Join(err, failed)
			report(ctx, err)
			if news || time.Since(published) >= publishEvery {
				publish()
			}
			for again := true; again; {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
					again = false
				case <-boundary.C:
					publish()
				case <-c.changed:
					publish()
				}
			}
		}
	})
	return group.Wait()
}

// reporter logs when readings begin to fail and when they succeed again, and counts failures.
func (c *Catalog) reporter(source string) func(context.Context, error) {
	failures := c.metrics.failures.WithLabelValues(source)
	failing := false
	return func(ctx context.Context, err error) {
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures.Inc()
			if !failing {
				c.log.Warn("catalog: the sales stay as they were last read", "source", source, "error", err)
			}
			failing = true
		case failing:
			c.log.Info("catalog: the sales are read again", "source", source)
			failing = false
		}
	}
}

func (c *Catalog) setClock(ctx context.Context) error {
	asked := time.Now()
	now, err := c.redis.Client().Now(ctx)
	if err == nil {
		c.clk.Set(now, asked)
	}
	return err
}

// Refresh reads everything now, after a change.
func (c *Catalog) Refresh(ctx context.Context) error {
	err := c.readDefinitions(ctx, true)
	_, failed := c.readStates(ctx, true)
	c.publish()
	return errors.Join(err, failed)
}

// take waits for the slot.
func (c *Catalog) take(ctx context.Context) error {
	select {
	case c.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another reading of the sales: %w", ctx.Err())
	}
}

func (c *Catalog) give() { <-c.slot }

// readDefinitions reads the sales where one has changed since, or all was last read a while ago, or whatever is.
func (c *Catalog) readDefinitions(ctx context.Context, whatever bool) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.give()
	mark, err := sale.ReadMark(ctx, c.db)
	if err != nil {
		return err
	}
	if !whatever && mark == c.mark && time.Since(c.whole) < wholeEvery {
		c.heard.Store(int64(time.Since(c.begun)))
		return nil
	}
	began := time.Now()
	sales, err := sale.Read(ctx, c.db)
	if err != nil {
		return err
	}
	archived, err := c.readArchived(ctx)
	if err != nil {
		return err
	}
	c.heard.Store(int64(time.Since(c.begun)))
	if len(sales) >= sale.MaxLive {
		c.log.Error("catalog: no more sales can be live; archive ended ones", "live", len(sales))
	}
	c.install(append(sales, archived...))
	c.mark, c.whole = mark, began
	return nil
}

// readArchived returns the newest archived sales. One never changes again, so it is read once.
func (c *Catalog) readArchived(ctx context.Context) ([]sale.Sale, error) {
	ids, err := sale.NewestArchived(ctx, c.db, MaxArchived)
	if err != nil {
		return nil, err
	}
	var sales []sale.Sale
	var fresh []int64
	v := c.live.Load()
	for _, id := range ids {
		if s := v.item(id); s != nil && s.ArchivedAt != nil {
			sales = append(sales, s.Sale)
		} else {
			fresh = append(fresh, id)
		}
	}
	if len(fresh) == 0 {
		return sales, nil
	}
	more, err := sale.Read(ctx, c.db, fresh...)
	return append(sales, more...), err
}

// install makes sales what is known: the live ones by ascending id, and archived ones anywhere. One that is there twice, since
// it was archived between two readings, is archived. The caller holds the slot.
func (c *Catalog) install(sales []sale.Sale) {
	old := c.live.Load()
	v := &view{byID: make(map[int64]*item, len(sales)), ids: make([]int64, 0, len(sales))}
	same := old != nil
	for i := range sales {
		s := &item{Sale: sales[i]}
		if before := old.item(s.ID); before != nil {
			same = same && before.Equal(&s.Sale)
			s.stock = before.stock
			if s.ArchivedAt != nil && before.ArchivedAt == nil {
				s.stock = &stock{} // what was last read of its queue is no news any more
			}
			if !before.Equal(&s.Sale) {
				s.stock.moved.Store(c.turn.Load())
			}
		} else {
			same = false
			s.stock = &stock{}
			s.stock.moved.Store(c.turn.Load())
		}
		v.byID[s.ID] = s
	}
	for i := range sales {
		switch s := v.byID[sales[i].ID]; {
		case s.ArchivedAt == nil:
			v.ids, v.items = append(v.ids, s.ID), append(v.items, s)
		case sales[i].ArchivedAt != nil:
			v.archived = append(v.archived, s.ID)
		}
	}
	slices.Sort(v.archived)
	if same && slices.Equal(old.ids, v.ids) && slices.Equal(old.archived, v.archived) {
		return
	}
	c.live.Store(v)
	c.metrics.sales.Set(float64(len(v.ids)))
	c.wake()
}

func (v *view) item(id int64) *item {
	if v == nil {
		return nil
	}
	return v.byID[id]
}

func (c *Catalog) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// readStates reads what is left of the sales that still sell: of all, or of those whose turn it is. news: something is another than
// it was.
func (c *Catalog) readStates(ctx context.Context, all bool) (news bool, err error) {
	v := c.live.Load()
	if v == nil {
		return false, nil
	}
	turn := c.turn.Add(1)
	now := c.clk.Now()
	var ids []int64
	var seen []uint64
	for _, s := range v.items {
		if (all || s.due(turn, now)) && !s.Ended(now) {
			ids = append(ids, s.ID)
			seen = append(seen, s.stock.sightings.Load())
		}
	}
	var states map[int64]reserve.State
	if len(ids) > 0 {
		states, err = c.redis.SomeStates(ctx, ids)
	}
	for i, id := range ids {
		st := states[id] // of a node that is away: none
		s := v.byID[id].stock
		if st.Gate != lua.GateOpen || st.Epoch != s.epoch.Load() || st.Stock != s.left.Load() || st.Standby > 0 != s.waited.Load() {
			s.moved.Store(turn)
		}
		if st.Epoch > 0 {
			s.epoch.Store(st.Epoch)
		}
		// Behind a closed gate the stock is what it was, or nothing yet. And what was observed while this was being
		// read is newer than it.
		if st.Present && st.Gate != lua.GateShut && s.sightings.Load() == seen[i] {
			was, waited, known := s.left.Swap(st.Stock), s.waited.Swap(st.Standby > 0), s.known.Swap(true)
			news = news || was != st.Stock || waited != (st.Standby > 0) || !known
		}
	}
	return news, errors.Join(err, c.readQueued(ctx, v, turn, all))
}

// due reports whether a sale is read at a turn. Those that do not move take turns, by their ids.
func (s *item) due(turn int64, now time.Time) bool {
	switch {
	case s.stock.moves(turn):
		return true
	case s.stock.left.Load() <= s.Unreleased(now):
		return (turn+s.ID)%soldOutTurns == 0
	default:
		return (turn+s.ID)%restingTurns == 0
	}
}

// Get returns a live sale that the public may know of. One that is not in memory is looked up in MySQL once; what is not
// there either is ErrUnknown, what is archived ErrArchived, and remembered as that for some seconds. Any other error: MySQL
// could not be asked.
func (c *Catalog) Get(ctx context.Context, id int64) (sale.Sale, error) {
	if s, known, err := c.known(id); known {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	// One lookup at a time, for all ids: a rain of random ids is no load on MySQL, and of those who ask for the same
	// id at once the first one asks for all.
	if err := c.take(ctx); err != nil {
		return sale.Sale{}, err
	}
	defer c.give()
	if s, known, err := c.known(id); known {
		return s, err
	}
	v := c.live.Load()
	c.metrics.lookups.Inc()
	found, err := sale.Read(ctx, c.db, id)
	if err != nil {
		return sale.Sale{}, fmt.Errorf("look up sale %d: %w", id, err)
	}
	if len(found) == 0 || found[0].Hidden && found[0].ArchivedAt != nil {
		c.unknown.add(id)
		return sale.Sale{}, ErrUnknown
	}
	if found[0].ArchivedAt != nil {
		c.over.add(id)
		return sale.Sale{}, ErrArchived
	}
	if v != nil && len(v.ids) < sale.MaxLive {
		c.install(v.with(found[0]))
	}
	return shown(found[0])
}

// shown is the sale, or ErrUnknown where it is hidden.
func shown(s sale.Sale) (sale.Sale, error) {
	if s.Hidden {
		return sale.Sale{}, ErrUnknown
	}
	return s, nil
}

// known is what memory says of a sale; false if that is nothing.
func (c *Catalog) known(id int64) (s sale.Sale, known bool, err error) {
	switch i := c.live.Load().item(id); {
	case i != nil && i.ArchivedAt == nil:
		s, err = shown(i.Sale)
		return s, true, err
	case i != nil && i.Hidden:
		return sale.Sale{}, true, ErrUnknown
	case i != nil || c.over.has(id):
		return sale.Sale{}, true, ErrArchived
	case c.unknown.has(id):
		return sale.Sale{}, true, ErrUnknown
	}
	return sale.Sale{}, false, nil
}

// with is the sales of v and one more live one.
func (v *view) with(s sale.Sale) []sale.Sale {
	sales := make([]sale.Sale, 0, len(v.byID)+1)
	placed := false
	for _, id := range v.ids {
		if !placed && id > s.ID {
			sales, placed = append(sales, s), true
		}
		sales = append(sales, v.byID[id].Sale)
	}
	if !placed {
		sales = append(sales, s)
	}
	for _, id := range v.archived {
		sales = append(sales, v.byID[id].Sale)
	}
	return sales
}

// Live returns the ids of the live sales, ascending. The slice must not be changed.
func (c *Catalog) Live() []int64 {
	if v := c.live.Load(); v != nil {
		return v.ids
	}
	return nil
}

// Ready is ErrEmpty until the sales were read from MySQL once.
func (c *Catalog) Ready() error {
	if c.live.Load() == nil {
		return ErrEmpty
	}
	return nil
}

// Left is how many units of a sale the public can have now, as Redis last said it; false where that is not known.
func (c *Catalog) Left(id int64) (units int64, known bool) {
	s := c.live.Load().item(id)
	if s == nil || !s.stock.known.Load() {
		return 0, false
	}
	if s.stock.waited.Load() {
		return 0, true
	}
	return s.stock.left.Load() - s.Unreleased(c.clk.Now()), true
}

// Waited is the live sales in whose standby line somebody waits, as Redis last said it.
func (c *Catalog) Waited() (sales []int64) {
	v := c.live.Load()
	if v == nil {
		return nil
	}
	now := c.clk.Now()
	for _, id := range v.ids {
		if s := v.byID[id]; s.stock.waited.Load() && !s.Ended(now) {
			sales = append(sales, id)
		}
	}
	return sales
}

// Epoch is the sale's epoch as Redis last said it; 0 when it is not known.
func (c *Catalog) Epoch(id int64) int64 {
	if s := c.live.Load().item(id); s != nil {
		return s.stock.epoch.Load()
	}
	return 0
}

// SetEpoch notes the epoch that Redis answered.
func (c *Catalog) SetEpoch(id, epoch int64) {
	if s := c.live.Load().item(id); s != nil {
		s.stock.epoch.Store(epoch)
	}
}

// Observe tells what a decision saw of the sale's stock: that nothing is left is published at once. What is left is found by
// the next reading, since answers may come in another order than they were decided.
func (c *Catalog) Observe(id, available int64) {
	s := c.live.Load().item(id)
	if s == nil {
		return
	}
	if turn := c.turn.Load(); s.stock.moved.Load() != turn {
		s.stock.moved.Store(turn)
	}
	if available > 0 {
		return
	}
	s.stock.sightings.Add(1)
	unreleased := s.Unreleased(c.clk.Now())
	if s.stock.known.Load() && s.stock.left.Load() <= unreleased {
		return
	}
	s.stock.left.Store(unreleased)
	s.stock.known.Store(true)
	c.wake()
}

// absent remembers ids that are in nobody's catalog, for absentFor to twice that. It is bounded: when a generation is
// full it is laid aside early, and the one before is forgotten, so that some ids are looked up again sooner.
type absent struct {
	mu         sync.Mutex // guards all
	young, old map[int64]struct{}
	since      time.Time // when young was begun
}

const (
	absentFor = 5 * time.Second
	absentMax = 32768 // ids in a generation
)

func (a *absent) has(id int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.age()
	_, young := a.young[id]
	_, old := a.old[id]
	return young || old
}

func (a *absent) add(id int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.age()
	a.young[id] = struct{}{}
}

func (a *absent) age() {
	now := time.Now()
	switch passed := now.Sub(a.since); {
	case a.young == nil || passed >= 2*absentFor:
		a.old, a.young, a.since = nil, map[int64]struct{}{}, now
	case passed >= absentFor || len(a.young) >= absentMax:
		a.old, a.young, a.since = a.young, map[int64]struct{}{}, now
	}
}

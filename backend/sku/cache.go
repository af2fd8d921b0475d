// Package sku is the units of SKUs that carts take: the SKU's row in MySQL, which is the judge, its ledger, and in front
// of both the numbers in Redis, which turn most of what cannot be away.
//
// In both places available + locked + sold = total; MySQL's row has allotted units beside, which are sales'. An order locks
// units in Redis first (sku_lock.lua), then in MySQL, in one transaction that names the epoch in which Redis locked them: each
// load of a SKU into Redis raises MySQL's epoch and reads under the same row lock, so that whatever was locked in Redis
// before the load and is committed after it is refused, and locked anew. So a SKU can be dropped from Redis, and loaded
// again, at any moment and any number of times.
package sku

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

var (
	// ErrUnknown: there is no such SKU, or it was made for one sale: carts cannot hold it.
	ErrUnknown = errors.New("no such SKU")
	// ErrSlow: another process is loading the SKU, and takes long.
	ErrSlow = errors.New("the SKU is being loaded for long")
)

const (
	lease      = 5 * time.Second // between two steps of a load: then another takes over
	waitAtMost = 3 * time.Second // for another process's load
	loadStep   = 500             // orders in one call: Redis answers nobody else meanwhile
	loadsOnce  = 8               // loads of one request, or of one list, under way at once
	lookEvery  = time.Second
	listFor    = 500 * time.Millisecond // a list of SKUs is read from MySQL at most so often
	listMost   = 1000                   // SKUs in it
	absentFor  = time.Second            // what is no SKU is not looked up again
	absentMost = 32768                  // of these; past it all are forgotten
	forgetStep = 500                    // SKUs that are forgotten in one round trip
)

// Cache is the SKUs in Redis. It is safe for concurrent use, by any number of processes.
type Cache struct {
	db    *sql.DB
	redis *redis.Client
	log   *slog.Logger
	wake  chan struct{}      // a token: look now
	loads singleflight.Group // by SKU, and "list"

	mu     sync.Mutex // guards the rest
	absent map[int64]time.Time
	list   []sku
	listed time.Time

	results  *prometheus.CounterVec
	restarts prometheus.Counter
}

type sku struct {
	wire.SKU
	available int64
}

// Config is what a Cache needs.
type Config struct {
	DB       *sql.DB
	Redis    *redis.Client
	Log      *slog.Logger
	Register prometheus.Registerer
}

// NewCache makes a Cache and registers its metrics. Redis locks nothing before Keep, of some process, was there.
func NewCache(c Config) *Cache {
	s := &Cache{db: c.DB, redis: c.Redis, log: c.Log, wake: make(chan struct{}, 1), absent: map[int64]time.Time{},
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_sku_loads_total",
			Help: "Attempts to load a SKU into Redis: loaded, present (it was there), unknown, lost (to another process), or failed."}, []string{"result"}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_sku_restarts_total",
			Help: "How often primaries of Redis were found without sku_lock.lua, and their SKUs were forgotten."})}
	c.Register.MustRegister(s.results, s.restarts)
	return s
}

// Load brings a SKU into Redis, if it is not there: of all who ask at once, in all processes, one reads MySQL. ErrUnknown.
func (s *Cache) Load(ctx context.Context, sku int64) error {
	if s.isAbsent(sku) {
		return ErrUnknown
	}
	for {
		_, err, shared := s.loads.Do(strconv.FormatInt(sku, 10), func() (any, error) { return nil, s.load(ctx, sku, false) })
		if err != nil && shared && ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
			continue // it was the time of whoever began that was over
		}
		return err
	}
}

// Rebuild brings a SKU into Redis anew, as MySQL has it, whatever Redis has. ErrUnknown.
func (s *Cache) Rebuild(ctx context.Context, sku int64) error { return s.load(ctx, sku, true) }

// Renew is Rebuild for a SKU that Redis still has in an epoch that is not MySQL's: what Redis has is older than what was
// loaded last.
func (s *Cache) Renew(ctx context.Context, sku, epoch int64) error {
	st, err := s.states(ctx, []int64{sku})
	if err != nil || st[0].Gate != lua.GateOpen || st[0].Epoch != epoch {
		return err
	}
	s.log.Warn("stock: redis has a SKU as it was before it was loaded last; it is loaded anew", "sku", sku, "epoch", epoch)
	if err := s.Rebuild(ctx, sku); err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	return nil
}

func (s *Cache) load(ctx context.Context, sku int64, again bool) (err error) {
	result := "failed"
	defer func() {
		s.results.WithLabelValues(result).Inc()
		if err != nil && !errors.Is(err, ErrUnknown) {
			err = fmt.Errorf("load SKU %d: %w", sku, err)
		}
	}()
	if known, err := s.known(ctx, sku); err != nil {
		return err
	} else if !known {
		result = "unknown"
		s.setAbsent(sku)
		return ErrUnknown
	}
	for end := time.Now().Add(waitAtMost); ; {
		token := uuid.NewString()
		reply, err := s.step(ctx, sku, token, lua.StepClaim, strconv.FormatInt(lease.Milliseconds(), 10), bit(again))
		if err != nil {
			return err
		}
		switch reply.Answer() {
		case lua.Present:
			result = "present"
			return nil
		case lua.Claimed:
			err := s.fill(ctx, sku, token)
			if !errors.Is(err, reserve.ErrLost) {
				if err == nil {
					result = "loaded"
				}
				return err
			}
			again = false // who took over reads MySQL later than this call began
		default:
			if !time.Now().Before(end) {
				return fmt.Errorf("%w: it may be taken over in %d ms", ErrSlow, reply.Int(1))
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5*time.Millisecond + rand.N(15*time.Millisecond)):
		}
	}
}

// known asks MySQL whether carts can hold a SKU.
func (s *Cache) known(ctx context.Context, sku int64) (bool, error) {
	var own bool
	err := s.db.QueryRowContext(ctx, `SELECT own FROM skus WHERE id = ?`, sku).Scan(&own)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil && !own, err
}

func (s *Cache) isAbsent(sku int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.absent[sku]
	return ok && time.Now().Before(until)
}

func (s *Cache) setAbsent(sku int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.absent) >= absentMost {
		clear(s.absent)
	}
	s.absent[sku] = time.Now().Add(absentFor)
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func (s *Cache) step(ctx context.Context, sku int64, token, name string, args ...string) (lua.Reply, error) {
	reply, err := s.redis.Call(ctx, lua.SKULoad, keysOf(s.redis, sku).all(), append([]string{token, name}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("step %s: %w", name, err)
	}
	if reply.Answer() == lua.Lost {
		return nil, reserve.ErrLost
	}
	return reply, nil
}

// fill writes a SKU that token has claimed.
func (s *Cache) fill(ctx context.Context, sku int64, token string) error {
	failpoint.Hit("cart.load-claimed")
	b, err := readHeld(ctx, s.db, sku)
	if errors.Is(err, ErrUnknown) {
		if _, err := s.step(ctx, sku, token, lua.StepDrop); err != nil {
			return err
		}
		return ErrUnknown
	}
	if err != nil {
		return err // the lease ends, and another claims it
	}
	failpoint.Hit("cart.load-read")
	for part := range slices.Chunk(b.orders, 2*loadStep) {
		if _, err := s.step(ctx, sku, token, lua.StepOrders, part...); err != nil {
			return err
		}
	}
	failpoint.Hit("cart.load-written")
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	_, err = s.step(ctx, sku, token, lua.StepFinish, num(b.epoch), num(b.available), num(b.locked), num(b.sold), num(b.newest))
	return err
}

// held is what MySQL has of a SKU for a load.
type held struct {
	epoch, available, locked, sold int64
	newest                         int64    // intent
	orders                         []string // id, "units lock", id, "units lock", ...
}

// readHeld raises the SKU's epoch and reads what it has at that moment. ErrUnknown.
func readHeld(ctx context.Context, db *sql.DB, sku int64) (b held, err error) {
	err = store.InTx(ctx, db, func(tx *sql.Tx) error {
		b = held{}
		n, err := store.Changed(tx.ExecContext(ctx, `UPDATE skus SET epoch = epoch + 1 WHERE id = ? AND own = FALSE`, sku))
		if err != nil {
			return fmt.Errorf("epoch: %w", err)
		}
		if n == 0 {
			return ErrUnknown
		}
		err = tx.QueryRowContext(ctx, `SELECT epoch, available, locked, sold FROM skus WHERE id = ?`, sku).Scan(&b.epoch, &b.available, &b.locked, &b.sold)
		if err != nil {
			return fmt.Errorf("units: %w", err)
		}
		if err := tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(id), 0) FROM sku_intents WHERE sku_id = ?`, sku).Scan(&b.newest); err != nil {
			return fmt.Errorf("newest intent: %w", err)
		}
		err = store.Each(ctx, tx, func(rows *sql.Rows) error {
			var order, units, lock string
			err := rows.Scan(&order, &units, &lock)
			b.orders = append(b.orders, order, units+" "+lock)
			return err
		}, `SELECT order_id, quantity, lock_id FROM cart_lines WHERE sku_id = ? AND held = TRUE`, sku)
		if err != nil {
			return fmt.Errorf("lines: %w", err)
		}
		return nil
	})
	return b, err
}

// LoadAll loads several SKUs, and returns those that carts cannot hold.
func (s *Cache) LoadAll(ctx context.Context, skus []int64) (unknown map[int64]bool, err error) {
	unknown = map[int64]bool{}
	var mu sync.Mutex // guards unknown
	var g errgroup.Group
	g.SetLimit(loadsOnce)
	for _, sku := range skus {
		g.Go(func() error {
			err := s.Load(ctx, sku)
			if errors.Is(err, ErrUnknown) {
				mu.Lock()
				defer mu.Unlock()
				unknown[sku] = true
				return nil
			}
			return err
		})
	}
	return unknown, g.Wait()
}

// List is what carts can hold: the newest listMost SKUs, newest first. Whether one is available is what Redis says; one that
// is not there is loaded, and where that fails, or Redis does not answer, MySQL's number holds.
func (s *Cache) List(ctx context.Context) ([]wire.SKU, error) {
	list, err := s.skus(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(list))
	for i, k := range list {
		ids[i] = k.ID
	}
	states, err := s.read(ctx, ids)
	if err != nil {
		s.log.Warn("stock: SKUs are listed as mysql has them", "error", err)
	}
	out := make([]wire.SKU, len(list))
	for i, k := range list {
		available := k.available
		if states[i].Gate == lua.GateOpen {
			available = states[i].Available
		}
		out[i] = k.SKU
		out[i].State = wire.SKUSoldOut
		if available > 0 {
			out[i].State = wire.SKUAvailable
		}
	}
	return out, nil
}

// read reads SKUs' states, and loads those that are not in Redis. With an error it returns what is known.
func (s *Cache) read(ctx context.Context, skus []int64) ([]State, error) {
	states, err := s.states(ctx, skus)
	if err != nil {
		return make([]State, len(skus)), err
	}
	var missing []int64
	for i, st := range states {
		if st.Gate == "" {
			missing = append(missing, skus[i])
		}
	}
	if len(missing) == 0 {
		return states, nil
	}
	if _, err := s.LoadAll(ctx, missing); err != nil {
		return states, err
	}
	loaded, err := s.states(ctx, skus)
	if err != nil {
		return states, err
	}
	return loaded, nil
}

// Heal loads those of the SKUs whose loader died before it was done, so that what waits for them goes on.
func (s *Cache) Heal(ctx context.Context, skus []int64, now time.Time) error {
	states, err := s.states(ctx, skus)
	if err != nil {
		return err
	}
	var left []int64
	for i, st := range states {
		if st.Gate == lua.GateShut && st.until < now.UnixMilli() {
			left = append(left, skus[i])
		}
	}
	_, err = s.LoadAll(ctx, left)
	return err
}

// skus reads the list from MySQL, if it is older than listFor.
func (s *Cache) skus(ctx context.Context) ([]sku, error) {
	s.mu.Lock()
	list, listed := s.list, s.listed
	s.mu.Unlock()
	if list != nil && time.Since(listed) < listFor {
		return list, nil
	}
	read, err, _ := s.loads.Do("list", func() (any, error) { return s.readList(ctx) })
	if err != nil {
		return nil, err
	}
	return read.([]sku), nil
}

func (s *Cache) readList(ctx context.Context) ([]sku, error) {
	list := []sku{}
	err := store.Each(ctx, s.db, func(rows *sql.Rows) error {
		var k sku
		err := rows.Scan(&k.ID, &k.Title, &k.Price, &k.Currency, &k.available)
		list = append(list, k)
		return err
	}, fmt.Sprintf(`SELECT id, title, price, currency, available FROM skus WHERE own = FALSE ORDER BY id DESC LIMIT %d`, listMost))
	if err != nil {
		return nil, fmt.Errorf("list SKUs: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.listed = list, time.Now()
	return list, nil
}

// After returns the ids of at most most SKUs that carts can hold and that follow one, ascending.
func (s *Cache) After(ctx context.Context, sku int64, most int) ([]int64, error) {
	ids, err := store.Column[int64](ctx, s.db, fmt.Sprintf(`SELECT id FROM skus WHERE own = FALSE AND id > ? ORDER BY id LIMIT %d`, most), sku)
	if err != nil {
		return nil, fmt.Errorf("SKUs after %d: %w", sku, err)
	}
	return ids, nil
}

// Wake makes Keep look at once: Redis was found restarted.
func (s *Cache) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Keep runs until ctx is cancelled, and then returns nil. It looks each second, and when woken: a primary of Redis that does not know
// the sku_lock.lua of the incarnation that this process uses was started anew, or promoted, and may have lost
// anything. So every SKU is forgotten there, and only then the script is loaded. Whoever asks for a SKU next loads it.
func (s *Cache) Keep(ctx context.Context) error {
	told := ""
	for ctx.Err() == nil {
		rest := lookEvery
		if s.redis.Incarnation().Name == "" {
			rest = lookEvery / 20 // a reconciler is at it
		} else if err := s.look(ctx); err == nil {
			told = ""
		} else if text := err.Error(); ctx.Err() == nil && text != told {
			told = text
			s.log.Error("stock: carts cannot lock units now; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		case <-s.wake:
		}
	}
	return nil
}

// Ready reports whether Redis locks units: every primary can be asked, and knows the sku_lock.lua of the incarnation in use.
func (s *Cache) Ready(ctx context.Context) (bool, error) {
	used := s.redis.Incarnation()
	if used.Name == "" {
		return false, nil
	}
	nodes := s.redis.Hold(ctx)
	defer nodes.Release()
	lacking, err := nodes.Lacking(ctx, used.Lock)
	return lacking == nil && err == nil, err
}

// Locks reports whether some primary of Redis locks units.
func (s *Cache) Locks(ctx context.Context) (bool, error) {
	used := s.redis.Incarnation()
	if used.Name == "" {
		return false, nil
	}
	nodes := s.redis.Hold(ctx)
	defer nodes.Release()
	return nodes.AnyHas(ctx, used.Lock)
}

func (s *Cache) look(ctx context.Context) error {
	script := s.redis.Incarnation().Lock
	nodes := s.redis.Hold(ctx) // the same from the look on until the script is loaded
	defer nodes.Release()
	lacking, away := nodes.Lacking(ctx, script)
	if lacking == nil {
		return away
	}
	n := 0
	for last := int64(0); ; {
		ids, err := s.After(ctx, last, forgetStep)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		last = ids[len(ids)-1]
		var forget [][]string
		for _, sku := range ids {
			if k := keysOf(s.redis, sku); lacking.Has(k.state) {
				forget = append(forget, k.all())
			}
		}
		if err := lacking.Unlink(ctx, forget...); err != nil {
			return fmt.Errorf("forget SKUs: %w", err)
		}
		n += len(forget)
	}
	if err := lacking.Load(ctx, script); err != nil {
		return fmt.Errorf("redis changed meanwhile: %w", err)
	}
	s.restarts.Inc()
	s.log.Info("stock: redis was started anew, or a replica was promoted: its SKUs were forgotten and are loaded when they are asked for",
		"nodes", lacking.Addrs(), "skus", n)
	return away
}

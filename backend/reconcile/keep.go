package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

const (
	lookEvery    = time.Second
	openLooks    = 6  // every how many looks one is at a sale whose gate was open
	wholeLooks   = 10 // looks at every sale, after a start, a failure or a new incarnation
	patience     = 4 * time.Second
	mostPatience = 2 * time.Minute // after many reconcilers took over from each other
)

// Wake makes Keep look at once: Redis was found restarted.
func (r *Reconciler) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Keep looks each second, and when woken, until ctx is cancelled, and then returns nil. A MySQL that took over, or was started anew, is
// compared with Redis before it serves. A primary of Redis without the scripts of
// the newest incarnation was started anew or promoted, and is recovered. A gate that is not open, and whose beat has stood still
// for some seconds, has lost its reconciler: its sale is reconciled. A gate that was open is looked at every sixth second.
func (r *Reconciler) Keep(ctx context.Context) error {
	k := &keeper{r: r, shut: map[int64]*closed{}, ends: map[int64]context.CancelFunc{}}
	defer k.running.Wait()
	r.every(ctx, "sales cannot be reconciled now; trying again", k.look)
	return nil
}

// Follow is Keep in a process that reconciles nothing: it only uses the newest incarnation. It runs until ctx is cancelled, and
// then returns nil.
func (r *Reconciler) Follow(ctx context.Context) error {
	r.every(ctx, "the incarnation of redis cannot be read now; trying again", func(ctx context.Context) error {
		_, err := r.useNewest(ctx)
		return err
	})
	return nil
}

// every looks each second, and when woken, until ctx is cancelled. It logs an error that repeats itself once.
func (r *Reconciler) every(ctx context.Context, failed string, look func(context.Context) error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	logged := ""
	for ctx.Err() == nil {
		err := look(ctx)
		if err != nil && ctx.Err() == nil {
			if text := err.Error(); text != logged {
				logged = text
				r.log.Error(failed, "error", err)
			}
		} else {
			logged = ""
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-r.wake:
		}
	}
}

// useNewest makes this process use the incarnation that MySQL has, and returns its name.
func (r *Reconciler) useNewest(ctx context.Context) (name string, err error) {
	if name, err = r.newestIncarnation(ctx); err == nil {
		r.redis.Client().Use(name)
	}
	return name, err
}

// keeper is the state of Keep between looks.
type keeper struct {
	r       *Reconciler
	looks   int64
	whole   int64                        // until this look each is at every sale
	name    string                       // of the incarnation at the last look
	shut    map[int64]*closed            // gates that are not open
	running sync.WaitGroup               // reconciliations that this process has begun
	ends    map[int64]context.CancelFunc // by sale: ends what the last recovery has left to do
	again   []time.Time                  // when all sales are compared with MySQL once more
}

// closed is a gate that is not open: since when it has not changed, and how long this process waits for it. Keep uses it or, until
// done is closed, this process's reconciler of the sale.
type closed struct {
	gate     string
	token    int64
	beat     int64
	since    time.Time
	patience time.Duration   // grows with each token that somebody else takes
	done     <-chan struct{} // closed when this process stops to reconcile the sale; nil: it does not
}

func (k *keeper) look(ctx context.Context) error {
	k.looks++
	var err error
	if k.r.anyMySQL != nil {
		err = k.compare(ctx)
	}
	err = errors.Join(err, k.lookOnce(ctx)) // also where MySQL takes no new connection: others may stand
	if err != nil {
		k.whole = k.looks + wholeLooks
	}
	return err
}

func (k *keeper) lookOnce(ctx context.Context) error {
	r := k.r
	name, err := r.useNewest(ctx)
	if err != nil {
		return err
	}
	if name != k.name || k.looks == 1 {
		k.name, k.whole = name, k.looks+wholeLooks
	}
	nodes := r.redis.Client().Hold(ctx)
	defer nodes.Release()
	lost, away := nodes.Lost(ctx)
	if lost != nil {
		return errors.Join(k.recover(ctx, r.redis.On(lost), name), away)
	}
	on, over, err := r.live(ctx)
	if err != nil {
		return errors.Join(err, away)
	}
	sales := slices.DeleteFunc(append(on, over...), func(sale int64) bool {
		return k.looks > k.whole && k.shut[sale] == nil && (k.looks+sale)%openLooks != 0
	})
	states, err := r.redis.SomeStates(ctx, sales)
	seen := make(map[int64]bool, len(sales))
	for _, sale := range sales {
		state, read := states[sale]
		if read && state.Gate == lua.GateOpen {
			continue
		}
		seen[sale] = true
		if !read {
			continue // its node is away
		}
		c := k.shut[sale]
		if c == nil {
			c = r.closed(state)
			k.shut[sale] = c
		}
		if c.observe(state) {
			k.start(ctx, c, &attempt{r: r, sale: sale}, nil)
		}
	}
	for sale := range k.shut { // each was looked at, if it is live
		if !seen[sale] {
			delete(k.shut, sale)
		}
	}
	r.notOpen.Set(float64(len(seen)))
	return errors.Join(err, away)
}

func (r *Reconciler) closed(s reserve.State) *closed {
	return &closed{patience: r.patience + rand.N(r.patience/2), since: time.Now(), gate: s.Gate, token: s.Token, beat: s.Beat}
}

// start runs an attempt beside the looks, when those before it are done. If it fails, a later look starts another.
func (k *keeper) start(ctx context.Context, c *closed, a *attempt, before []<-chan struct{}) {
	done := make(chan struct{})
	c.done = done
	k.running.Go(func() {
		defer close(done)
		for _, d := range before {
			<-d
		}
		if err := k.r.finish(ctx, a, c); err != nil && ctx.Err() == nil && !errors.Is(err, ErrArchived) {
			k.r.log.Warn("a sale's gate stays closed; trying again", "error", err)
		}
	})
}

// observe notes the gate's state, and reports whether this process is to take over.
func (c *closed) observe(s reserve.State) bool {
	if c.done != nil { // this process reconciles it
		select {
		case <-c.done:
			c.done = nil
			c.note(s)
		default:
		}
		return false
	}
	return c.silent(s)
}

// silent notes the gate's state, and reports whether it has stood still for the whole patience.
func (c *closed) silent(s reserve.State) bool {
	if s.Token != c.token { // another reconciler took over: two must not take over from each other for ever
		c.patience = min(2*c.patience, mostPatience)
	}
	if s.Token != c.token || s.Gate != c.gate || s.Beat != c.beat {
		c.note(s)
		return false
	}
	return time.Since(c.since) >= c.patience
}

func (c *closed) note(s reserve.State) {
	c.since, c.gate, c.token, c.beat = time.Now(), s.Gate, s.Token, s.Beat
}

//go:build servers

package faults

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// victim is a component that the kill loop kills, or several of them in the same moment.
type victim struct {
	name    string
	weight  int // of 100; 0 for several
	process func(*system) *stack.Process
	several []*victim
	opened  [2][]time.Duration // until each of the two sales decided again: the one to keep, and the one to expire
	gates   [2][]time.Duration // of redis alone: until the gate of each was open, as redis has it
}

func victims() []*victim {
	return []*victim{
		{name: "backend (every role)", weight: 34, process: func(w *system) *stack.Process { return w.Backend }},
		{name: "gateway", weight: 18, process: func(w *system) *stack.Process { return w.Gateway }},
		{name: "redis", weight: 25, process: func(w *system) *stack.Process { return w.redis.Redis }},
		{name: "mysql", weight: 19, process: func(w *system) *stack.Process { return w.mysql.MySQL }},
		{name: "rabbitmq", weight: 4, process: func(w *system) *stack.Process { return w.rabbitmq.RabbitMQ }},
	}
}

func pick(r *rand.Rand, all []*victim) *victim {
	n := r.IntN(100)
	for _, v := range all {
		if n -= v.weight; n < 0 {
			return v
		}
	}
	panic("BUG: the weights are not 100")
}

// Of so many kills one takes two components at once, and one all five: RabbitMQ, which is among them, takes seconds to start.
const (
	twoOf     = 6
	allFiveOf = 60
)

// pickSome chooses one component, or two or all of them that die at once.
func pickSome(r *rand.Rand, all []*victim, two, five *victim) *victim {
	switch first := pick(r, all); {
	case r.IntN(allFiveOf) == 0:
		five.several = all
		return five
	case r.IntN(twoOf) == 0:
		second := pick(r, all)
		for second == first {
			second = pick(r, all)
		}
		two.several = []*victim{first, second}
		return two
	default:
		return first
	}
}

// processes are those that die.
func (v *victim) processes(w *system) (list []*stack.Process) {
	for _, one := range v.several {
		list = append(list, one.processes(w)...)
	}
	if v.process != nil {
		list = append(list, v.process(w))
	}
	return list
}

// names are what died, for a person.
func (v *victim) names() string {
	if len(v.several) == 0 {
		return v.name
	}
	var names []string
	for _, one := range v.several {
		names = append(names, one.name)
	}
	return v.name + ": " + strings.Join(names, ", ")
}

const (
	fewest       = 60  // kills of a run, at least
	fewestInSoak = 300 // and of a soak
	rests        = 30  // kills between two looks at all equations
	// mostBetween bounds how many more orders are promised before the next kill: none, so that it falls into the recovery from
	// the one before, or some. In a soak the time does, so that there are as many orders as the system makes.
	mostBetween   = 40
	longestInSoak = 2 * time.Second
	everySoInSoak = 5 * time.Millisecond
)

// length is how long the loop goes on at least: FLOODGATE_SOAK (a duration), or until it has done the fewest kills.
func length(t *testing.T) time.Duration {
	s := os.Getenv("FLOODGATE_SOAK")
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	world.Must(t, err)
	return d
}

// sideBySide lets a test run beside the others, each on servers of its own: all of them wait more than they work. In a soak each
// has the machine for itself, and its times are the system's own.
func sideBySide(t *testing.T) {
	if length(t) == 0 {
		t.Parallel()
	}
}

func seed(t *testing.T) uint64 {
	s := os.Getenv("FLOODGATE_SEED")
	if s == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(s, 10, 64)
	world.Must(t, err)
	return n
}

// TestKills kills a random component, or two or all of them at once, again and again, under a load that never pauses, starts it again at once, and waits
// until orders of both sales are promised again. After some kills the load ends, and all that was promised is held against the stores.
//
// Rows B3, D9: any process dies at any moment, and nothing accepted is lost.
func TestKills(t *testing.T) {
	t.Attr("row", "B3 D9")
	sideBySide(t)
	o := options{batch: smallBatch}
	if length(t) > 0 {
		o.batch = 0
	}
	w := newGround(t).system(t, o)
	long, chosen := length(t), seed(t)
	t.Logf("FLOODGATE_SEED=%d", chosen)
	note("The kill loop's seed was %d (FLOODGATE_SEED), and it went on for at least %v (FLOODGATE_SOAK).", chosen, long)
	r := rand.New(rand.NewPCG(chosen, 0))
	all := victims()
	two, five := &victim{name: "two at once"}, &victim{name: "all five at once"}
	began := time.Now()
	var total oracle.Tally
	var settled, afterBack []time.Duration // of each round: after its last kill, and after what was killed served again
	kills, least := 0, fewest
	if long > 0 {
		least = fewestInSoak
	}
	for round := 1; kills < least || time.Since(began) < long; round++ {
		tally, rest, back := w.round(t, func() *victim { return pickSome(r, all, two, five) }, r, round)
		kills += rests
		total = total.Plus(tally)
		settled, afterBack = append(settled, rest), append(afterBack, back)
		if t.Failed() {
			break
		}
	}
	w.drained(t)
	for _, v := range append(all, two, five) {
		for i, sale := range []string{"the first", "the second"} {
			if len(v.opened[i]) > 0 {
				reportAgain(again{v.name, sale, v.opened[i], v.gates[i]})
			}
		}
	}
	worst := slices.Max(settled)
	note("Everything was settled at most %s after what was killed last served again.", seconds(slices.Max(afterBack)))
	report(partKills, line{fault: fmt.Sprintf("kill loop: all, in %v", time.Since(began).Round(time.Second)), injected: "SIGKILL at random", times: kills, tally: &total, settled: worst})
}

// round is some kills on one sale whose orders stay, and one whose orders expire; it ends with every equation.
func (w *system) round(t *testing.T, next func() *victim, r *rand.Rand, round int) (tally oracle.Tally, rest, afterBack time.Duration) {
	t.Helper()
	const units = 1000000
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	stays := w.newLoad(w.newSale(t, fmt.Sprintf("round %d, to keep", round), units, time.Hour), 0, nil)
	expires := w.newLoad(w.newSale(t, fmt.Sprintf("round %d, to expire", round), units, 2*time.Second), 0, nil)
	expires.ends = false
	stop := make(chan struct{})
	var crowd sync.WaitGroup
	soak := length(t) > 0
	for _, l := range []*load{stays, expires} {
		pace := everySo
		if soak && l == expires {
			pace = everySoInSoak
		}
		crowd.Go(func() {
			if err := l.keep(ctx, stop, lanes/2, pace); err != nil {
				t.Error(err)
			}
		})
	}
	var last, back time.Time
	var fallen []fall
	for range rests {
		v := next()
		all := v.processes(w)
		said := w.saidSoFar()
		var gates [2]func() time.Time
		for i, l := range []*load{stays, expires} {
			if v.name == "redis" {
				gates[i] = w.watchGate(ctx, t, l.sale)
			}
		}
		if err := each(ctx, all, (*stack.Process).Kill); err != nil {
			t.Errorf("kill %s: %v", v.names(), err)
			break
		}
		last = stays.fell()
		fallen = append(fallen, fall{v.names(), last, said})
		expires.fell()
		if err := each(ctx, all, (*stack.Process).Start); err != nil {
			t.Errorf("start %s: %v", v.names(), err)
			break
		}
		back = time.Now()
		reach, end := context.WithTimeout(ctx, patience)
		for i, l := range []*load{stays, expires} {
			select {
			case at := <-l.decided:
				v.opened[i] = append(v.opened[i], at.Sub(last))
				if gates[i] != nil { // it opened before an order was taken
					took := gates[i]().Sub(last)
					v.gates[i] = append(v.gates[i], took)
					if took > slowGate {
						w.explain(t, fmt.Sprintf("the gate of sale %d opened after %v", l.sale, took.Round(time.Millisecond)), fallen)
					}
				}
			case <-reach.Done():
				t.Errorf("%s was killed: no order of sale %d is promised for %v; answers: %s", v.names(), l.sale, patience, l.log.Summary())
			}
		}
		if soak {
			world.Pause(ctx, time.Duration(r.Int64N(int64(longestInSoak))))
		} else if err := expires.log.Await(reach, expires.log.Promised()+r.IntN(mostBetween)); err != nil {
			t.Errorf("%s was killed: %v", v.names(), err)
		}
		end()
		if t.Failed() {
			break
		}
	}
	close(stop)
	crowd.Wait()
	tally = w.rest(t, stays.sale, units, stays.log)
	tally = tally.Plus(w.rest(t, expires.sale, units, expires.log))
	rest, afterBack = time.Since(last), time.Since(back)
	t.Logf("round %d: %+v; settled %v after the last kill; answers: %s", round, tally, rest.Round(time.Millisecond), stays.log.Summary())
	if rest > slowRest {
		w.explain(t, fmt.Sprintf("all was settled after %v", rest.Round(time.Millisecond)), fallen)
	}
	for _, l := range []*load{stays, expires} {
		w.closeSale(t, l.sale)
	}
	return tally, rest, afterBack
}

// What takes longer than this is explained in the test's log.
const (
	slowGate = 10 * time.Second
	slowRest = 30 * time.Second
)

// watchGate looks at a sale's gate in Redis from now on; the function that it returns waits until a reconciler has opened it anew, and
// says when that was seen.
func (w *system) watchGate(ctx context.Context, t *testing.T, sale int64) func() time.Time {
	t.Helper()
	before, err := w.Books.Gate(ctx, sale)
	world.Must(t, err)
	opened := make(chan time.Time, 1)
	go func() {
		for ctx.Err() == nil {
			if g, err := w.Books.Gate(ctx, sale); err == nil && g.Open && g.Token > before.Token {
				opened <- time.Now()
				return
			}
			world.Pause(ctx, 20*time.Millisecond)
		}
		close(opened)
	}()
	return func() time.Time { return <-opened }
}

// fall is one kill.
type fall struct {
	victim string
	at     time.Time
	said   int64 // the length of the backend's log then
}

func (w *system) saidSoFar() int64 {
	info, err := os.Stat(w.Backend.LogFile())
	if err != nil {
		return 0 // not yet there
	}
	return info.Size()
}

// explain logs what was killed lately, and what the backend said since the first of that.
func (w *system) explain(t *testing.T, what string, fallen []fall) {
	const kills, most = 4, 20_000
	fallen = fallen[max(0, len(fallen)-kills):]
	for _, f := range fallen {
		what += fmt.Sprintf("; %s was killed at %s", f.victim, f.at.UTC().Format("15:04:05.000"))
	}
	f, err := os.Open(w.Backend.LogFile())
	world.Must(t, err)
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, fallen[0].said, most))
	t.Logf("%s; the backend's log since then, %v:\n%s", what, err, b)
}

// everySo paces a buyer's place: so many buyers a second come, however fast the system is.
const everySo = 150 * time.Millisecond

// keep lets buyers come through so many places, each of which has one in every pace at most, until stop is closed; whoever came is told something final.
func (l *load) keep(ctx context.Context, stop chan struct{}, places int, every time.Duration) error {
	type buyer struct {
		uid   int
		token string
	}
	come := make(chan buyer) // closed by the goroutine that mints
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(come)
		for {
			first, tokens, err := l.w.mint(1000)
			if err != nil {
				return err
			}
			for i, token := range tokens {
				select {
				case come <- buyer{first + i, token}:
				case <-stop:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	})
	for range places {
		g.Go(func() error {
			pace := time.NewTicker(every)
			defer pace.Stop()
			for b := range come {
				if err := l.buy(ctx, b.uid, b.token); err != nil {
					return err
				}
				select {
				case <-pace.C:
				case <-ctx.Done():
				}
			}
			return nil
		})
	}
	return g.Wait()
}

package rehearse

import (
	"context"
	"slices"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// Fault is one kill.
type Fault struct {
	Victim   string
	At       time.Duration // since the sale's start
	Down     time.Duration // until the process was ready again
	Answered time.Duration // until a shopper who pressed after the kill was told something final; 0: nobody was
	Error    string        // it could not be started again
}

// kill kills and starts again, one after the other, at random moments of the sale: each kind once before any comes twice. A slow start
// delays the kills behind it, even past the end of the sale. pressing ends with the crowd.
func (r *rehearsal) kill(ctx, pressing context.Context, began time.Time, c *crowd) (done []Fault) {
	victims := []*stack.Process{r.system.Servers.Redis, r.system.Backend, r.system.Servers.MySQL, r.system.Gateway, r.system.Servers.RabbitMQ}
	times := make([]time.Duration, r.Faults)
	for i := range times {
		times[i] = time.Duration(r.random.Int64N(int64(r.Length * 9 / 10)))
	}
	slices.Sort(times)
	for i, at := range times {
		if i%len(victims) == 0 {
			r.random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		}
		if world.Pause(ctx, time.Until(began.Add(at))); ctx.Err() != nil {
			return done
		}
		p := victims[i%len(victims)]
		if err := p.Kill(ctx); err != nil {
			done = append(done, Fault{Victim: p.Name(), At: time.Since(began), Error: err.Error()})
			continue
		}
		killed := time.Now()
		r.Progress("%s is killed", p.Name())
		f := Fault{Victim: p.Name(), At: killed.Sub(began)}
		if err := p.Start(ctx); err != nil {
			f.Error = err.Error()
		}
		f.Down = time.Since(killed)
		if first, ok := c.finalAfter(pressing, killed); ok {
			f.Answered = first.Sub(killed)
		}
		done = append(done, f)
	}
	return done
}

package outbox

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"floodgate.internal/backend/redis"
)

const (
	beat        = 300 * time.Millisecond // between two beats of a reader, each of which is also a look at all the others
	stillLooks  = 4                      // looks in a row that see no new beat of a reader, which is then dead
	forgetLooks = 400                    // the same, after which it is forgotten: two minutes
)

// peers is which readers of the outboxes are alive, as this one sees it. Every reader counts its beats in one hash in Redis, and
// looks at the counts of all. One whose count stands still over some looks is dead. No clock is compared: where Redis, the network or
// this process pauses, nobody looks meanwhile.
//
// A reader that was only paused may be called dead. What it holds is then handled twice, which delivery at least once allows.
// One without a count is not called dead: it may be of a version that counts no beats.
type peers struct {
	deaths atomic.Int64 // how many readers died while this one looked

	mu   sync.Mutex // guards seen
	seen map[string]peer
}

// peer is the last look at a reader.
type peer struct {
	beats string
	still int // looks since beats changed
}

// dead reports whether a reader's count stands still.
func (p *peers) dead(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[name].still >= stillLooks
}

// look takes in what the hash holds. It returns who has just died, and who is to be forgotten.
func (p *peers) look(beats map[string]string) (died, forget []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.seen, func(name string, _ peer) bool { _, there := beats[name]; return !there })
	for name, n := range beats {
		last, known := p.seen[name]
		if !known || last.beats != n {
			last = peer{beats: n, still: -1}
		}
		last.still++
		p.seen[name] = last
		switch {
		case last.still == stillLooks:
			died = append(died, name)
		case last.still >= forgetLooks:
			forget = append(forget, name)
		}
	}
	p.deaths.Add(int64(len(died)))
	return died, forget
}

// beat counts a beat of this reader, and looks at those of all: two commands, whatever the number of sales.
func (r *Reader) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c := r.redis.Client()
	key := c.Prefix() + "readers"
	answers := c.DoMulti(ctx, c.B().Hincrby().Key(key).Field(r.name).Increment(1).Build(), c.B().Hgetall().Key(key).Build())
	if err := answers[0].Error(); err != nil {
		return fmt.Errorf("count a beat of reader %s: %w", r.name, err)
	}
	beats, err := answers[1].AsStrMap()
	if err != nil {
		return fmt.Errorf("look which readers are alive: %w", err)
	}
	died, forget := r.peers.look(beats)
	for _, name := range died {
		r.log.Info("outbox: a reader is dead; what it holds is taken over", "reader", name)
	}
	if len(forget) == 0 {
		return nil
	}
	if err := c.Do(ctx, c.B().Hdel().Key(key).Field(forget...).Build()).Error(); err != nil {
		return fmt.Errorf("forget dead readers: %w", err)
	}
	return nil
}

// keepBeating tells the others that this reader lives, until ctx is cancelled.
func (r *Reader) keepBeating(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for failed := false; ; {
		err := r.beat(ctx)
		if err != nil && ctx.Err() == nil && !failed { // once: whoever reads says it again and again
			r.log.Warn("outbox", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// patience is how long an entry must have been with a consumer before another takes it over. Of a dead one's, it only keeps two heirs
// from taking the same.
func (r *Reader) patience(consumer string) time.Duration {
	if r.peers.dead(consumer) {
		return min(beat, r.claimIdle)
	}
	return r.claimIdle
}

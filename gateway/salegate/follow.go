package salegate

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/backoff"
	"floodgate.internal/shared/wire"
)

// Source asks one backend for the feed: the target with its query, signed. It answers with the body of a 200 and gives
// up after timeout or when ctx is done.
type Source interface {
	// Backends is how many there are to ask; it may change.
	Backends() int
	Feed(ctx context.Context, backend int, target string, timeout time.Duration) ([]byte, error)
}

// Pauses between attempts to reach any backend; each is drawn anew between a half and the whole.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
	answerTime = 2 * time.Second // for the backend to answer, beyond the wait it was asked for
)

// wholeEvery is how often the whole feed is asked for, of the next backend, though no part is missing: so whatever went
// wrong between here and one backend, or in it, is over by then (anti-entropy).
const wholeEvery = time.Minute

// Follow keeps the gate fresh until ctx is done. It follows one backend at a time by long polls and goes on to the next
// when one fails, and each minute. changed is told, from this goroutine, which sales are no longer as they were.
func (g *Gate) Follow(ctx context.Context, src Source, log *slog.Logger, changed func(ids []int64)) {
	backend := rand.IntN(max(1, src.Backends()))
	pause, failures := backoff.Backoff{First: firstPause, Most: maxPause}, 0
	lost := false
	whole := true // ask for everything
	var wholeAt time.Time
	for ctx.Err() == nil {
		if !whole && time.Since(wholeAt) >= wholeEvery {
			whole = true
			backend = (backend + 1) % max(1, src.Backends())
		}
		f, err := g.poll(ctx, src, backend, whole, lost)
		if err == nil {
			ids, ok := g.apply(f)
			if !ok {
				g.metrics.resyncs.Inc()
				log.Info("the feed does not follow from what is known: asking for all of it", "instance", f.Instance, "version", f.Version)
				if whole {
					err = fmt.Errorf("the backend answers a part of the feed to who asks for all of it")
				}
				whole = true
			} else {
				whole = false
				if f.Full {
					wholeAt = time.Now()
				}
			}
			if err == nil {
				if lost {
					log.Info("the feed is back", "backend", backend)
				}
				lost, failures = false, 0
				pause.Reset()
				if ok {
					g.news.Store(max(1, int64(time.Since(g.epoch))))
					if len(ids) > 0 {
						changed(ids)
					}
				}
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		g.metrics.errors.Inc()
		if !lost {
			log.Warn("the feed is lost", "backend", backend, "error", err)
			lost = true
		}
		backend = (backend + 1) % max(1, src.Backends())
		if failures++; failures < src.Backends() {
			continue // the next backend at once, but all of them only after a pause
		}
		failures = 0
		pause.Wait(ctx, nil)
	}
}

// poll asks once: for the whole feed or for what is new, which is waited for unless the feed was lost. The wait is short
// enough that a silent feed is not a stale one.
func (g *Gate) poll(ctx context.Context, src Source, backend int, whole, lost bool) (*wire.Feed, error) {
	s := g.snapshot.Load()
	wait := min(g.StaleAfter()/2, wire.MaxWait)
	q := url.Values{}
	if whole || lost {
		wait = 0
	}
	if !whole {
		q.Set("instance", s.instance)
		q.Set("since", strconv.FormatUint(s.version, 10))
		q.Set("wait_ms", strconv.FormatInt(wait.Milliseconds(), 10))
	}
	target := wire.FeedPath
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	asked := time.Now()
	body, err := src.Feed(ctx, backend, target, wait+answerTime)
	if err != nil {
		return nil, err
	}
	var f wire.Feed
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, fmt.Errorf("read the feed: %w", err)
	}
	if f.Instance == "" || f.Now.IsZero() {
		return nil, fmt.Errorf("read the feed: it has no instance or no time")
	}
	// The backend wrote the time just before it answered, so it is as old as the answer's way here. An answer that
	// lay about, because this process did not run, says nothing about the time.
	if time.Since(asked) < wait+answerTime {
		g.clk.Set(f.Now.Time, time.Now())
	}
	return &f, nil
}

type metrics struct {
	errors, resyncs prometheus.Counter
	asked           [doubts]prometheus.Counter
}

func newMetrics(g *Gate, reg prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_feed_age_seconds", Help: "Time since the last news of the sale-state feed."},
			func() float64 { return g.Age(time.Now()).Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_feed_fresh", Help: "1 while the feed's news is fresh enough to refuse by."},
			func() float64 {
				if g.Fresh(time.Now()) {
					return 1
				}
				return 0
			}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_gate_sales", Help: "Sales that the gate knows."},
			func() float64 { return float64(g.Known()) }),
	)
	m := metrics{
		errors:  counter("gateway_feed_errors_total", "Attempts to get the feed that failed."),
		resyncs: counter("gateway_feed_resyncs_total", "Times the whole feed was asked for because a part did not fit."),
	}
	asked := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_gate_asked_total",
		Help: "Orders let through though the gate would refuse them, by why: the news is stale, a backend's own word is old (mark), the feed's word is old (probe)."}, []string{"why"})
	reg.MustRegister(asked)
	for d := certain + 1; d < doubts; d++ {
		m.asked[d] = asked.WithLabelValues(doubtNames[d])
	}
	return m
}

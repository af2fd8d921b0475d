package api

import (
	"errors"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/eligibility"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
)

// The results of requests that were not refused; the others are the codes of problems.
const (
	resultOK          = "ok"
	resultAccepted    = "accepted"
	resultRepeated    = "repeated"
	resultNotModified = "not_modified"
)

// metrics has every label resolved in advance.
type metrics struct {
	requests map[*route]map[string]prometheus.Counter
	duration map[*route]prometheus.Observer
	reserve  prometheus.Observer
	unsigned map[error]prometheus.Counter
	panics   prometheus.Counter
	shed     map[string]prometheus.Counter
	refused  map[eligibility.Refusal]prometheus.Counter
}

var unsignedReasons = map[error]string{
	signing.ErrUnsigned: "unsigned", signing.ErrKey: "unknown_key", signing.ErrTime: "time", signing.ErrMismatch: "mismatch",
}

func newMetrics(reg prometheus.Registerer, inFlight, waiting *atomic.Int64) *metrics {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_requests_total",
		Help: "Requests on the internal listener, by route and result: ok, accepted, repeated, not_modified or a problem's code."}, []string{"route", "result"})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "backend_request_duration_seconds",
		Help:    "From the request in hand to its answer, waits included.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}}, []string{"route"})
	reserve := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "backend_reserve_duration_seconds",
		Help:    "One call of sale_reserve.lua, its way there and back included.",
		Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}})
	unsigned := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_unsigned_total",
		Help: "Requests refused for their signature, by what is wrong with it."}, []string{"reason"})
	panics := prometheus.NewCounter(prometheus.CounterOpts{Name: "backend_panics_total", Help: "Requests that ended in a panic."})
	shed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_shed_total",
		Help: "Requests refused before anything was done, by what is past its bound: a sale's queued orders, their lag, an outage; or the time at which whoever asked goes away."}, []string{"reason"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "backend_ineligible_total",
		Help: "Orders refused for who asked: a banned uid, or one that is not on the sale's list."}, []string{"reason"})
	reg.MustRegister(requests, duration, reserve, unsigned, panics, shed, refused,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_in_flight", Help: "Requests being answered, waiting ones aside."},
			func() float64 { return float64(inFlight.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "backend_waiting", Help: "Requests that wait for news."},
			func() float64 { return float64(waiting.Load()) }))

	m := &metrics{requests: map[*route]map[string]prometheus.Counter{}, duration: map[*route]prometheus.Observer{}, reserve: reserve,
		unsigned: map[error]prometheus.Counter{}, panics: panics, shed: map[string]prometheus.Counter{}, refused: map[eligibility.Refusal]prometheus.Counter{}}
	for _, reason := range []eligibility.Refusal{eligibility.Banned, eligibility.NotListed} {
		m.refused[reason] = refused.WithLabelValues(string(reason))
	}
	for _, reason := range []string{shedQueued, shedLag, shedOutage, shedLate} {
		m.shed[reason] = shed.WithLabelValues(reason)
	}
	results := []string{resultOK, resultAccepted, resultRepeated, resultNotModified}
	for code := range problem.Codes() {
		results = append(results, string(code))
	}
	add := func(rt *route) {
		m.duration[rt] = duration.WithLabelValues(rt.name)
		m.requests[rt] = map[string]prometheus.Counter{}
		for _, result := range results {
			m.requests[rt][result] = requests.WithLabelValues(rt.name, result)
		}
	}
	add(&unrouted)
	for i := range routes {
		add(&routes[i])
	}
	for err, reason := range unsignedReasons {
		m.unsigned[err] = unsigned.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) request(rt *route, result string, took time.Duration) {
	m.requests[rt][result].Inc()
	m.duration[rt].Observe(took.Seconds())
}

func (m *metrics) refusedSignature(err error) {
	for reason, counter := range m.unsigned {
		if errors.Is(err, reason) {
			counter.Inc()
			return
		}
	}
	panic("BUG: a signature refused for an unknown reason: " + err.Error())
}

func stack() string { return string(debug.Stack()) }

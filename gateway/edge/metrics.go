package edge

import (
	"bytes"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/problem"
)

// result is how a request ended: a metric's label.
type result int

const (
	resultOK result = iota
	resultNotModified
	resultOther
	firstCode // the problem codes follow, in the order of codes
)

var codes = func() []problem.Code {
	var all []problem.Code
	for c := range problem.Codes() {
		all = append(all, c)
	}
	slices.Sort(all)
	return all
}()

var resultNames = func() []string {
	names := []string{"ok", "not_modified", "other"}
	for _, c := range codes {
		names = append(names, strings.ToLower(string(c)))
	}
	return names
}()

func resultOf(code problem.Code) result {
	if i, ok := slices.BinarySearch(codes, code); ok {
		return firstCode + result(i)
	}
	return resultOther
}

// resultOfAnswer is the result of a backend's answer.
func resultOfAnswer(status int, body []byte) result {
	if status < 300 {
		return resultOK
	}
	_, rest, _ := bytes.Cut(body, []byte(`"code":"`))
	code, _, _ := bytes.Cut(rest, []byte(`"`))
	return resultOf(problem.Code(code))
}

// rule is what refused a request.
type rule int

const (
	ruleProtocol rule = iota
	ruleBan
	ruleGate
	ruleIP
	ruleIPUsers
	ruleWebhook
	ruleIdentity
	ruleOrigin
	ruleEligible
	ruleOrder
	rulePayment
	ruleRead
	ruleGlobal
	ruleBody
	ruleInFlight
	rules
)

var ruleNames = [rules]string{"protocol", "ban", "gate", "ip", "ip_users", "webhook", "identity", "origin", "eligible", "order", "payment", "read", "global", "body", "in_flight"}

type metrics struct {
	requests [][]prometheus.Counter // by the route's label and the result
	refusals [rules]prometheus.Counter
	panics   prometheus.Counter
	latency  latencies
	claims   prometheus.Counter // of untrusted peers
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{latency: newLatencies(reg)}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_requests_total", Help: "Requests by route and result (ok, not_modified, a problem's code, other)."}, []string{"route", "result"})
	refusals := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_refusals_total", Help: "Requests that the gateway refused itself, by rule."}, []string{"rule"})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_panics_total", Help: "Requests that broke the handler and were answered 500."})
	m.claims = prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_untrusted_forwarded_total", Help: "Requests with X-Forwarded-For or Forwarded of peers that are no trusted proxies. The fields were not read."})
	reg.MustRegister(requests, refusals, m.panics, m.claims)
	for _, label := range labels {
		var byResult []prometheus.Counter
		for _, name := range resultNames {
			byResult = append(byResult, requests.WithLabelValues(label, name))
		}
		m.requests = append(m.requests, byResult)
	}
	for r := range m.refusals {
		m.refusals[r] = refusals.WithLabelValues(ruleNames[r])
	}
	return m
}

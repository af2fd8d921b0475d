package edge

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Counts are the answers to presses (orders, of a sale or a cart) by result, and the requests that the gateway refused itself by rule,
// since the start. What never happened is not there.
func (s *Server) Counts() (presses, refusals map[string]int64) {
	presses, refusals = map[string]int64{}, map[string]int64{}
	for _, name := range []string{"order_post", "cart_post"} {
		for i, c := range s.metrics.requests[slices.Index(labels, name)] {
			add(presses, resultNames[i], c)
		}
	}
	for i, c := range s.metrics.refusals {
		add(refusals, ruleNames[i], c)
	}
	return presses, refusals
}

func add(to map[string]int64, name string, c prometheus.Counter) {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic("BUG: " + err.Error())
	}
	if n := int64(m.GetCounter().GetValue()); n > 0 {
		to[name] += n
	}
}

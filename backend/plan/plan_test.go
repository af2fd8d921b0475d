package plan

import (
	"math"
	"testing"
)

func figures(t *testing.T, s Sale) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, f := range s.Plan() {
		if _, twice := all[f.Name]; twice || f.Because == "" || !(f.Value > 0) || math.IsInf(f.Value, 0) {
			t.Errorf("%+v: %+v", s, f)
		}
		all[f.Name] = f.Value
	}
	return all
}

func TestTheArithmetic(t *testing.T) {
	got := figures(t, Sale{Shoppers: 200_000, Stock: 10_000, Seconds: 10})
	for name, want := range map[string]float64{
		"presses_per_second": 60_000, // 20,000 come in each second, and 200,000 press again each 5 s
		"gateway_cores":      2.6,    // (60,000 * 13.6 + 20,000 * 16 + 4,700 * 31.5) µs / 0.5
		"gateway_tls_cores":  44.8,
		"gateways":           12, "gateway_connections": 16_667, "gateway_descriptors": 16_667 + 1024 + 16_667 + 136,
		"limits.order.rate": 0.2, "limits.global.rate": 392, "sold_out_after": 2.2, "queue_drain": 0.7, "orders.max_queued": 100_000, "mysql_rows": 40_000, "api_cores": 0.6,
	} {
		if got[name] != want {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
}

// More shoppers never take less of anything, nor do more units; the smallest sale has a plan too.
func TestMoreTakesMore(t *testing.T) {
	less := figures(t, Sale{Shoppers: 1, Stock: 1, Seconds: 1})
	for _, s := range []Sale{{1000, 10, 60}, {1000, 1000, 60}, {100_000, 1000, 60}, {100_000, 1000, 1}, {10_000_000, 500_000, 1}, {1_000_000_000, 1_000_000_000, 1}} {
		more := figures(t, s)
		for name := range more {
			if more[name] < less[name] && name != "limits.global.rate" && name != "gateway_connections" && name != "gateway_descriptors" && name != "gateway_memory" { // of each gateway, and there are more
				t.Errorf("%+v: %s fell from %v to %v", s, name, less[name], more[name])
			}
		}
		less = more
	}
}

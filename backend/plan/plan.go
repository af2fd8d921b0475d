// Package plan is the arithmetic of sizing: from how many shoppers come for how many units, what it takes. Every number comes with the
// assumption behind it, and every measured one with its source. The machines of the measurements were small, and shared with the
// load: larger ones do more. A rehearsal on one's own machines is better than any of it.
package plan

import (
	"fmt"
	"math"
)

// Measured is what was measured, with its source. It stands here alone.
var Measured = struct {
	Source                                      string
	RefusedCPU, PageCPU, PassedOnCPU            float64 // µs of a gateway's CPU: a press refused by a limit (the dearest refusal), a page, a request passed on
	HandshakeCPU                                float64 // µs of both sides' CPU: a visit with a full TLS handshake, docs/https.md
	ReservedCPU                                 float64 // µs of the api's CPU for an order
	DurableOrders                               float64 // orders/s from the press to MySQL, everything and the load on two cores
	DrainedOrders                               float64 // orders/s of one consumer
	ConnectionKiB, IdleKiB                      float64 // resident, of a connection that has just been used, and of one that rests (docs/speed.md of 2026-11-23)
	BucketBytes                                 float64 // for each user and rule
	RedisOrderBytes, RedisKeyBytes              float64 // of an order while it is kept for its sale; of an Idempotency-Key
	OrderRows, SlotRows, LedgerRows, ClosedRows int64   // in MySQL: for an order, for a unit; for an order when it is made, and when it is paid or ends
}{
	Source:     "make bench of 2026-11-22, commit 7aa2a13c0d4c, two processors, medians of 3 runs (docs/speed.md has the ratios of the latest run)",
	RefusedCPU: 13.6, PageCPU: 16, PassedOnCPU: 31.5, HandshakeCPU: 1120, ReservedCPU: 58, DurableOrders: 4700, DrainedOrders: 16_400, ConnectionKiB: 19.6, IdleKiB: 7.25, BucketBytes: 121,
	RedisOrderBytes: 300, RedisKeyBytes: 250, // TestWhatAnOrderTakes
	OrderRows: 1, SlotRows: 1, LedgerRows: 1, ClosedRows: 1, // the same
}

// Defaults of the two configuration files that the arithmetic rests on.
const (
	orderEvery   = 5.0          // seconds: limits.order
	closing      = 1024         // refused connections that still read their answer
	inFlight     = 1024 + 16384 // upstream.max_in_flight and max_waiting of each gateway
	reserved     = 64 + 64 + 8  // files of a gateway besides, with TLS and two backends
	bounded      = 128          // MiB of bodies and pages of a gateway
	queuedBound  = 30.0         // seconds: orders.queued_bound
	maxLag       = 10.0         // seconds: orders.max_lag
	maxQueued    = 100_000      // orders.max_queued
	load         = 0.5          // of a core: twice the expected is still served
	coresOf      = 4            // of a gateway's machine
	leastGateway = 2            // so that one may fail
)

// Sale is what is expected.
type Sale struct {
	Shoppers int64   // who come
	Stock    int64   // units, one for each buyer
	Seconds  float64 // within which they come
}

// Figure is one number of the plan.
type Figure struct {
	Name    string  `json:"name"` // stable: for scripts
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Because string  `json:"because"` // the assumption, and the arithmetic
}

// Plan is the figures, in the order in which one follows from the other.
func (s Sale) Plan() (figures []Figure) {
	m := Measured
	add := func(name string, value float64, unit, because string, args ...any) float64 {
		figures = append(figures, Figure{name, value, unit, fmt.Sprintf(because, args...)})
		return value
	}
	shoppers, stock := float64(s.Shoppers), float64(s.Stock)
	arriving := shoppers / s.Seconds
	presses := add("presses_per_second", math.Ceil(arriving+shoppers/orderEvery), "1/s", "%d shoppers come within %g s and press (%.0f/s); meanwhile everybody who is there presses again each %g s, which limits.order allows, and nobody gives up (%.0f/s)",
		s.Shoppers, s.Seconds, arriving, orderEvery, shoppers/orderEvery)
	cpu := presses*m.RefusedCPU/1e6 + arriving*m.PageCPU/1e6 + math.Min(presses, m.DurableOrders)*m.PassedOnCPU/1e6
	cores := add("gateway_cores", math.Ceil(cpu/load*10)/10, "cores", "%.1f µs for each press, as if a limit refused it (the sale gate takes less), a page of %.0f µs for each that comes, %.1f µs for each order that is passed on; at %.0f %% load; without TLS", m.RefusedCPU, m.PageCPU, m.PassedOnCPU, load*100)
	handshakes := add("gateway_tls_cores", math.Ceil(arriving*m.HandshakeCPU/1e6/load*10)/10, "cores", "besides, where the gateways speak TLS: at most %.0f µs for each that comes, a full handshake with the client's part in it, at %.0f %% load", m.HandshakeCPU, load*100)
	gateways := add("gateways", math.Max(leastGateway, math.Ceil((cores+handshakes)/coresOf)), "", "with %d cores each, TLS included; at least %d, so that one may fail", coresOf, leastGateway)
	connections := add("gateway_connections", math.Ceil(shoppers/gateways), "", "each gateway: one connection for each shopper, and nobody leaves; server.max_connections (65,536) is to be at least this. Left idle for server.idle_timeout (30 s) a connection ends")
	add("gateway_descriptors", connections+closing+math.Min(inFlight, connections)+reserved, "open files", "each gateway: its connections, %d that are refused, at most %d at the backends, %d besides (docs/bounds.md)", closing, inFlight, reserved)
	add("gateway_memory", math.Ceil(connections*m.ConnectionKiB/1024+2*shoppers/gateways*m.BucketBytes/(1<<20)+bounded), "MiB", "each gateway: %.1f KiB for a connection that has just been used (one that rests takes %.2f), %.0f bytes for each user in two rules, %d MiB of bodies and pages; the kernel's memory for sockets is not in it", m.ConnectionKiB, m.IdleKiB, m.BucketBytes, bounded)
	add("limits.order.rate", 1/orderEvery, "1/s", "the default: a shopper needs one press, and another after OVERLOADED")
	accepted := add("orders_per_second", math.Min(m.DurableOrders, stock), "1/s", "%.0f/s were accepted and settled where everything and the load shared two cores; more cores for Redis, MySQL and the api do more", m.DurableOrders)
	add("limits.global.rate", math.Ceil(m.DurableOrders/gateways), "1/s", "each gateway: what the backend accepts in a second, divided by the gateways; what comes beyond waits or is refused at the edge")
	add("limits.ip.rate", 50, "1/s", "the default: 3,000 new shoppers in a minute behind one address. A carrier's address may have more: raise it if your shoppers come from few addresses, or trust the carrier's networks with limits.ip_exempt")
	add("limits.ip_users.rate", 2000, "1/s", "the default: 2,000 shoppers behind one address who each ask once in a second")
	add("api_cores", math.Ceil(accepted*m.ReservedCPU/1e6/load*10)/10, "cores", "%.0f µs of the api's CPU for each order, at %.0f %% load", m.ReservedCPU, load*100)
	add("sold_out_after", math.Ceil(stock/m.DurableOrders*10)/10, "s", "if enough shoppers press: %d units, %.0f orders/s", s.Stock, m.DurableOrders)
	drained := add("queue_drain", math.Ceil(stock/m.DrainedOrders*10)/10, "s", "if all orders stood in the queue at once: one consumer settles a sale's partition, %.0f orders/s. An order may be queued for orders.queued_bound (%.0f s); past orders.max_lag (%.0f s) new ones are refused", m.DrainedOrders, queuedBound, maxLag)
	add("orders.max_queued", math.Max(maxQueued, stock), "orders", "the default, or the stock where that is more; the drain of %g s must stay below %.0f s: else divide the sale", drained, queuedBound)
	add("redis_memory", math.Ceil(stock*(m.RedisOrderBytes+m.RedisKeyBytes)/(1<<20)+16), "MiB", "%.0f bytes for each order and %.0f for its Idempotency-Key until the sale is archived, and 16 MiB for Redis itself; orders that end and are made again add theirs", m.RedisOrderBytes, m.RedisKeyBytes)
	add("mysql_rows", stock*float64(m.OrderRows+m.SlotRows+m.LedgerRows+m.ClosedRows), "rows", "for each order of one unit: an order, a slot, and a ledger row when it is made and when it is paid or ends")
	return figures
}

//go:build servers

package faults

import (
	"testing"
	"time"

	"floodgate.internal/shared/netfault"
)

// The ways between the parts of a system.
var ways = []struct {
	name string
	of   func(*system) *netfault.Link
}{
	{"client to gateway", func(w *system) *netfault.Link { return w.Links.Public }},
	{"gateway to backend", func(w *system) *netfault.Link { return w.Links.Internal }},
	{"backend to redis", func(w *system) *netfault.Link { return w.Links.Redis }},
	{"backend to mysql", func(w *system) *netfault.Link { return w.Links.MySQL }},
	{"backend to rabbitmq", func(w *system) *netfault.Link { return w.Links.RabbitMQ }},
}

// What goes wrong on each of them.
var mishaps = []struct {
	what, injected string
	strike         func(*netfault.Link)
}{
	{"latency", "every byte 100 ms late, both ways", func(l *netfault.Link) { l.Delay(100 * time.Millisecond) }},
	{"nothing arrives at the server", "every byte held back, upwards", func(l *netfault.Link) { l.Hold(netfault.Up) }},
	{"nothing arrives at the client", "every byte held back, downwards", func(l *netfault.Link) { l.Hold(netfault.Down) }},
	{"half-open connections", "all connections, and new ones, dead without an end", func(l *netfault.Link) { l.Strand() }},
	{"cut in the middle of requests", "each connection reset after 1 to 2000 bytes upwards", func(l *netfault.Link) { l.CutWithin(netfault.Up, 2000) }},
	{"cut in the middle of answers", "each connection reset after 1 to 2000 bytes downwards", func(l *netfault.Link) { l.CutWithin(netfault.Down, 2000) }},
	{"refused", "all connections reset, new ones refused", func(l *netfault.Link) { l.Refuse(); l.Cut() }},
}

// wayFaults tries each mishap on one of the ways.
func wayFaults(t *testing.T, g *ground, i int) {
	w := g.system(t, options{linked: true})
	way := ways[i]
	link := way.of(w)
	var all []disorder
	for _, m := range mishaps {
		all = append(all, disorder{
			what: way.name + ": " + m.what, injected: m.injected,
			strike: func(s *trial) { m.strike(link); s.lasts() },
			heal:   func(*trial) { link.Heal() },
		})
	}
	w.group(t, partNetwork+part(i), all...)
	w.drained(t)
}

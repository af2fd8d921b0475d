package redis

import (
	"slices"
	"testing"
)

// span is the slots from first to last.
func span(first, last uint16) (s slots) {
	for i := first; i <= last; i++ {
		s[i/64] |= 1 << (i % 64)
	}
	return s
}

func TestClaim(t *testing.T) {
	const other = "0b2c 127.0.0.1:7001@17001 master - 0 1 9 connected 200-300\n"
	for _, c := range []struct {
		name, table string
		epoch       int64
		slots       slots
		fails       bool
	}{
		{"ranges, a single slot and one on its way", other + "07a1 127.0.0.1:7000@17000 myself,master - 0 0 3 connected 0-9 12 [12->-0b2c]\n", 3, func() slots {
			s := span(0, 9)
			s[0] |= 1 << 12
			return s
		}(), false},
		{"a replica", "07a1 127.0.0.1:7000@17000 myself,slave 0b2c 0 0 9 connected\n" + other, 9, slots{}, false},
		{"all", "txt:07a1 :7000@17000,host myself,master - 0 0 1 connected 0-16383", 1, everySlot, false},
		{"not in its own table", other, 0, slots{}, true},
		{"no number", "07a1 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-16384\n", 0, slots{}, true},
	} {
		epoch, got, err := claim(c.table)
		if (err != nil) != c.fails || !c.fails && (epoch != c.epoch || got != c.slots) {
			t.Errorf("%s: got epoch %d, slots %x, %v", c.name, epoch, got, err)
		}
	}
}

func TestWhoIsAPrimary(t *testing.T) {
	at := func(addr string, primary bool, epoch int64, s slots) *node {
		return &node{addr: addr, standing: standing{primary: primary, epoch: epoch, slots: s}}
	}
	addrs := func(nodes []*node) (list []string) {
		for _, n := range nodes {
			list = append(list, n.addr)
		}
		return list
	}
	for _, c := range []struct {
		name      string
		nodes     []*node
		primaries []string
		of5       string // which of them has slot 5
	}{
		{"no cluster", []*node{at("a", true, 0, everySlot)}, []string{"a"}, "a"},
		{"a replica behind the address", []*node{at("a", false, 0, everySlot)}, nil, ""},
		{"with a replica", []*node{at("a", true, 1, span(0, 9)), at("b", false, 1, slots{})}, []string{"a"}, "a"},
		{"an old primary that does not know yet", []*node{at("a", true, 1, span(0, 9)), at("b", true, 2, span(0, 9))}, []string{"b"}, "b"},
		{"a slot that was moved", []*node{at("a", true, 1, span(0, 9)), at("b", true, 2, span(5, 5))}, []string{"a", "b"}, "b"},
		{"equal epochs", []*node{at("a", true, 2, span(0, 9)), at("b", true, 2, span(5, 5))}, []string{"a"}, ""},
		{"without slots yet", []*node{at("a", true, 1, span(0, 9)), at("b", true, 0, slots{})}, []string{"a", "b"}, "a"},
	} {
		primaries, others := primariesOf(c.nodes)
		if !slices.Equal(addrs(primaries), c.primaries) || len(primaries)+len(others) != len(c.nodes) {
			t.Errorf("%s: got the primaries %v and the others %v, want %v", c.name, addrs(primaries), addrs(others), c.primaries)
		}
		has := ""
		for _, n := range primaries {
			if n.slots.has(5) {
				has += n.addr
			}
		}
		if has != c.of5 {
			t.Errorf("%s: slot 5 is on %q, want %q", c.name, has, c.of5)
		}
	}
}

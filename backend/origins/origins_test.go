package origins

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Row D13: many accounts in one hand come from few networks.
func TestWhereOrdersComeFrom(t *testing.T) {
	t.Attr("row", "D13")
	since := time.Unix(1000, 0)
	r := New(since)
	for range 7 {
		r.Count(1, "203.0.113.0/24")
	}
	r.Count(1, "2001:db8:1:2::/64")
	for _, odd := range []string{"", "203.0.113.7", "203.0.113.7/24", "10.0.0.0/8", "2001:db8::/32", "nonsense"} {
		r.Count(1, odd)
	}
	r.Count(2, "198.51.100.0/24")
	got := r.Of(1)
	if want := "[{203.0.113.0/24 7 7} {unknown 6 6} {2001:db8:1:2::/64 1 1}]"; got.Orders != 14 || !got.Since.Equal(since) || fmt.Sprint(got.Networks) != want {
		t.Errorf("got %+v, want %s", got, want)
	}
	if got := r.Of(3); got.Orders != 0 || len(got.Networks) != 0 {
		t.Errorf("a sale without orders: got %+v", got)
	}
}

// What Space-Saving promises, for any stream of orders: each count lies between its bounds, and no network that has more than
// its share is missing.
func TestNoLargeNetworkIsMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, exact := New(time.Time{}), map[string]int64{}
		orders := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "runs") {
			first, networks := rapid.IntRange(0, 300).Draw(t, "first"), rapid.IntRange(1, 200).Draw(t, "networks")
			for i := range networks * rapid.IntRange(1, 3).Draw(t, "times") {
				n := (first + i%networks) % 400
				name := fmt.Sprintf("10.%d.%d.0/24", n/256, n%256)
				r.Count(1, name)
				exact[name]++
				orders++
			}
		}
		got := r.Of(1)
		if got.Orders != orders || len(got.Networks) > maxNetworks {
			t.Fatalf("got %d orders of %d networks, want %d orders of at most %d", got.Orders, len(got.Networks), orders, maxNetworks)
		}
		there := map[string]bool{}
		for _, c := range got.Networks {
			there[c.Network] = true
			if n := exact[c.Network]; n > c.Orders || n < c.AtLeast {
				t.Fatalf("%s has %d orders, counted %d to %d", c.Network, n, c.AtLeast, c.Orders)
			}
		}
		for name, n := range exact {
			if n > orders/maxNetworks && !there[name] {
				t.Fatalf("%s has %d of %d orders and is missing", name, n, orders)
			}
		}
	})
}

func TestSalesAreBounded(t *testing.T) {
	r := New(time.Time{})
	for sale := int64(1); sale <= maxSales+10; sale++ {
		r.Count(sale, "10.0.0.0/24")
		r.Count(sale, "10.0.1.0/24")
		if sale == 3 {
			continue
		}
		r.Count(sale, "10.0.1.0/24")
	}
	if n := len(r.sales); n != maxSales {
		t.Errorf("%d sales are remembered, want %d", n, maxSales)
	}
	if got := r.Of(3); got.Orders != 0 {
		t.Errorf("the sale with the fewest orders is still there: %+v", got)
	}
	if got := r.Of(maxSales + 10); got.Orders != 3 {
		t.Errorf("the newest sale: got %+v", got)
	}
}

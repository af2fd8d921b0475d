package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func set(t *testing.T, networks ...string) Set {
	t.Helper()
	s, err := Parse(networks)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseRefuses(t *testing.T) {
	for _, n := range []string{"10.0.0.1", "10.0.0.0/33", "x", "", "fe80::1%eth0/64", "::ffff:10.0.0.0/104"} {
		if _, err := Parse([]string{"10.0.0.0/8", n}); err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("[1]: %q must be", n)) {
			t.Errorf("%q: got %v", n, err)
		}
	}
	if s := set(t); !s.Empty() || s.Contains(netip.MustParseAddr("::1")) || (Set{}).Contains(netip.MustParseAddr("127.0.0.1")) {
		t.Error("an empty set has something in it")
	}
}

// A set says what looking at each of its networks says.
func TestSetIsItsNetworks(t *testing.T) {
	in, out := 0, 0
	address := rapid.Custom(func(t *rapid.T) netip.Addr { // few, so that they meet
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x80, 0xff}), 4, 4).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "IPv6") {
			return netip.AddrFrom16([16]byte{0x20, 0x01, b[0], b[1], 15: b[3]})
		}
		return netip.AddrFrom4([4]byte(b))
	})
	rapid.Check(t, func(t *rapid.T) {
		var texts []string
		var all []netip.Prefix
		for _, a := range rapid.SliceOfN(address, 0, 8).Draw(t, "networks") {
			p := netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
			all, texts = append(all, p), append(texts, p.String())
		}
		s, err := Parse(texts)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range rapid.SliceOfN(address, 1, 20).Draw(t, "addresses") {
			want := false
			for _, p := range all {
				want = want || p.Contains(a)
			}
			if got := s.Contains(a); got != want {
				t.Fatalf("%v in %v: got %v", a, texts, got)
			}
			if want {
				in++
			} else {
				out++
			}
		}
	})
	t.Logf("%d were in, %d were not", in, out)
	if in == 0 || out == 0 {
		t.Error("the draws do not show what they should")
	}
}

// Row D13: whatever a client writes into X-Forwarded-For, however many trusted hops come after it, it counts as the address
// from which it came to the first of them.
func TestNobodyChoosesTheirAddress(t *testing.T) {
	t.Attr("row", "D13")
	trusted := set(t, "10.0.0.0/8", "fd00::/8")
	rapid.Check(t, func(t *rapid.T) {
		client := rapid.SampledFrom([]string{"203.0.113.9", "2001:db8::9", "192.0.2.1"}).Draw(t, "client")
		spoofed := rapid.SliceOfN(rapid.SampledFrom([]string{"10.1.1.1", "127.0.0.1", "fd00::1", "8.8.8.8", "x", "", ",,", "203.0.113.9, 10.0.0.1", "[::1]:80"}), 0, 5).Draw(t, "spoofed")
		hops := rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.1", "10.255.0.1:80", "fd00::2", "[fd00::3]:1", "::ffff:10.0.0.4"}), 0, 4).Draw(t, "hops")
		var fields [][]byte
		line := ""
		for i, hop := range append(append(spoofed, client), hops...) {
			switch {
			case i == 0:
				line = hop
			case rapid.Bool().Draw(t, "a new field"):
				fields, line = append(fields, []byte(line)), hop
			default:
				line += rapid.SampledFrom([]string{",", ", ", " ,\t"}).Draw(t, "comma") + hop
			}
		}
		fields = append(fields, []byte(line))
		if got := Client(netip.MustParseAddr("10.3.3.3"), trusted, fields); got.String() != client {
			t.Fatalf("%q: got %v, want %s", fields, got, client)
		}
		if got := Client(netip.MustParseAddr("198.51.100.1"), trusted, fields); got.String() != "198.51.100.1" {
			t.Fatalf("from a peer that is not trusted, %q: got %v", fields, got)
		}
	})
}

func TestClient(t *testing.T) {
	trusted := set(t, "10.0.0.0/8")
	for _, c := range []struct{ forwarded, want string }{
		{"1.2.3.4, 5.6.7.8", "5.6.7.8"}, {"", "10.3.3.3"}, {"unknown", "10.3.3.3"}, {"1.2.3.4, unknown", "10.3.3.3"}, {"1.2.3.4, unknown, 10.1.1.1", "10.1.1.1"},
		{"10.2.2.2", "10.2.2.2"}, {"10.2.2.2, 10.1.1.1", "10.2.2.2"}, {"fe80::1%eth0", "fe80::1"}, {"1.2.3.4:x", "10.3.3.3"}, {"1.2.3.4,", "10.3.3.3"},
	} {
		if got := Client(netip.MustParseAddr("10.3.3.3"), trusted, [][]byte{[]byte(c.forwarded)}); got.String() != c.want {
			t.Errorf("%q: got %v, want %s", c.forwarded, got, c.want)
		}
	}
	if got := Client(netip.MustParseAddr("10.3.3.3"), trusted, nil); got.String() != "10.3.3.3" {
		t.Errorf("without the field: got %v", got)
	}
}

func TestKey(t *testing.T) {
	for _, c := range []struct {
		a, b string
		bits int
		same bool
	}{
		{"2001:db8::1", "2001:db8:0:ff:ffff::1", 56, true}, {"2001:db8::1", "2001:db8:0:100::1", 56, false},
		{"2001:db8::1", "2001:db8::ffff:1", 64, true}, {"2001:db8::1", "2001:db8:0:1::1", 64, false},
		{"2001:db8:0:10::", "2001:db8:0:1f::", 60, true}, {"2001:db8:0:10::", "2001:db8:0:20::", 60, false},
		{"2001:db8:8000::", "2001:db8:ffff::", 33, true}, {"2001:db8:8000::", "2001:db8::", 33, false},
		{"2001:db8::1", "2001:db8::1", 128, true}, {"2001:db8::1", "2001:db8::2", 128, false},
		{"1.2.3.4", "1.2.3.4", 56, true}, {"1.2.3.4", "1.2.3.5", 56, false}, {"1.2.3.4", "::102:304", 128, false},
	} {
		if got := Key(netip.MustParseAddr(c.a), c.bits) == Key(netip.MustParseAddr(c.b), c.bits); got != c.same {
			t.Errorf("%s and %s by %d bits: one is %v, want %v", c.a, c.b, c.bits, got, c.same)
		}
	}
}

// Whatever a client writes into Forwarded, it counts as the address from which it came to the first trusted hop.
func TestNobodyChoosesTheirAddressByForwarded(t *testing.T) {
	trusted := set(t, "10.0.0.0/8", "fd00::/8")
	rapid.Check(t, func(t *rapid.T) {
		client := rapid.SampledFrom([]string{"203.0.113.9", `"[2001:db8::9]"`, `"192.0.2.1:4711"`, `"[2001:db8::9]:80"`}).Draw(t, "client")
		want := map[byte]string{'2': "203.0.113.9", '"': "2001:db8::9"}[client[0]]
		if strings.HasPrefix(client, `"192`) {
			want = "192.0.2.1"
		}
		elements := rapid.SliceOfN(rapid.SampledFrom([]string{"for=10.1.1.1", `for="`, `for="a`, "", ",,", ";", `for=8.8.8.8;host="`, "\\", "for=203.0.113.8, for=10.0.0.1", "proto=http"}), 0, 5).Draw(t, "spoofed")
		element := func(node string) string {
			return rapid.SampledFrom([]string{"", "proto=https;", `by="[fd00::1]";`}).Draw(t, "before") + rapid.SampledFrom([]string{"for=", "For=", "FOR="}).Draw(t, "name") + node +
				rapid.SampledFrom([]string{"", ";proto=http", "; host=shop.example"}).Draw(t, "after")
		}
		elements = append(elements, element(client))
		for range rapid.IntRange(0, 3).Draw(t, "hops") {
			elements = append(elements, element(rapid.SampledFrom([]string{"10.0.0.1", `"10.255.0.1:80"`, `"[fd00::3]:1"`}).Draw(t, "hop")))
		}
		var fields [][]byte
		line := elements[0]
		for _, e := range elements[1:] {
			if rapid.Bool().Draw(t, "a new field") {
				fields, line = append(fields, []byte(line)), e
			} else {
				line += rapid.SampledFrom([]string{",", ", ", " ,\t"}).Draw(t, "comma") + e
			}
		}
		fields = append(fields, []byte(line))
		if got := ClientForwarded(netip.MustParseAddr("10.3.3.3"), trusted, fields); got.String() != want {
			t.Fatalf("%q: got %v, want %s", fields, got, want)
		}
		if got := ClientForwarded(netip.MustParseAddr("198.51.100.1"), trusted, fields); got.String() != "198.51.100.1" {
			t.Fatalf("from a peer that is not trusted, %q: got %v", fields, got)
		}
	})
}

func TestClientForwarded(t *testing.T) {
	trusted := set(t, "10.0.0.0/8")
	for _, c := range []struct{ forwarded, want string }{
		{"for=1.2.3.4, for=5.6.7.8", "5.6.7.8"}, {"for=5.6.7.8;by=10.0.0.1;proto=https;host=x", "5.6.7.8"}, {`for="[2001:db8::1]"`, "2001:db8::1"}, {`for="[2001:db8::1]:80"`, "2001:db8::1"},
		{"", "10.3.3.3"}, {"for=unknown", "10.3.3.3"}, {"for=_hidden", "10.3.3.3"}, {"for=1.2.3.4, for=unknown, for=10.1.1.1", "10.1.1.1"}, {"by=1.2.3.4", "10.3.3.3"},
		{"for=1.2.3.4;for=5.6.7.8", "10.3.3.3"}, {"for=", "10.3.3.3"}, {"for", "10.3.3.3"}, {`for="1.2.3.4`, "10.3.3.3"}, {`for="1.2.3.4\"`, "10.3.3.3"}, {"for=1.2.3.4;", "10.3.3.3"},
		{"1.2.3.4", "10.3.3.3"}, {`for="1.2.3.4, for=5.6.7.8`, "5.6.7.8"}, {"for = 1.2.3.4", "10.3.3.3"},
	} {
		if got := ClientForwarded(netip.MustParseAddr("10.3.3.3"), trusted, [][]byte{[]byte(c.forwarded)}); got.String() != c.want {
			t.Errorf("%q: got %v, want %s", c.forwarded, got, c.want)
		}
	}
}

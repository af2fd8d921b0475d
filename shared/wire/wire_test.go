package wire

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTimeIsRFC3339UTCMillis(t *testing.T) {
	at := At(time.Date(2026, 7, 1, 10, 0, 0, 123_999_999, time.FixedZone("x", 7200)))
	b, err := json.Marshal(struct{ T Time }{at})
	if err != nil || string(b) != `{"T":"2026-07-01T08:00:00.123Z"}` {
		t.Errorf("got %s, %v", b, err)
	}
	var back struct{ T Time }
	if err := json.Unmarshal([]byte(`{"T":"2026-07-01T10:00:00.123+02:00"}`), &back); err != nil || !back.T.Equal(at.Time) {
		t.Errorf("got %v, %v; want %v", back.T, err, at)
	}
}

func TestParseOrderRequest(t *testing.T) {
	for body, want := range map[string]int{
		"": 1, "{}": 1, ` {"quantity":1} `: 1, `{"quantity":3}`: 3, "\n{\"quantity\":2}\n": 2,
	} {
		if got, category, err := ParseOrderRequest([]byte(body), 3); got != want || category != nil || err != nil {
			t.Errorf("%q: got %d, %v, %v; want %d", body, got, category, err, want)
		}
	}
	for body, want := range map[string]string{
		`{"category":"shoes"}`: `{"quantity":1,"category":"shoes"}`, `{"category":"","quantity":2}`: `{"quantity":2,"category":""}`,
		`{"quantity":1,"category":"\"quantity\" \u00e9\u0000"}`: `{"quantity":1,"category":"\"quantity\" é\u0000"}`, `{"quantity":1}`: `{"quantity":1}`,
	} {
		n, category, err := ParseOrderRequest([]byte(body), 3)
		if got := string(AppendOrderRequest(nil, n, category)); got != want || err != nil {
			t.Errorf("%s: got %s, %v; want %s", body, got, err, want)
		}
	}
	for body, want := range map[string]string{
		`{"quantity":0}`:                      "quantity: 0",
		`{"quantity":-1}`:                     "quantity: -1",
		`{"quantity":4}`:                      "quantity: 4",
		`{"quantity":1.5}`:                    "quantity",
		`{"quantity":"1"}`:                    "quantity",
		`{"quantity":null}`:                   "quantity",
		`{"quantity":` + digits(400) + `}`:    "quantity",
		`{"category":null}`:                   "category: null",
		`{"quantity":1,"category":null}`:      "category: null",
		`{"category":"a","quantity":null}`:    "quantity: null",
		`{"category":7}`:                      "category",
		`{"Quantity":1}`:                      "Quantity: unknown member",
		`{"quantity":1,"uid":"bob"}`:          "uid: unknown member",
		`{"quantity":1,"quantity":1}`:         "quantity: duplicate member",
		`{"quantity":1}{}`:                    "JSON",
		`{"quantity":1`:                       "JSON",
		`null`:                                "object",
		`[]`:                                  "object",
		`1`:                                   "object",
		"\xff":                                "JSON",
		strings.Repeat(`{"quantity":`, 10000): "JSON",
		strings.Repeat(`[`, 10000):            "",
	} {
		if got, _, err := ParseOrderRequest([]byte(body), 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %d, %v; want an error that says %q", body, got, err, want)
		}
	}
}

func digits(n int) string { return strings.Repeat("9", n) }

func TestSaleOfOrder(t *testing.T) {
	const uuid = "0190163d-8694-739b-aea5-966c26f8ad91"
	if got, ok := SaleOfOrder(NewOrderID(uuid, 42)); got != 42 || !ok {
		t.Errorf("got %d, %v; want 42", got, ok)
	}
	for _, id := range []string{"", uuid, uuid + "-", uuid + "-0", uuid + "-042", uuid + "--1", uuid + "-9999999999999999999",
		"0190163D-8694-739b-aea5-966c26f8ad91-42", "0190163d_8694-739b-aea5-966c26f8ad91-42", uuid + "-42x", strings.Repeat("a", 100)} {
		if got, ok := SaleOfOrder(id); ok {
			t.Errorf("%q: got sale %d, want none", id, got)
		}
	}
}

func TestValidClaimID(t *testing.T) {
	order := NewOrderID("0190163d-8694-739b-aea5-966c26f8ad91", 9223372036854775807)
	for _, id := range []string{NewClaimID(order, 1), NewClaimID(order, 999999)} {
		if !ValidClaimID(id) {
			t.Errorf("%q is not valid", id)
		}
	}
	for _, id := range []string{"", ".", ".1", order, order + ".", order + ".0", order + ".01", order + ".x", order + ".1.2", order + ".-1", "x.1", order + ".12345678"} {
		if ValidClaimID(id) {
			t.Errorf("%q is valid", id)
		}
	}
}

func TestParseID(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "9223372036854775807": 1<<63 - 1} {
		if got, ok := ParseID(s); got != want || !ok {
			t.Errorf("%q: got %d, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "0", "01", "-1", "+1", "1 ", "9223372036854775808", "1e3", "١", digits(30)} {
		if got, ok := ParseID(s); ok {
			t.Errorf("%q: got %d, want none", s, got)
		}
	}
}

// What is taken is taken by the JSON parser too, in whatever way it was read, and is within the limit.
func FuzzParseOrderRequest(f *testing.F) {
	for _, body := range []string{`{"quantity":1}`, ``, `{}`, ` {"quantity": 5 } `, `{"quantity":6}`, `{"quantity":01}`, `{"quantity":}`, `{"quantity":1}}`, `{"quantity":1,"quantity":2}`, `{"quantity":99999999999}`, `null`, `{"category":"x"}`, `{"quantity":2,"category":"\u2028"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		n, category, err := ParseOrderRequest(body, 5)
		if err != nil {
			if n != 0 || err.Error() == "" {
				t.Errorf("%q: got %d, %v", body, n, err)
			}
			return
		}
		if n < 1 || n > 5 {
			t.Errorf("%q: got %d", body, n)
		}
		if len(body) == 0 {
			return
		}
		var in map[string]any
		if err := json.Unmarshal(body, &in); err != nil {
			t.Errorf("%q: got %d, encoding/json says %v", body, n, err)
		}
		if q, ok := in["quantity"]; ok && q != float64(n) || !ok && n != 1 {
			t.Errorf("%q: got %d, encoding/json says %v", body, n, in)
		}
		if c, ok := in["category"]; ok != (category != nil) || ok && c != *category {
			t.Errorf("%q: got category %v, encoding/json says %v", body, category, in)
		}
		again, same, err := ParseOrderRequest(AppendOrderRequest(nil, n, category), 5)
		if err != nil || again != n || (same == nil) != (category == nil) || same != nil && *same != *category {
			t.Errorf("%q: written anew it is %d, %v, %v", body, again, same, err)
		}
	})
}

// An id that is taken has one spelling, and names what it was made of.
func FuzzIDs(f *testing.F) {
	const order = "0190163d-8694-739b-aea5-966c26f8ad91-42"
	for _, s := range []string{"1", "0", "01", "9223372036854775808", order, order[:36] + "-0", order + ".1", order + ".", "..", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := ParseID(s); ok != (n > 0) || ok && strconv.FormatInt(n, 10) != s {
			t.Errorf("%q: got id %d, %v", s, n, ok)
		}
		sale, ok := SaleOfOrder(s)
		if ok && (NewOrderID(s[:36], sale) != s || IsCartOrder(s)) {
			t.Errorf("%q: got sale %d", s, sale)
		}
		if ValidOrderID(s) != (ok || IsCartOrder(s)) || ValidOrderID(s) && len(s) > MaxOrderID {
			t.Errorf("%q: a valid order id: %v", s, ValidOrderID(s))
		}
		if ValidClaimID(s) {
			order, slot, _ := strings.Cut(s, ".")
			n, ok := ParseID(slot)
			if !ok || NewClaimID(order, int(n)) != s || !ValidOrderID(order) {
				t.Errorf("took claim %q", s)
			}
		}
		if (ValidUID(s) || ValidProvider(s)) && (s == "" || strings.ContainsAny(s, "/\\ %\r\n\x00")) || ValidIdempotencyKey(s) != ValidIdempotencyKey([]byte(s)) {
			t.Errorf("took %q", s)
		}
	})
}

// A time that is read is written as the same time, to the millisecond, and read again.
func FuzzTime(f *testing.F) {
	for _, s := range []string{"2026-07-01T10:00:00.123Z", "2026-07-01T10:00:00+02:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "null", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var at Time
		if at.UnmarshalText([]byte(s)) != nil {
			return
		}
		text, err := At(at.Time).MarshalText()
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if year := at.UTC().Year(); year < 0 || year > 9999 {
			return // an offset that leads out of the years that have four digits
		}
		var again Time
		if err := again.UnmarshalText(text); err != nil || !again.Equal(At(at.Time).Time) || len(text) != len(TimeFormat) {
			t.Errorf("%q is written as %q and read as %v, %v", s, text, again, err)
		}
	})
}

func TestValidProvider(t *testing.T) {
	for name, want := range map[string]bool{"acme": true, "acme-2": true, "2": true, strings.Repeat("a", MaxProvider): true,
		"": false, "Acme": false, "a_b": false, "a/b": false, "a.b": false, "\u00e9": false, strings.Repeat("a", MaxProvider+1): false} {
		if got := ValidProvider(name); got != want {
			t.Errorf("%q: got %v, want %v", name, got, want)
		}
	}
}

func TestNetwork(t *testing.T) {
	for addr, want := range map[string]string{
		"203.0.113.77": "203.0.113.0/24", "::ffff:203.0.113.77": "203.0.113.0/24", "127.0.0.1": "127.0.0.0/24",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "::1": "::/64",
	} {
		if got := Network(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
	if got := Network(netip.Addr{}); got != "" {
		t.Errorf("no address: got %q", got)
	}
}

func TestTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if got := TraceID([]byte(good)); got != "0af7651916cd43dd8448eb211c80319c" || Traceparent([]byte(good)) != good {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{"", "x", good + "0", good[:54] + "\n", strings.ToUpper(good), strings.Replace(good, "-", "0", 1), strings.Replace(good, "a", "-", 1), strings.Replace(good, "a", "g", 1),
		"ff" + good[2:], "01" + good[2:], good[:3] + strings.Repeat("0", 32) + good[35:], good[:36] + strings.Repeat("0", 16) + good[52:], good[1:]} {
		if got := Traceparent([]byte(bad)); got != "" {
			t.Errorf("%q: got %q", bad, got)
		}
	}
}

var traceparent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

func FuzzTraceparent(f *testing.F) {
	for _, s := range []string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-00", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, field []byte) {
		want, id := "", ""
		if m := traceparent.FindSubmatch(field); m != nil && len(bytes.Trim(m[1], "0")) > 0 && len(bytes.Trim(m[2], "0")) > 0 {
			want, id = string(field), string(m[1])
		}
		if got, gotID := Traceparent(field), TraceID(field); got != want || gotID != id {
			t.Errorf("%q: got %q of trace %q, want %q of %q", field, got, gotID, want, id)
		}
	})
}

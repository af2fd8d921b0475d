package payment

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"floodgate.internal/shared/wire"
)

// sign is what a provider does.
func sign(secret string, at time.Time, body string) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(stamp + "." + body))
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

func TestSignature(t *testing.T) {
	const body = `{"id":"evt_1"}`
	now := time.Unix(1767225600, 0)
	// Computed apart: printf '%s' '1767225600.{"id":"evt_1"}' | openssl dgst -sha256 -hmac old-secret
	const known = "t=1767225600,v1=57f3d2a2affbfc66aa160ee4299257693852dfeec0fd2edc7e24eaa03071da12"
	secrets := []string{"old-secret", "new-secret"}
	both := sign("x", now, body) + "," + strings.TrimPrefix(sign("new-secret", now, body), "t=1767225600,")
	for _, c := range []struct {
		name, signature, body string
		at                    time.Time
		want                  error
	}{
		{"computed by another program", known, body, now, nil},
		{"under the old secret", sign("old-secret", now, body), body, now, nil},
		{"under the new secret", sign("new-secret", now, body), body, now, nil},
		{"several, one of them ours", both, body, now, nil},
		{"spaces between", strings.ReplaceAll(both, ",", ", "), body, now, nil},
		{"another scheme beside it", sign("new-secret", now, body) + ",v0=00", body, now, nil},
		{"as old as may be", sign("new-secret", now, body), body, now.Add(Tolerance), nil},
		{"as early as may be", sign("new-secret", now, body), body, now.Add(-Tolerance), nil},
		{"too old", sign("new-secret", now, body), body, now.Add(Tolerance + time.Second), ErrAge},
		{"from the future", sign("new-secret", now, body), body, now.Add(-Tolerance - time.Second), ErrAge},
		{"another secret", sign("other", now, body), body, now, ErrForged},
		{"an empty secret", sign("", now, body), body, now, ErrForged},
		{"another secret and too old", sign("other", now, body), body, now.Add(time.Hour), ErrForged},
		{"another body", sign("new-secret", now, body), body + " ", now, ErrForged},
		{"an empty body", sign("new-secret", now, body), "", now, ErrForged},
		{"another time", strings.Replace(sign("new-secret", now, body), "t=1767225600", "t=1767225601", 1), body, now, ErrForged},
		{"the time written otherwise", strings.Replace(sign("new-secret", now, body), "t=", "t=0", 1), body, now, ErrForged},
		{"two times", "t=1767225600," + sign("new-secret", now, body), body, now, ErrUnsigned},
		{"no time", strings.TrimPrefix(sign("new-secret", now, body), "t=1767225600,"), body, now, ErrUnsigned},
		{"no v1", "t=1767225600", body, now, ErrUnsigned},
		{"v0 alone", strings.Replace(sign("new-secret", now, body), "v1=", "v0=", 1), body, now, ErrUnsigned},
		{"half a v1", sign("new-secret", now, body)[:60], body, now, ErrUnsigned},
		{"no hexadecimal", "t=1767225600,v1=" + strings.Repeat("zz", 32), body, now, ErrUnsigned},
		{"a negative time", strings.Replace(sign("new-secret", now, body), "t=", "t=-", 1), body, now, ErrUnsigned},
		{"a time of 30 digits", "t=" + strings.Repeat("1", 30) + ",v1=" + strings.Repeat("00", 32), body, now, ErrUnsigned},
		{"nothing", "", body, now, ErrUnsigned},
		{"only commas", ",,,", body, now, ErrUnsigned},
		{"too long", sign("new-secret", now, body) + strings.Repeat(",", wire.MaxSignature), body, now, ErrUnsigned},
	} {
		if got := verify(secrets, c.signature, []byte(c.body), c.at); !errors.Is(got, c.want) || (c.want == nil) != (got == nil) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if err := verify(nil, sign("", now, body), []byte(body), now); !errors.Is(err, ErrForged) {
		t.Errorf("no secrets: got %v", err)
	}
}

const anOrder = "0190163d-8694-739b-aea5-966c26f8ad91-42"

func text(id string, kind Type, paymentID, orderID string, amount int64, currency string) string {
	return fmt.Sprintf(`{"id":%q,"type":%q,"payment_id":%q,"order_id":%q,"amount":%d,"currency":%q}`, id, kind, paymentID, orderID, amount, currency)
}

func TestParseIsStrict(t *testing.T) {
	good := text("evt_1", Succeeded, "pay_1", anOrder, 4900, "EUR")
	e, err := parse([]byte(good))
	if want := (Event{"evt_1", Succeeded, "pay_1", anOrder, 4900, "EUR"}); err != nil || e != want {
		t.Errorf("got %+v, %v; want %+v", e, err, want)
	}
	if e, err := parse([]byte(strings.Replace(good, "4900", "0", 1))); err != nil || e.Amount != 0 {
		t.Errorf("nothing to pay: got %+v, %v", e, err)
	}
	change := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the body has no %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	long := strings.Repeat("x", wire.MaxIdempotencyKey+1)
	for body, want := range map[string]string{
		"":                              "JSON",
		"{}":                            "id: ",
		"null":                          "",
		"[]":                            "object",
		good + good:                     "JSON",
		good[:len(good)-1]:              "JSON",
		change(`{`, `{"id":"evt_1",`):   "id: duplicate member",
		change(`}`, `,"amount":1}`):     "amount: duplicate member",
		change(`}`, `,"note":1}`):       "note: unknown member",
		change(`"type"`, `"Type"`):      "Type: unknown member",
		change(`"evt_1"`, `""`):         "id: ",
		change(`"evt_1"`, `"a b"`):      "id: ",
		change(`"evt_1"`, `1`):          "id",
		change(`"evt_1"`, `"`+long+`"`): "id: ",
		change(`"pay_1"`, `"é"`):        "payment_id: ",
		change(`"pay_1"`, `null`):       "payment_id: ",
		change(`payment.succeeded`, `payment.ok`): "type: ",
		change(`"`+anOrder+`"`, `""`):             "order_id: ",
		change(`4900`, `-1`):                      "amount: ",
		change(`4900`, `49.5`):                    "amount",
		change(`4900`, `"4900"`):                  "amount",
		change(`4900`, `null`):                    "amount: ",
		change(`4900`, strings.Repeat("9", 400)):  "amount",
		change(`EUR`, `eur`):                      "currency: ",
		change(`EUR`, `EURO`):                     "currency: ",
		change(`evt_1`, "\xff"):                   "JSON",
		strings.Repeat(`{"id":`, 2000):            "JSON",
	} {
		if _, err := parse([]byte(body)); !errors.Is(err, ErrBody) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want one that says %q", body, err, want)
		}
	}
}

func TestDigestIsOfWhatIsSaid(t *testing.T) {
	base := Event{"evt_1", Succeeded, "pay_1", anOrder, 4900, "EUR"}
	same := base
	same.ID = "evt_2"
	if base.digest() != same.digest() {
		t.Error("the id is not of what an event says")
	}
	for _, other := range []Event{
		{"evt_1", Failed, "pay_1", anOrder, 4900, "EUR"}, {"evt_1", Succeeded, "pay_2", anOrder, 4900, "EUR"}, {"evt_1", Succeeded, "pay_1", anOrder + "1", 4900, "EUR"},
		{"evt_1", Succeeded, "pay_1", anOrder, 490, "EUR"}, {"evt_1", Succeeded, "pay_1", anOrder, 4900, "USD"},
	} {
		if base.digest() == other.digest() {
			t.Errorf("%+v has the digest of %+v", other, base)
		}
	}
}

// Whatever is taken for signed is signed, over the time as it stands there.
func FuzzVerify(f *testing.F) {
	now := time.Unix(1767225600, 0)
	f.Add(sign("secret", now, "{}"), "{}")
	f.Add("t=1,v1=00", "")
	f.Add("t==,v1==,t", "x")
	f.Fuzz(func(t *testing.T, signature, body string) {
		if verify([]string{"secret"}, signature, []byte(body), now) != nil {
			return
		}
		_, stamp, _ := strings.Cut(signature, "t=")
		stamp, _, _ = strings.Cut(stamp, ",")
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write([]byte(strings.TrimSpace(stamp) + "." + body))
		if !strings.Contains(strings.ToLower(signature), hex.EncodeToString(mac.Sum(nil))) {
			t.Errorf("took %q for %q", signature, body)
		}
	})
}

// What parse takes fits its columns.
func FuzzParse(f *testing.F) {
	f.Add([]byte(text("evt_1", Succeeded, "pay_1", anOrder, 4900, "EUR")))
	f.Add([]byte(`{"id":"a","id":"b"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := parse(body)
		if err != nil {
			if !errors.Is(err, ErrBody) {
				t.Errorf("got %v", err)
			}
			return
		}
		if !wire.ValidIdempotencyKey(e.ID) || !wire.ValidIdempotencyKey(e.PaymentID) || e.Amount < 0 || len(e.Currency) != 3 || e.OrderID == "" {
			t.Errorf("took %+v", e)
		}
	})
}

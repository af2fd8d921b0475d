package identity

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"floodgate.internal/shared/wire"
)

func TestRevoked(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	key := Key{KID: "hs", Alg: "HS256", Secret: secret}
	sign := func(claims m) []byte {
		claims["exp"] = now.Unix() + 3600
		return []byte(hs(m{"alg": "HS256", "kid": "hs"}, claims, secret))
	}
	unix := now.Unix()
	tokens := map[string][]byte{
		"a":            sign(m{"sub": "7", "jti": "a", "iat": unix - 10}),
		"b":            sign(m{"sub": "7", "jti": "b", "iat": unix}),
		"no iat":       sign(m{"sub": "7"}),
		"no iat, of 8": sign(m{"sub": "8"}),
		"8":            sign(m{"sub": "8", "jti": "7", "iat": unix - 10}),
	}
	before := func(seconds int64) wire.Time { return wire.At(now.Add(time.Duration(seconds) * time.Second)) }
	until := before(7200)
	for _, c := range []struct {
		name    string
		entries []wire.Revocation
		want    []string // the tokens that are revoked
	}{
		{"nothing", nil, nil},
		{"a jti", []wire.Revocation{{JTI: "a", Until: until}}, []string{"a"}},
		{"a jti that looks like a uid", []wire.Revocation{{JTI: "8", Until: until}}, nil},
		{"the jti 7", []wire.Revocation{{JTI: "7", Until: until}}, []string{"8"}},
		{"a uid's tokens", []wire.Revocation{{UID: "7", Before: before(-5), Until: until}}, []string{"a", "no iat"}},
		{"a uid's tokens, to the second", []wire.Revocation{{UID: "7", Before: before(0), Until: until}}, []string{"a", "no iat"}},
		{"all of a uid's tokens", []wire.Revocation{{UID: "7", Before: before(1), Until: until}}, []string{"a", "b", "no iat"}},
		{"a uid's old tokens", []wire.Revocation{{UID: "8", Before: before(-100), Until: until}}, []string{"no iat, of 8"}},
		{"both", []wire.Revocation{{UID: "8", Before: before(1), Until: until}, {JTI: "b", Until: until}}, []string{"8", "b", "no iat, of 8"}},
		{"expired", []wire.Revocation{{JTI: "a", Until: before(0)}, {UID: "8", Before: before(1), Until: before(-1)}}, nil},
		{"taken back", []wire.Revocation{{JTI: "a", Until: until}, {JTI: "a", Until: until, Gone: true}}, nil},
		{"somebody else's", []wire.Revocation{{UID: "9", Before: before(1), Until: until}, {JTI: "c", Until: until}}, nil},
	} {
		live := &Revoked{}
		v := verifier(t, Config{Keys: []Key{key}, Live: live, Now: func() time.Time { return now }})
		var config []Revocation
		for _, e := range c.entries {
			r := Revocation{JTI: e.JTI, UID: e.UID}
			if e.UID != "" {
				r.Before = e.Before.Format(time.RFC3339)
			}
			config = append(config, r)
		}
		check := func(how string, v *Verifier) {
			t.Helper()
			for name, token := range tokens {
				want := slices.Contains(c.want, name)
				if _, err := v.Verify(token); errors.Is(err, ErrRevoked) != want || err != nil && !want {
					t.Errorf("%s, %s: %s: got %v, want it revoked: %v", c.name, how, name, err, want)
				}
				if _, ok := v.Remembered(token); ok == want {
					t.Errorf("%s, %s: %s: remembered: %v", c.name, how, name, ok)
				}
			}
		}
		for _, token := range tokens {
			if _, err := v.Verify(token); err != nil {
				t.Fatal(err)
			}
		}
		live.Apply(c.entries, false, now)
		check("by a backend, verified before", v)
		check("by a backend", verifier(t, Config{Keys: []Key{key}, Live: live, Now: v.now}))
		if c.name != "expired" && c.name != "taken back" {
			check("by the configuration", verifier(t, Config{Keys: []Key{key}, Revoked: config, Now: v.now}))
			check("by the configuration, verified before", verifier(t, Config{Keys: []Key{key}, Revoked: config, Now: v.now, Before: v}))
		}
		live.Apply(nil, true, now)
		if live.Len() != 0 {
			t.Errorf("%s: %d left of an empty list", c.name, live.Len())
		}
		for name, token := range tokens {
			if _, err := v.Verify(token); err != nil {
				t.Errorf("%s: %s, after it was taken back: %v", c.name, name, err)
			}
		}
	}
}

// The list's law: after any changes it has what a map has, whatever was read meanwhile.
func TestTheListOfRevokedTokens(t *testing.T) {
	now := time.Now()
	live, want := &Revoked{}, map[string]bool{}
	var readers sync.WaitGroup
	stop := make(chan struct{})
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				key := jtiKey("7")
				live.hits(&key, 0)
			}
		}
	})
	for round := range 20 {
		var entries []wire.Revocation
		whole := round%7 == 6
		if whole {
			clear(want)
		}
		for i := range 500 {
			jti := fmt.Sprint((round*397 + i*31) % 2000)
			gone := (round+i)%3 == 0
			entries = append(entries, wire.Revocation{JTI: jti, Until: wire.At(now.Add(time.Hour)), Gone: gone})
			if want[jti] = true; gone {
				delete(want, jti)
			}
		}
		live.Apply(entries, whole, now)
		if live.Len() != len(want) {
			t.Fatalf("round %d: %d entries, want %d", round, live.Len(), len(want))
		}
		for i := range 2000 {
			key := jtiKey(fmt.Sprint(i))
			if live.hits(&key, 0) != want[fmt.Sprint(i)] {
				t.Fatalf("round %d: %d: want %v", round, i, want[fmt.Sprint(i)])
			}
		}
	}
	close(stop)
	readers.Wait()
	// What has expired goes with the next change of its part.
	var all []wire.Revocation
	for i := range 2000 {
		all = append(all, wire.Revocation{JTI: fmt.Sprint("next ", i), Until: wire.At(now.Add(3 * time.Hour))})
	}
	live.Apply(all, false, now.Add(2*time.Hour))
	if live.Len() != len(all) {
		t.Errorf("%d entries, want %d: expired ones stay", live.Len(), len(all))
	}
}

func TestRevocationsOfTheConfiguration(t *testing.T) {
	for _, c := range []struct {
		Revocation
		want string
	}{
		{Revocation{JTI: "a"}, ""},
		{Revocation{UID: "7", Before: "2026-07-01T12:00:00Z"}, ""},
		{Revocation{UID: "7", Before: "2026-07-01T14:00:00.5+02:00"}, ""},
		{Revocation{}, "jti: give a jti, or a uid"},
		{Revocation{JTI: "a", UID: "7"}, "jti: give a jti, or a uid"},
		{Revocation{JTI: "a", Before: "2026-07-01T12:00:00Z"}, "before: it goes with a uid"},
		{Revocation{UID: "7"}, `before: "" must be a time`},
		{Revocation{UID: "7", Before: "yesterday"}, `before: "yesterday" must be a time`},
		{Revocation{UID: "7 8", Before: "2026-07-01T12:00:00Z"}, `uid: "7 8" must be`},
		{Revocation{JTI: "a b"}, "jti: "},
		{Revocation{JTI: strings.Repeat("a", wire.MaxJTI+1)}, "jti: "},
	} {
		if err := c.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %s", c.Revocation, err, c.want)
		}
	}
}

func TestARememberedTokenAllocatesNothing(t *testing.T) {
	live := &Revoked{}
	live.Apply([]wire.Revocation{{JTI: "other", Until: wire.At(time.Now().Add(time.Hour))}, {UID: "7", Before: wire.At(time.Unix(1, 0)), Until: wire.At(time.Now().Add(time.Hour))}}, false, time.Now())
	v := verifier(t, Config{Keys: []Key{{KID: "hs", Alg: "HS256", Secret: secret}}, Live: live, Revoked: []Revocation{{JTI: "third"}}})
	token := []byte(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "jti": "a", "iat": time.Now().Unix(), "exp": time.Now().Unix() + 3600}, secret))
	if _, err := v.Verify(token); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { v.Verify(token); v.Remembered(token) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkVerifyBesideRevoked(b *testing.B) {
	live := &Revoked{}
	var entries []wire.Revocation
	for i := range wire.MaxRevocations {
		entries = append(entries, wire.Revocation{JTI: fmt.Sprint(i), Until: wire.At(time.Now().Add(time.Hour))})
	}
	live.Apply(entries, true, time.Now())
	v, err := New(Config{Keys: []Key{{KID: "hs", Alg: "HS256", Secret: secret}}, Live: live, Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	token := []byte(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "jti": "a", "exp": time.Now().Unix() + 3600}, secret))
	b.ReportAllocs()
	for b.Loop() {
		v.Verify(token)
	}
}

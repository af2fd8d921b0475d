//go:build servers

package reserve_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/uuid"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// What one buyer who orders and cancels in turn leaves in Redis does not grow past what MaxEnded lets it.
func TestWhatABuyerLeavesInRedisIsBounded(t *testing.T) {
	const rounds, most = 1000, 20
	bytes := func(maxEnded int) (used int64, accepted int) {
		all := loaded(t, nil)
		s, err := reserve.Open(redis.Config{Addrs: []string{os.Getenv("REDIS_ADDR")}, Prefix: all.Client().Prefix()}, maxEnded)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Client().Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range rounds {
			r := request("u0123456", 1)
			r.Key = uuid.NewString()
			v, err := s.Reserve(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if v.Answer == lua.TooMany {
				continue
			}
			accepted++
			if released, err := s.Release(t.Context(), sale, r.OrderID); !released || err != nil {
				t.Fatalf("release: %v, %v", released, err)
			}
		}
		c := s.Client()
		used, err = c.Do(t.Context(), c.B().Arbitrary("MEMORY", "USAGE").Keys(fmt.Sprintf("%s{sale:%d}:idem", s.Client().Prefix(), sale)).Args("SAMPLES", "0").Build()).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return used, accepted
	}
	free, n := bytes(0)
	bound, m := bytes(most)
	t.Logf("%d rounds: without a bound %d keys, %d bytes, %d a key; with a bound of %d %d keys, %d bytes", rounds, n, free, free/int64(n), most, m, bound)
	if n != rounds || m != most {
		t.Errorf("%d and %d orders were accepted, want %d and %d", n, m, rounds, most)
	}
	if bound > most*256 {
		t.Errorf("%d keys take %d bytes", m, bound)
	}
}

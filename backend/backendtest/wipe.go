package backendtest

import (
	"fmt"
	"testing"

	"floodgate.internal/backend/reserve"
)

// Wipe takes every key of a sale out of Redis, as a Redis that lost its disk would have.
func Wipe(t testing.TB, redis *reserve.Store, sale int64) {
	t.Helper()
	c := redis.Client()
	cmd := c.B().Unlink().Key(redis.OutboxKey(sale))
	for _, name := range []string{"state", "orders", "buyers", "idem", "applied", "gone"} {
		cmd = cmd.Key(fmt.Sprintf("%s{sale:%d}:%s", redis.Client().Prefix(), sale, name))
	}
	if err := c.Do(t.Context(), cmd.Build()).Error(); err != nil {
		t.Fatalf("wipe sale %d: %v", sale, err)
	}
}

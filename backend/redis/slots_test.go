package redis_test

import (
	"testing"

	"floodgate.internal/backend/redis"
)

func TestSlot(t *testing.T) {
	for key, want := range map[string]uint16{ // CLUSTER KEYSLOT of a real Redis
		"":                   0,
		"123456789":          12739,
		"foo":                12182,
		"{user1000}.follow":  3443,
		"foo{}{bar}":         8363,
		"foo{{bar}}zap":      4015,
		"foo{bar}{zap}":      5061,
		"bar":                5061,
		"fg:{sale:1}:outbox": redis.Slot("sale:1"),
	} {
		if got := redis.Slot(key); got != want {
			t.Errorf("%q: got slot %d, want %d", key, got, want)
		}
	}
}

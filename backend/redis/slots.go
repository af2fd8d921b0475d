package redis

import (
	"strings"
)

// Slot is the hash slot of a key on a Redis Cluster: CRC16 (XMODEM) of its hash tag, modulo 16384.
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
func Slot(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := 0; i < len(key); i++ {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

// slots is a set of hash slots.
type slots [1 << 14 / 64]uint64

var everySlot = func() (s slots) {
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}()

func (s *slots) add(slot uint64)      { s[slot/64] |= 1 << (slot % 64) }
func (s *slots) has(slot uint16) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

func (s *slots) remove(other slots) {
	for i := range s {
		s[i] &^= other[i]
	}
}

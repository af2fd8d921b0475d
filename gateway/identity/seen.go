package identity

import (
	"hash/maphash"
	"sync"
)

// Bounds of the memory of good tokens: shards*perShard tokens, none longer than maxSeen bytes. Only tokens with a valid
// signature get in, so nobody fills it without a key.
const (
	shards   = 64
	perShard = 2048
	maxSeen  = 1024
)

// seen remembers verified tokens by all of their bytes. When a shard is full any one of it makes room.
type seen struct {
	seed   maphash.Seed
	shards [shards]seenShard
}

// seenShard is one part; mu guards tokens.
type seenShard struct {
	mu     sync.RWMutex
	tokens map[string]Who
}

func newSeen() *seen {
	s := &seen{seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].tokens = map[string]Who{}
	}
	return s
}

func (s *seen) shard(token []byte) *seenShard {
	return &s.shards[maphash.Bytes(s.seed, token)%shards]
}

func (s *seen) get(token []byte) (Who, bool) {
	h := s.shard(token)
	h.mu.RLock()
	who, ok := h.tokens[string(token)]
	h.mu.RUnlock()
	return who, ok
}

func (s *seen) put(token string, who Who) {
	if len(token) > maxSeen {
		return
	}
	h := s.shard([]byte(token))
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.tokens) >= perShard {
		for other := range h.tokens {
			delete(h.tokens, other)
			break
		}
	}
	h.tokens[token] = who
}

func (s *seen) forget(token []byte) {
	h := s.shard(token)
	h.mu.Lock()
	delete(h.tokens, string(token))
	h.mu.Unlock()
}

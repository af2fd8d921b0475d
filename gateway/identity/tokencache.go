package identity

import (
	"hash/maphash"
	"sync"
)

// Bounds of the cache: shards*perShard tokens, none longer than maxCached bytes. Only tokens with a valid signature get
// in, so nobody can fill it without a key.
const (
	shards    = 64
	perShard  = 2048
	maxCached = 1024
)

// tokenCache holds verified tokens, by all of their bytes. In a full shard a new token replaces a random one.
type tokenCache struct {
	seed   maphash.Seed
	shards [shards]tokenShard
}

// tokenShard is one part; mu guards tokens.
type tokenShard struct {
	mu     sync.RWMutex
	tokens map[string]User
}

func newTokenCache() *tokenCache {
	c := &tokenCache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].tokens = map[string]User{}
	}
	return c
}

func (c *tokenCache) shard(token []byte) *tokenShard {
	return &c.shards[maphash.Bytes(c.seed, token)%shards]
}

func (c *tokenCache) get(token []byte) (User, bool) {
	s := c.shard(token)
	s.mu.RLock()
	user, ok := s.tokens[string(token)]
	s.mu.RUnlock()
	return user, ok
}

func (c *tokenCache) put(token string, user User) {
	if len(token) > maxCached {
		return
	}
	s := c.shard([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tokens) >= perShard {
		for other := range s.tokens {
			delete(s.tokens, other)
			break
		}
	}
	s.tokens[token] = user
}

func (c *tokenCache) remove(token []byte) {
	s := c.shard(token)
	s.mu.Lock()
	delete(s.tokens, string(token))
	s.mu.Unlock()
}

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

// verified is what is remembered of a token whose signature, times and claims are good.
type verified struct {
	User
	key    *verifyKey // a token of a key that is gone counts no more
	issued int64      // iat in milliseconds; the beginning of time where there is none
	// For the lists of revoked tokens.
	uid, jti revokedKey
	hasJTI   bool
}

// tokenCache holds verified tokens, by all of their bytes. In a full shard a new token replaces a random one.
type tokenCache struct {
	seed   maphash.Seed
	shards [shards]tokenShard
}

// tokenShard is one part; mu guards tokens.
type tokenShard struct {
	mu     sync.RWMutex
	tokens map[string]*verified
}

func newTokenCache() *tokenCache {
	c := &tokenCache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].tokens = map[string]*verified{}
	}
	return c
}

func (c *tokenCache) shard(token []byte) *tokenShard {
	return &c.shards[maphash.Bytes(c.seed, token)%shards]
}

// get is nil for a token that is not there.
func (c *tokenCache) get(token []byte) *verified {
	s := c.shard(token)
	s.mu.RLock()
	t := s.tokens[string(token)]
	s.mu.RUnlock()
	return t
}

func (c *tokenCache) put(token string, t *verified) {
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
	s.tokens[token] = t
}

func (c *tokenCache) remove(token []byte) {
	s := c.shard(token)
	s.mu.Lock()
	delete(s.tokens, string(token))
	s.mu.Unlock()
}

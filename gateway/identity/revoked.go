package identity

import (
	"crypto/sha256"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/wire"
)

// Revocation ends tokens before they expire: the one with an id, or a user's that were issued before a time. It is an entry of
// the configuration.
type Revocation struct {
	JTI    string `yaml:"jti"`
	UID    string `yaml:"uid"`
	Before string `yaml:"before"` // RFC 3339
}

// Check says what is wrong with the entry; the error names the field.
func (r Revocation) Check() error {
	_, _, err := r.entry()
	return err
}

func (r Revocation) entry() (revokedKey, int64, error) {
	switch {
	case (r.JTI == "") == (r.UID == ""):
		return revokedKey{}, 0, conf.Wrong("jti: give a jti, or a uid and before")
	case r.JTI != "" && r.Before != "":
		return revokedKey{}, 0, conf.Wrong("before: it goes with a uid; a jti is one token")
	case r.JTI != "" && !wire.ValidJTI(r.JTI):
		return revokedKey{}, 0, conf.Wrong("jti: %q must have 1 to %d visible ASCII characters", r.JTI, wire.MaxJTI)
	case r.JTI != "":
		return jtiKey(r.JTI), always, nil
	case !wire.ValidUID(r.UID):
		return revokedKey{}, 0, conf.Wrong("uid: %q must be 1 to %d of [A-Za-z0-9._-]", r.UID, wire.MaxUID)
	}
	at, err := time.Parse(time.RFC3339, r.Before)
	if err != nil {
		return revokedKey{}, 0, conf.Wrong("before: %q must be a time like 2026-07-01T12:00:00Z", r.Before)
	}
	return uidKey(r.UID), at.UnixMilli(), nil
}

// revokedKey is a jti or a uid, as the first 128 bits of a SHA-256: no pointers, and a size that does not depend on the token.
type revokedKey [16]byte

func jtiKey(jti string) revokedKey { return keyOf("jti " + jti) }
func uidKey(uid string) revokedKey { return keyOf("uid " + uid) }

func keyOf(s string) revokedKey {
	sum := sha256.Sum256([]byte(s))
	return revokedKey(sum[:16])
}

// always is later than any token was issued.
const always = math.MaxInt64

// revokedShards divides the list, so that a change copies little of it.
const revokedShards = 256

// Revoked is the tokens that the backends say are revoked. Reading takes no lock and allocates nothing.
type Revoked struct {
	size   atomic.Int64
	shards [revokedShards]atomic.Pointer[map[revokedKey]revokedEntry]
	heard  atomic.Pointer[time.Time] // see Heard
	keep   atomic.Int64              // see Keep, in milliseconds

	mu     sync.Mutex // guards the changes
	counts [revokedShards]int
}

// revokedEntry: tokens issued before that time, in milliseconds since 1970, are revoked; the entry is needless from until on.
type revokedEntry struct{ before, until int64 }

// Apply puts changes in force or, with whole, makes entries the whole list. Entries whose time is up at now are left out.
func (r *Revoked) Apply(entries []wire.Revocation, whole bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := map[int]map[revokedKey]revokedEntry{}
	if whole {
		for i := range r.shards {
			next[i] = map[revokedKey]revokedEntry{}
		}
	}
	for _, e := range entries {
		key, before := uidKey(e.UID), e.Before.UnixMilli()
		if e.JTI != "" {
			key, before = jtiKey(e.JTI), always
		}
		i := int(key[0])
		if next[i] == nil {
			next[i] = map[revokedKey]revokedEntry{}
			if old := r.shards[i].Load(); old != nil {
				for k, v := range *old {
					if v.until > now.UnixMilli() {
						next[i][k] = v
					}
				}
			}
		}
		if e.Gone || e.Until.UnixMilli() <= now.UnixMilli() {
			delete(next[i], key)
		} else {
			next[i][key] = revokedEntry{before, e.Until.UnixMilli()}
		}
	}
	for i, shard := range next {
		r.shards[i].Store(&shard)
		r.size.Add(int64(len(shard) - r.counts[i]))
		r.counts[i] = len(shard)
	}
}

// Len is how many entries the list has.
func (r *Revoked) Len() int { return int(r.size.Load()) }

// hits reports whether the entry of key revokes what was issued then, in milliseconds.
func (r *Revoked) hits(key *revokedKey, issued int64) bool {
	shard := r.shards[key[0]].Load()
	if shard == nil {
		return false
	}
	e, ok := (*shard)[*key]
	return ok && issued < e.before
}

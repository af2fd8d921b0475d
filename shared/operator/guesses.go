package operator

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of wrong tokens. An address may present burstWrong at once, and one more in each everyWrong.
const (
	burstWrong   = 10
	everyWrong   = 6 * time.Second
	maxAddresses = 10_000 // that are remembered
	sweepEvery   = time.Second
)

// guesses counts wrong tokens by address, of IPv6 by /64, loopback like any other: a proxy may stand there. An address is forgotten
// once it may present burstWrong again. While maxAddresses are remembered, all others share one bucket of the same size.
type guesses struct {
	mu    sync.Mutex // guards what follows
	known map[netip.Prefix]*guesser
	rest  *guesser // of addresses that found no place
	swept time.Time
}

type guesser struct {
	bucket *rate.Limiter
	wrong  int // tokens, since the address is remembered
}

func newGuesser() *guesser {
	return &guesser{bucket: rate.NewLimiter(rate.Every(everyWrong), burstWrong)}
}

func newGuesses() *guesses { return &guesses{known: map[netip.Prefix]*guesser{}, rest: newGuesser()} }

// take is told whether a token that came from an address was right. With a wait of more than 0 the address must wait for so long, and
// nothing is said of the token. Otherwise wrong counts the wrong tokens of the address. Both are decided at once: a thousand guesses at
// the same moment are not more than those one after the other.
func (g *guesses) take(from netip.Prefix, right bool, now time.Time) (wait time.Duration, wrong int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	who := g.of(from, right, now)
	if who == nil { // nothing is known against it
		return 0, 0
	}
	if tokens := who.bucket.TokensAt(now); tokens < 1 {
		return max(1, time.Duration((1-tokens)*float64(everyWrong))), who.wrong
	}
	if !right {
		who.bucket.AllowN(now, 1)
		who.wrong++
	}
	return 0, who.wrong
}

// of is what is known of an address. A wrong token makes it known. nil: nothing is. The caller holds mu.
func (g *guesses) of(from netip.Prefix, right bool, now time.Time) *guesser {
	if who := g.known[from]; who != nil {
		return who
	}
	if len(g.known) >= maxAddresses && now.Sub(g.swept) >= sweepEvery {
		g.swept = now
		for p, who := range g.known {
			if who.bucket.TokensAt(now) >= burstWrong {
				delete(g.known, p)
			}
		}
	}
	switch {
	case len(g.known) >= maxAddresses:
		return g.rest
	case right:
		return nil
	}
	who := newGuesser()
	g.known[from] = who
	return who
}

// network is what an address counts as. What is no address counts as one.
func network(remote string) netip.Prefix {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	addr, bits := at.Addr().Unmap().WithZone(""), 64
	if addr.Is4() {
		bits = 32
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		panic(fmt.Sprintf("BUG: %v: %v", addr, err))
	}
	return p
}

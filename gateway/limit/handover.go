package limit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Elsewhere decides about a key of a table that was handed over to another process. false: it was taken back, decide here.
type Elsewhere func(key string) (Decision, bool)

// Levels is what some keys of a table have in their buckets, for another process on this machine. Tokens has MaxLaws entries for
// each key, Ages nanoseconds since they were counted, Rules for each key the place in Laws of what they were counted by.
type Levels struct {
	Laws   [][]Law
	Keys   []string
	Rules  []int
	Tokens []float64
	Ages   []int64
}

func (l *Levels) add(key string, s *state, rules *[]*Rule, at int64) {
	i := slices.Index(*rules, s.rule)
	if i < 0 {
		i = len(*rules)
		*rules = append(*rules, s.rule)
		l.Laws = append(l.Laws, s.rule.laws)
	}
	l.Keys, l.Rules, l.Ages = append(l.Keys, key), append(l.Rules, i), append(l.Ages, max(0, at-s.touched))
	l.Tokens = append(l.Tokens, s.tokens[:]...)
}

var errLevels = errors.New("levels of buckets that cannot be")

// check reports what no table can have sent.
func (l *Levels) check() error {
	n := len(l.Keys)
	if len(l.Rules) != n || len(l.Ages) != n || len(l.Tokens) != n*MaxLaws {
		return fmt.Errorf("%w: %d keys, %d rules, %d ages, %d tokens", errLevels, n, len(l.Rules), len(l.Ages), len(l.Tokens))
	}
	for _, laws := range l.Laws {
		if len(laws) < 1 || len(laws) > MaxLaws {
			return fmt.Errorf("%w: a rule of %d laws", errLevels, len(laws))
		}
		for _, law := range laws {
			if !(law.Rate > 0) || math.IsInf(law.Rate, 0) || law.Burst < 1 {
				return fmt.Errorf("%w: the law %+v", errLevels, law)
			}
		}
	}
	for i := range n {
		if r := l.Rules[i]; r < 0 || r >= len(l.Laws) || l.Ages[i] < 0 {
			return fmt.Errorf("%w: rule %d, %d ns", errLevels, r, l.Ages[i])
		}
		for j, law := range l.Laws[l.Rules[i]] {
			if tokens := l.Tokens[i*MaxLaws+j]; !(tokens <= float64(law.Burst)) || math.IsInf(tokens, 0) {
				return fmt.Errorf("%w: %v tokens of %d", errLevels, tokens, law.Burst)
			}
		}
	}
	return nil
}

// rules is the rule of each of l.Laws: rule itself where the laws are the same, else one that is older.
func (l *Levels) rules(rule *Rule) (all []*Rule) {
	for _, laws := range l.Laws {
		if slices.Equal(laws, rule.laws) {
			all = append(all, rule)
		} else {
			all = append(all, NewRule("old", rule.MaxKeys, time.Time{}, laws...))
		}
	}
	return all
}

// Parts is how many parts a table is handed over in: its shards, and the overflow buckets last.
func (b *Buckets[K]) Parts() int { return shards + 1 }

// HandOver returns what a part has, and has to decide about its keys from then on. Both happen at the same instant, so that no
// token is taken twice. Parts are handed over in order. Keys whose buckets are full are left out.
func (b *Buckets[K]) HandOver(part int, rule *Rule, now time.Time, to Elsewhere) (l Levels) {
	at, rules := int64(now.Sub(b.epoch)), []*Rule(nil)
	if part == shards {
		b.overflow.mu.Lock()
		defer b.overflow.mu.Unlock()
		if b.overflow.state.rule != nil && b.overflowUsed.Load() {
			l.add("", &b.overflow.state, &rules, at)
		}
		return l
	}
	s := &b.shards[part]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere = to
	at = s.monotone(at)
	for k := s.oldest.next; k != &s.oldest; k = k.next {
		b.setRule(&k.state, &s.scratch, rule, at)
		if !k.full(&s.scratch, at) {
			l.add(keyText(k.key), &k.state, &rules, at)
		}
	}
	return l
}

// TakeBack has the table decide about all its keys again. What it handed over is as it was.
func (b *Buckets[K]) TakeBack() {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		s.elsewhere = nil
		s.mu.Unlock()
	}
}

// TakeOver adds what another process handed over to a table that was not used yet. The buckets earn by their old laws until rule
// holds. The table may have more keys than the rule allows, until they are full.
func (b *Buckets[K]) TakeOver(l Levels, rule *Rule, now time.Time) error {
	if err := l.check(); err != nil {
		return err
	}
	rules, at := l.rules(rule), int64(now.Sub(b.epoch))
	for i, text := range l.Keys {
		st := state{touched: at - l.Ages[i], rule: rules[l.Rules[i]], retryAt: math.MinInt64}
		copy(st.tokens[:], l.Tokens[i*MaxLaws:])
		if text == "" {
			b.overflow.mu.Lock()
			b.overflow.state = st
			b.overflowUsed.Store(true)
			b.overflow.mu.Unlock()
			continue
		}
		key, ok := keyOf[K](text)
		if !ok {
			return fmt.Errorf("%w: a key of %d bytes", errLevels, len(text))
		}
		hash := b.hash(key)
		s := &b.shards[hash%shards]
		s.mu.Lock()
		s.monotone(at)
		b.size.Add(1)
		k := &bucket[K]{key: key, state: st}
		b.add(s, k, hash)
		s.oldest.pushBack(k)
		s.mu.Unlock()
	}
	return nil
}

// TakeText is Take of a key as Elsewhere gets it.
func (b *Buckets[K]) TakeText(text string, rule *Rule, now time.Time) (Decision, error) {
	key, ok := keyOf[K](text)
	if !ok {
		return Decision{}, fmt.Errorf("%w: a key of %d bytes", errLevels, len(text))
	}
	return b.Take(key, rule, now), nil
}

// takeElsewhere is Take of a part that was handed over. The caller has read s.elsewhere, and let the lock go.
func (b *Buckets[K]) takeElsewhere(to Elsewhere, key K, rule *Rule, now time.Time) Decision {
	d, ok := to(keyText(key))
	if !ok {
		return b.Take(key, rule, now)
	}
	return d.under(rule)
}

// under is a decision of another process under a rule of this one.
func (d Decision) under(rule *Rule) Decision {
	d.Rule = rule
	if d.Law < 0 || d.Law >= len(rule.laws) {
		d.Law = 0
	}
	return d
}

// maxKey is the longest key, in bytes.
const maxKey = 256

func keyText[K comparable](key K) string {
	switch k := any(key).(type) {
	case string:
		return k
	case [16]byte:
		return string(k[:])
	}
	panic("BUG: a table with keys that are neither texts nor addresses")
}

func keyOf[K comparable](text string) (key K, ok bool) {
	switch k := any(&key).(type) {
	case *string:
		*k = strings.Clone(text)
		return key, len(text) > 0 && len(text) <= maxKey
	case *[16]byte:
		return key, copy(k[:], text) == len(k) && len(text) == len(k)
	}
	return key, false
}

// HandOver returns what the bucket has, and has to decide from then on. Requests that wait here get their tokens here.
func (g *Global) HandOver(rule *Rule, now time.Time, to Elsewhere) Levels {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.elsewhere = to
	now = g.advance(rule, now)
	return Levels{Laws: [][]Law{g.rule.laws}, Keys: []string{""}, Rules: []int{0}, Ages: []int64{0}, Tokens: []float64{g.tokens.TokensAt(now), 0, 0}}
}

// TakeBack has the bucket decide here again.
func (g *Global) TakeBack() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.elsewhere = nil
}

// TakeOver gives a bucket that was not used yet what another process handed over.
func (g *Global) TakeOver(l Levels, rule *Rule, now time.Time) error {
	if err := l.check(); err != nil {
		return err
	}
	if len(l.Keys) != 1 {
		return fmt.Errorf("%w: %d buckets of all", errLevels, len(l.Keys))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rule = l.rules(rule)[0]
	law, tokens := g.rule.laws[0], l.Tokens[0]
	g.touched = now.Add(-time.Duration(l.Ages[0]))
	owed := int(math.Ceil(max(0, -tokens))) // promised to requests that wait in the other process
	begin := g.touched.Add(-time.Second)
	g.tokens = rate.Limiter{}
	g.tokens.SetBurstAt(begin, law.Burst+owed)
	g.tokens.SetLimitAt(begin, rate.Limit(tokens+float64(owed)))
	g.tokens.SetLimitAt(g.touched, rate.Limit(law.Rate))
	if owed > 0 {
		g.tokens.ReserveN(g.touched, owed)
		g.tokens.SetBurstAt(g.touched, law.Burst)
	}
	return nil
}

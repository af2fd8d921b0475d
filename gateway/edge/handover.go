package edge

import (
	"fmt"

	"floodgate.internal/gateway/limit"
)

// bucketTable is one table of buckets, whatever its keys are.
type bucketTable struct {
	parts    int
	rule     func(*Settings) *limit.Rule
	handOver func(part int, rule *limit.Rule, to limit.Elsewhere) limit.Levels
	takeBack func()
	takeOver func(limit.Levels, *limit.Rule) error
	take     func(key string, set *Settings) (limit.Decision, error)
}

func tableOf[K comparable](s *Server, b *limit.Buckets[K], rule func(*Settings) *limit.Rule) bucketTable {
	return bucketTable{
		b.Parts(), rule,
		func(part int, r *limit.Rule, to limit.Elsewhere) limit.Levels {
			return b.HandOver(part, r, s.Now(), to)
		},
		b.TakeBack,
		func(l limit.Levels, r *limit.Rule) error { return b.TakeOver(l, r, s.Now()) },
		func(key string, set *Settings) (limit.Decision, error) { return b.TakeText(key, rule(set), s.Now()) },
	}
}

// tables is every table of buckets, in the order in which they are handed over.
func (s *Server) tables() []bucketTable {
	global := func(set *Settings) *limit.Rule { return set.Global }
	return []bucketTable{
		tableOf(s, s.orders, func(set *Settings) *limit.Rule { return set.Order }),
		tableOf(s, s.payments, func(set *Settings) *limit.Rule { return set.Payment }),
		tableOf(s, s.reads, func(set *Settings) *limit.Rule { return set.Read }),
		tableOf(s, s.ips, func(set *Settings) *limit.Rule { return set.IP }),
		tableOf(s, s.ipUsers, func(set *Settings) *limit.Rule { return set.IPUsers }),
		tableOf(s, s.webhooks, func(set *Settings) *limit.Rule { return set.Webhook }),
		{
			1, global,
			func(_ int, r *limit.Rule, to limit.Elsewhere) limit.Levels { return s.global.HandOver(r, s.Now(), to) },
			s.global.TakeBack,
			func(l limit.Levels, r *limit.Rule) error { return s.global.TakeOver(l, r, s.Now()) },
			func(_ string, set *Settings) (limit.Decision, error) {
				return s.global.Take(set.Global, set.GlobalWait, s.Now()), nil
			},
		},
	}
}

// Part is a part of a table of buckets, as it goes from one process to another.
type Part struct {
	Table  int
	Levels limit.Levels
	Last   bool // of all parts
}

// HandOver returns the i-th part of all buckets, and has to decide about its keys from then on. Parts are handed over in order.
func (s *Server) HandOver(i int, to func(table int, key string) (limit.Decision, bool)) (Part, error) {
	tables, set := s.tables(), s.settings.Load()
	for n, t := range tables {
		if i < t.parts {
			l := t.handOver(i, t.rule(set), func(key string) (limit.Decision, bool) { return to(n, key) })
			return Part{n, l, n == len(tables)-1 && i == t.parts-1}, nil
		}
		i -= t.parts
	}
	return Part{}, fmt.Errorf("there is no part %d of the buckets", i)
}

// TakeBack has this process decide about all its buckets again.
func (s *Server) TakeBack() {
	for _, t := range s.tables() {
		t.takeBack()
	}
}

// TakeOver adds a part of another process's buckets, before this one has answered anybody.
func (s *Server) TakeOver(p Part) error {
	tables := s.tables()
	if p.Table < 0 || p.Table >= len(tables) {
		return fmt.Errorf("there is no table %d of buckets", p.Table)
	}
	t := tables[p.Table]
	return t.takeOver(p.Levels, t.rule(s.settings.Load()))
}

// TakeFor takes a token for a request that another process answers.
func (s *Server) TakeFor(table int, key string) (limit.Decision, error) {
	tables := s.tables()
	if table < 0 || table >= len(tables) {
		return limit.Decision{}, fmt.Errorf("there is no table %d of buckets", table)
	}
	d, err := tables[table].take(key, s.settings.Load())
	d.Rule = nil // is this process's
	return d, err
}

// Leave ends each connection with its next answer. The listener accepts no more.
func (s *Server) Leave() { s.leaving.Store(true) }

// Open is how many connections are open.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

package api

import (
	"log/slog"
	"sync"
	"time"
)

// sparse logs at most one warning of a kind in a second: when a server is down every request has the same to say. The
// metrics count each.
type sparse struct {
	log *slog.Logger

	mu    sync.Mutex // guards kinds
	kinds map[string]*told
}

type told struct {
	at      time.Time
	dropped int
}

// warn logs, or counts for the next one. msg is one of a few constants.
func (s *sparse) warn(msg string, args ...any) {
	now := time.Now()
	s.mu.Lock()
	k := s.kinds[msg]
	if k == nil {
		if s.kinds == nil {
			s.kinds = map[string]*told{}
		}
		k = &told{}
		s.kinds[msg] = k
	}
	if !k.at.IsZero() && now.Sub(k.at) < time.Second {
		k.dropped++
		s.mu.Unlock()
		return
	}
	dropped := k.dropped
	k.at, k.dropped = now, 0
	s.mu.Unlock()
	s.log.Warn(msg, append(args, "not_logged", dropped)...)
}

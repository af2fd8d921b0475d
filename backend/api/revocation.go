package api

import (
	"strconv"

	"floodgate.internal/shared/problem"
)

// getRevocations is the long poll of gateways for the list of revoked tokens.
func (s *Server) getRevocations(r *request) string {
	wait, p := r.query.wait()
	if p != nil {
		return r.refuse(p)
	}
	since := int64(-1)
	if v, ok := r.query["since"]; ok {
		n, err := strconv.ParseUint(v, 10, 63)
		if err != nil {
			return r.refuse(problem.Invalid("since", "it must be the version that the last answer had"))
		}
		since = int64(n)
	}
	if s.Revocations == nil || !s.Revocations.Ready() {
		return r.refuse(overloaded("the list of revoked tokens is being read"))
	}
	unpark, ok := s.park()
	if !ok {
		return r.refuse(overloaded("too many requests are waiting"))
	}
	answer := s.Revocations.Feed(s.stopping, since, wait)
	unpark()
	return r.private(answer)
}

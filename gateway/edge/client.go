package edge

import (
	"net/netip"

	"floodgate.internal/gateway/network"
	"floodgate.internal/shared/problem"
)

// claims reports whether the request says where it comes from.
func (h *head) claims() bool { return len(h.forwarded)+len(h.elements) > 0 }

// client is the address that the request counts for: the connection's, or the one that a trusted proxy names. It is not
// valid for a connection in memory.
func (x *exchange) client() netip.Addr {
	if x.addr.IsValid() {
		return x.addr
	}
	peer, h := x.conn.addr, &x.conn.heads.last
	x.addr = peer
	switch {
	case !h.claims():
	case !x.set.Trusted.Contains(peer):
		x.s.untrusted(peer)
	default:
		in := &x.ctx.Request.Header
		if len(h.forwarded) > 0 {
			x.addr = network.Client(peer, x.set.Trusted, in.PeekAll("X-Forwarded-For"))
		}
		if len(h.elements) > 0 {
			by := network.ClientForwarded(peer, x.set.Trusted, in.PeekAll("Forwarded"))
			x.disputed = len(h.forwarded) > 0 && by != x.addr
			x.addr = by
		}
	}
	return x.addr
}

// oneClient reports whether what a trusted proxy says of the client is one address, or answers 400. A proxy writes one of the two
// fields and lets the other through, as the client wrote it. Which one it writes is not known here, so neither wins.
func (x *exchange) oneClient() bool {
	if h := &x.conn.heads.last; len(h.forwarded) > 0 && len(h.elements) > 0 {
		x.client()
	}
	if x.disputed {
		x.reject(ruleProtocol, problem.New(problem.BadRequest, "X-Forwarded-For and Forwarded name different addresses"))
	}
	return !x.disputed
}

// untrusted counts a request that says where it comes from, of a peer that is no trusted proxy. It is logged once a minute at most:
// either a client lies, or a proxy is missing in trusted_proxies and its clients share one address.
func (s *Server) untrusted(peer netip.Addr) {
	s.metrics.claims.Inc()
	if s.peerLogs.Allow() {
		s.Log.Warn("X-Forwarded-For or Forwarded of a peer that is not in trusted_proxies is not read", "peer", peer.String())
	}
}

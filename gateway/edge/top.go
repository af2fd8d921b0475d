package edge

import (
	"net/netip"
	"time"

	"floodgate.internal/shared/topk"
)

// countClient counts the request for its address and its user.
func (x *exchange) countClient() {
	refused := x.ctx.Response.StatusCode() >= 400
	if a := x.client(); a.IsValid() {
		x.s.topAddrs.Add(x.s.key(a), refused, x.now)
	}
	if x.uid != "" {
		x.s.topUIDs.Add(x.uid, refused, x.now)
	}
}

// Top is the n uids and the n addresses that sent most requests since the beginning of the last whole minute.
func (s *Server) Top(n int) (since time.Time, uids, addrs []topk.Client) {
	now := s.Now()
	_, byUID := s.topUIDs.Top(n, now)
	since, byAddr := s.topAddrs.Top(n, now)
	addrName := func(key [16]byte) string {
		a := netip.AddrFrom16(key).Unmap()
		if a.Is6() {
			return netip.PrefixFrom(a, s.IPv6Prefix).String()
		}
		return a.String()
	}
	return since, clients(byUID, func(uid string) string { return uid }), clients(byAddr, addrName)
}

func clients[K comparable](all []topk.Entry[K], name func(K) string) []topk.Client {
	list := make([]topk.Client, 0, len(all))
	for _, e := range all {
		list = append(list, topk.Client{Name: name(e.Key), Requests: e.Count, Over: e.Over, Refused: e.Marked})
	}
	return list
}

// Package replay runs a recorded access log against other limits, and says who would have been refused. The limits are the real
// ones: the tables of package limit, driven by the times of the log. See docs/limits.md.
package replay

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/network"
)

// limitRules are the rules that a replay decides anew. A request that the log has refused by another one stays refused by it.
var limitRules = []string{"ban", "eligible", "ip", "ip_users", "webhook", "order", "payment", "read", "global"}

// anonymous are the rules that refuse requests whose user is not known, and that came to the address's buckets at least, or were banned.
var anonymous = map[string]bool{"ip": true, "ip_users": true, "webhook": true, "identity": true, "ban": true}

// Requests are put in the order in which they arrived: a line is written when a request is answered. A request that arrived more than
// window before the newest line is out of order, and so is one that finds maxHeld others held.
const (
	window  = 30 * time.Second
	maxHeld = 1 << 16
)

// player has the buckets of a replay.
type player struct {
	limits                  edge.Settings
	ips, ipUsers, webhooks  *limit.Buckets[string]
	orders, payments, reads *limit.Buckets[string]
	global                  *limit.Global

	held   requests
	newest time.Time // arrival of any request so far
	played time.Time // of the last one that was decided
	report *Report
	count  *counts
}

// Run replays a log against limits. Of limits the rules, exemptions and lists count. It reads the log once, in memory that is bounded
// by max_keys of the rules. The error is one of reading, or says why this log cannot be replayed.
func Run(log io.Reader, limits edge.Settings) (*Report, error) {
	reg := prometheus.NewRegistry()
	p := &player{
		limits: limits, report: &Report{}, count: newCounts(),
		ips: limit.New[string]("ip", reg), ipUsers: limit.New[string]("ip_users", reg), webhooks: limit.New[string]("webhook", reg),
		orders: limit.New[string]("order", reg), payments: limit.New[string]("payment", reg), reads: limit.New[string]("read", reg),
		global: limit.NewGlobal("global", reg),
	}
	lines := newLines(log)
	for {
		r, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p.add(r)
	}
	for len(p.held) > 0 {
		p.play(heap.Pop(&p.held).(*request))
	}
	p.report.Log = lines.seen
	if p.report.Log.Requests == 0 {
		return nil, fmt.Errorf("there is no request in this log: %d lines, %d of them no JSON; it must be one that a gateway wrote with log.format: json and log.access_every: 1",
			lines.seen.Lines, lines.seen.Unreadable)
	}
	p.count.finish(p.report)
	return p.report, nil
}

// add holds a request until no earlier one can come.
func (p *player) add(r *request) {
	if r.arrived.After(p.newest) {
		p.newest = r.arrived
	}
	heap.Push(&p.held, r)
	for len(p.held) > maxHeld || len(p.held) > 0 && p.newest.Sub(p.held[0].arrived) > window {
		p.play(heap.Pop(&p.held).(*request))
	}
}

// play decides a request anew and counts it.
func (p *player) play(r *request) {
	if r.arrived.Before(p.played) {
		p.report.OutOfOrder++ // decided as if it came now: time does not go back
		r.arrived = p.played
	}
	p.played = r.arrived
	before := ""
	if slices.Contains(limitRules, r.Rule) {
		before = r.Rule
	}
	after, known := p.decide(r)
	p.count.add(r, before, after, known)
}

// decide says which rule refuses the request; "": none of limitRules. known is false where the log does not have what came after the
// refusal that does not happen any more: who the user was.
func (p *player) decide(r *request) (rule string, known bool) {
	s := &p.limits
	drawn, ok := edge.DrawnOn(r.Method, r.Path)
	switch {
	case !ok, r.UID == "" && !anonymous[r.Rule] && drawn.Rule != "webhook":
		if slices.Contains(limitRules, r.Rule) { // a page that was not in memory: whose bucket refused it is not in the log
			return r.Rule, true
		}
		return "", true // it came to no bucket: a page from memory, or refused before
	case within(s.BannedNetworks, r.Network):
		return "ban", true
	}
	if !within(s.Exempt, r.Network) && r.Addr != "" && !(r.Rule == "ban" && r.UID == "") {
		table, law, name := p.ips, s.IP, "ip"
		switch {
		case drawn.Rule == "webhook":
			table, law, name = p.webhooks, s.Webhook, "webhook"
		case r.Known:
			table, law, name = p.ipUsers, s.IPUsers, "ip_users"
		}
		if !table.Take(r.Addr, law, r.arrived).OK {
			return name, true
		}
	}
	if r.UID == "" {
		return "", r.Rule != "ip" && r.Rule != "ip_users" && r.Rule != "ban" || drawn.Rule == "ip"
	}
	if drawn.Lists {
		if _, banned := s.BannedUsers[r.UID]; banned {
			return "ban", true
		}
		if _, eligible := s.EligibleUsers[r.UID]; !eligible && len(s.EligibleUsers) > 0 {
			return "eligible", true
		}
	}
	if r.Rule == "body" { // before the user's buckets
		return "", true
	}
	if _, exempt := s.ExemptUsers[r.UID]; !exempt {
		table, law := p.reads, s.Read
		switch drawn.Rule {
		case "order":
			table, law = p.orders, s.Order
		case "payment":
			table, law = p.payments, s.Payment
		}
		if !table.Take(r.UID, law, r.arrived).OK {
			if r.Rule == "gate" { // it would be refused by the gate all the same
				return "", true
			}
			return drawn.Rule, true
		}
	}
	if drawn.Global && r.Rule != "gate" && !p.global.Replay(s.Global, s.GlobalWait, r.arrived).OK {
		return "global", true
	}
	return "", true
}

// within reports whether the set holds all of a network: the log does not have the address itself.
func within(set network.Set, of string) bool {
	if set.Empty() {
		return false
	}
	n, err := netip.ParsePrefix(of)
	if err != nil {
		return false
	}
	last := n.Addr().AsSlice()
	for i := n.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return set.Contains(n.Addr()) && set.Contains(end)
}

// request is one line of the log.
type request struct {
	line
	arrived time.Time
	place   int // in the log
}

// requests is a heap.Interface, the first that arrived on top.
type requests []*request

func (h requests) Len() int { return len(h) }
func (h requests) Less(i, j int) bool {
	if h[i].arrived.Equal(h[j].arrived) {
		return h[i].place < h[j].place
	}
	return h[i].arrived.Before(h[j].arrived)
}
func (h requests) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *requests) Push(x any)   { *h = append(*h, x.(*request)) }
func (h *requests) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}

package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net"
	"os"
	"strings"
	"time"

	"floodgate.internal/shared/topk"
	"floodgate.internal/shared/version"
	"floodgate.internal/shared/wire"
)

// reportEvery is the time between two reports.
const reportEvery = time.Second

// report tells a backend each second how this gateway is, until ctx is done or the gateway drains: after an upgrade in place the
// new process has the name. A report that is lost is not sent again: the next one has all that it had.
func (r *process) report(ctx context.Context, public net.Addr) {
	about := wire.GatewayReport{Name: reportName(public), Life: rand.Text(), Version: version.This().Version, StartedAt: wire.At(time.Now())}
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r.draining.Load() {
			return
		}
		if !r.clk.Synced() {
			continue // nothing could be signed
		}
		body, err := json.Marshal(r.describe(about))
		if err != nil {
			panic("BUG: " + err.Error())
		}
		status, err := r.pool.PostReport(body)
		bad := err != nil || status >= 300
		if bad && !failing {
			r.log.Warn("backends do not take this gateway's reports: operators do not see it", "status", status, "error", err)
		}
		failing = bad
	}
}

// reportName is the host's name and the public port, as far as a report takes their characters.
func reportName(public net.Addr) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "gateway"
	}
	host = strings.Map(func(c rune) rune {
		if c < 128 && (c == '-' || c == '.' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return c
		}
		return '-'
	}, host)
	_, port, _ := net.SplitHostPort(public.String())
	return host[:min(len(host), 100)] + ":" + port
}

// describe fills in what changes.
func (r *process) describe(w wire.GatewayReport) wire.GatewayReport {
	w.At = wire.At(r.clk.Now())
	w.FeedAgeMS = -1
	if r.gate.Ready() {
		w.FeedAgeMS = r.gate.Age(time.Now()).Milliseconds()
	}
	r.mu.Lock()
	current := r.current.Load()
	w.Generation, w.Hash, w.MaxConnections = int64(current.Generation), current.Hash, int64(r.bounds.Max)
	for _, e := range r.history {
		if e.Result == taken {
			w.ReloadedAt = e.At
		}
	}
	public := r.public
	r.mu.Unlock()
	if public != nil {
		w.Connections = int64(public.Connections())
	}
	if files, err := openFiles(); err == nil {
		w.MaxFiles = int64(files)
	}
	if at := r.certs.Expires(); !at.IsZero() {
		w.TLSExpiresAt = new(wire.At(at))
	}
	if at := r.tls.expires.Load(); at != 0 {
		w.BackendTLSExpiresAt = new(wire.At(time.Unix(at, 0)))
	}
	if j := r.tokens.jwks.Load(); j != nil {
		w.JWKSKeys = int64(j.Keys())
		if at, _ := j.State(); !at.IsZero() {
			w.JWKSReadAt = new(wire.At(at))
		}
	}
	w.Presses, w.Refusals = r.edge.Counts()
	since, uids, networks := r.edge.Top(wire.MaxTopClients)
	w.TopSince, w.UIDs, w.Networks = wire.At(since), topClients(uids), topClients(networks)
	return w
}

func topClients(list []topk.Client) []wire.TopClient {
	all := make([]wire.TopClient, len(list))
	for i, c := range list {
		all[i] = wire.TopClient{Name: c.Name, Requests: int64(c.Requests), Refused: int64(min(c.Refused, c.Requests))}
	}
	return all
}

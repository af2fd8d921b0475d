package backend

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/reserve"
)

// What a 202 survives, by what Redis does with a write before it answers.
const (
	survivesAlways = "the death of every process at once, a power cut, a wiped broker; not Redis's disk being destroyed " +
		"before the order is in the broker or in MySQL"
	survivesLess = "the death of any process, a wiped broker; not a power cut of Redis's machine, nor a restart of Redis from an older copy, " +
		"within the second or more that its disk lags"
	survivesConfirm = "the death of every process at once, a power cut, a wiped broker, the loss of Redis's disk, a failover to an older copy; " +
		"not Redis's disk and a majority of the broker's nodes being destroyed together"
	survivesNothing = "the death of any process but Redis; not a restart of Redis before the order is in the broker or in MySQL"
)

// sayWhatSurvives reads each Redis node's real settings and logs what they, and accept.after, mean for a 202: a row of the
// table in ARCHITECTURE.md.
func sayWhatSurvives(ctx context.Context, redis *reserve.Store, after string, log *slog.Logger) {
	log = log.With("accept.after", after)
	nodes := redis.Client().Nodes()
	addrs := make([]string, 0, len(nodes))
	for addr := range nodes {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	for _, addr := range addrs {
		appendonly, appendfsync, err := persistence(ctx, nodes[addr])
		log := log.With("redis", addr)
		switch {
		case after == AfterConfirm:
			if err != nil {
				appendonly, appendfsync = "unknown", "unknown"
			}
			log.Info("an accepted order survives "+survivesConfirm, "appendonly", appendonly, "appendfsync", appendfsync)
		case err != nil:
			log.Warn("redis does not say how it keeps its data, so what an accepted order survives is not known: "+
				"with appendonly yes and appendfsync always it is "+survivesAlways, "error", err)
		case appendonly == "yes" && appendfsync == "always":
			log.Info("an accepted order survives "+survivesAlways, "appendonly", appendonly, "appendfsync", appendfsync)
		case appendonly == "yes":
			log.Warn("redis does not sync before it answers (set appendfsync always, or accept.after: confirm): an accepted order survives "+survivesLess,
				"appendonly", appendonly, "appendfsync", appendfsync)
		default:
			log.Warn("redis has no append-only file (set appendonly yes, appendfsync always, or accept.after: confirm): an accepted order survives "+survivesNothing,
				"appendonly", appendonly, "appendfsync", appendfsync)
		}
	}
}

func persistence(ctx context.Context, node rueidis.Client) (appendonly, appendfsync string, err error) {
	ctx, cancel := context.WithTimeout(ctx, reserve.Timeout)
	defer cancel()
	read := func(name string) (string, error) {
		m, err := node.Do(ctx, node.B().ConfigGet().Parameter(name).Build()).AsStrMap()
		if err != nil {
			return "", fmt.Errorf("CONFIG GET %s: %w", name, err)
		}
		if m[name] == "" {
			return "", fmt.Errorf("CONFIG GET %s: no answer", name)
		}
		return strings.ToLower(m[name]), nil
	}
	if appendonly, err = read("appendonly"); err != nil {
		return "", "", err
	}
	appendfsync, err = read("appendfsync")
	return appendonly, appendfsync, err
}

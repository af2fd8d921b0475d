package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/gateways"
	"floodgate.internal/shared/wire"
)

const (
	// silent is for how long a gateway may not have been heard of: it reports once in a second.
	silent = 5 * time.Second
	// jwksAge is how old what a gateway read of a login service's keys may be: it reads them again each 24 h, or more often.
	jwksAge = 25 * time.Hour
)

var errNoGateway = errors.New("no gateway reports")

// gatewayRows are the checks of the gateways, by what each reports of itself.
func (l *looks) gatewayRows() []Row {
	if l.Gateways == nil {
		return nil
	}
	row := func(name, want, do string, look func([]gateways.Gateway) (Result, error)) Row {
		return Row{name, want, do, func(ctx context.Context) (Result, error) {
			all, err := l.Gateways(ctx)
			if err == nil && len(all) == 0 {
				err = errNoGateway
			}
			if err != nil {
				return Result{}, err
			}
			return look(all)
		}}
	}
	return []Row{
		row("gateways", fmt.Sprintf("at least one, each heard of within %v, with a feed as fresh and a clock within %v", silent, MaxSkew), "start those that are silent; does each reach a backend? `gateway check` says", l.gateways),
		row("gateway_versions", "one version", "replace the older ones: docs/upgrading.md", func(all []gateways.Gateway) (Result, error) {
			return same(all, func(g gateways.Gateway) string { return g.Version }), nil
		}),
		row("gateway_configurations", "one configuration file", "bring the same file to each: a reload takes it over", func(all []gateways.Gateway) (Result, error) {
			return same(all, func(g gateways.Gateway) string { return g.Hash[:min(len(g.Hash), 12)] }), nil
		}),
		row("gateway_connections", "room for more connections, and files for them", "raise server.max_connections and LimitNOFILE=, or add gateways", l.connections),
		row("gateway_certificates", "valid beyond the end of the sale, and login keys that were read within a day", "renew them: gateways read the files again by themselves", l.expiries),
	}
}

func (l *looks) gateways(all []gateways.Gateway) (Result, error) {
	var odd []string
	for _, g := range all {
		switch quiet, feed, clock := l.now().Sub(g.HeardAt.Time), time.Duration(g.FeedAgeMS)*time.Millisecond, g.HeardAt.Sub(g.At.Time); {
		case quiet > silent:
			odd = append(odd, fmt.Sprintf("%s is silent for %v", g.Name, quiet.Round(time.Second)))
		case feed < 0:
			odd = append(odd, g.Name+" never received the feed of sales")
		case feed > silent:
			odd = append(odd, fmt.Sprintf("%s has a feed that is %v old", g.Name, feed.Round(time.Second)))
		case clock.Abs() > MaxSkew:
			odd = append(odd, fmt.Sprintf("%s has a clock that is %v off", g.Name, clock.Abs().Round(time.Second)))
		}
	}
	if len(odd) > 0 {
		return Result{Value: list(odd)}, nil
	}
	return Result{Value: count(len(all), "gateway", "gateways"), OK: true}, nil
}

// same compares what each gateway has.
func same(all []gateways.Gateway, of func(gateways.Gateway) string) Result {
	who := map[string][]string{}
	for _, g := range all {
		who[of(g)] = append(who[of(g)], g.Name)
	}
	var parts []string
	for _, value := range slices.Sorted(maps.Keys(who)) {
		parts = append(parts, value+": "+list(who[value]))
	}
	return Result{Value: strings.Join(parts, "; "), OK: len(who) == 1}
}

func (l *looks) connections(all []gateways.Gateway) (Result, error) {
	var most, open int64
	var odd []string
	for _, g := range all {
		most += g.MaxConnections
		open += g.Connections
		if g.Connections >= g.MaxConnections {
			odd = append(odd, g.Name+" is full")
		}
		if g.MaxFiles <= g.MaxConnections {
			odd = append(odd, fmt.Sprintf("%s may open %d files for %d connections", g.Name, g.MaxFiles, g.MaxConnections))
		}
	}
	r := Result{Value: fmt.Sprintf("%d of %d connections are open", open, most), OK: len(odd) == 0}
	if l.Shoppers > 0 {
		r.OK, r.Want = r.OK && most >= l.Shoppers, fmt.Sprintf("connections for %d shoppers, and files for them", l.Shoppers)
	}
	if len(odd) > 0 {
		r.Value += "; " + list(odd)
	}
	return r, nil
}

func (l *looks) expiries(all []gateways.Gateway) (Result, error) {
	r, err := l.record()
	if err != nil {
		return Result{}, err
	}
	var odd []string
	var first *wire.Time
	for _, g := range all {
		for what, at := range map[string]*wire.Time{"certificate": g.TLSExpiresAt, "certificate for the backends": g.BackendTLSExpiresAt} {
			if at == nil {
				continue
			}
			if first == nil || at.Before(first.Time) {
				first = at
			}
			if !at.After(r.EndsAt) {
				odd = append(odd, fmt.Sprintf("%s's %s expires %s", g.Name, what, at.Format(time.RFC3339)))
			}
		}
		if at := g.JWKSReadAt; at != nil && l.now().Sub(at.Time) > jwksAge {
			odd = append(odd, fmt.Sprintf("%s read the login service's keys last at %s", g.Name, at.Format(time.RFC3339)))
		}
	}
	slices.Sort(odd)
	switch {
	case len(odd) > 0:
		return Result{Value: list(odd)}, nil
	case first == nil:
		return Result{Value: "no certificate: plain HTTP", OK: true}, nil
	}
	return Result{Value: "the first expires " + first.Format(time.RFC3339), OK: true}, nil
}

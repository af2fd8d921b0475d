package backend

import (
	"context"
	"errors"
	"sync/atomic"

	"floodgate.internal/backend/redis"
)

// status is why the process is not ready; "" when it works.
type status struct{ why atomic.Pointer[string] }

func (s *status) set(why string) { s.why.Store(&why) }
func (s *status) get() string    { return *s.why.Load() }

// reasons are what keeps the process from its work.
func (p *process) reasons(ctx context.Context) []string {
	if s := p.status.get(); s != "" {
		return []string{s}
	}
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	reasons := []string{}
	add := func(what string, err error) {
		if err != nil {
			reasons = append(reasons, what+": "+err.Error())
		}
	}
	reserves, err := p.redis.Client().AnyReserves(ctx) // one node is enough: the sales of others are not this process's fault
	if err == nil && !reserves && p.roles.API {
		err = errors.New("it was started anew, and its sales are being closed")
	}
	add("redis", err)
	if p.roles.API {
		locks, err := p.skus.Locks(ctx)
		if err == nil && !locks {
			err = errors.New("it was started anew, and its SKUs are being forgotten")
		}
		add("redis", err)
	}
	add("sales", p.catalog.Ready())
	if p.lists != nil && !p.lists.Ready() {
		add("lists", errors.New("who may buy has not been read from mysql yet"))
	}
	if p.roles.Consumer || p.roles.Timer {
		add("mysql", p.db.PingContext(ctx))
	}
	if p.broker != nil && (p.roles.Relay || p.roles.Consumer) {
		add("rabbitmq", p.broker.Healthy())
	}
	return reasons
}

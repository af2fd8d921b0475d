package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
)

// connect reaches Redis and MySQL, however long that takes; /-/ready says what it waits for. A schema that is not there
// is an error.
func (p *process) connect(ctx context.Context) (err error) {
	c := p.config
	err = p.insist(ctx, "redis", func(ctx context.Context) (err error) {
		rc := c.Redis.config()
		rc.Log = p.log
		p.redis, err = reserve.Open(rc, c.Orders.MaxEnded)
		return err
	})
	if err != nil {
		return err
	}
	err = p.insist(ctx, "redis", func(ctx context.Context) error { // before anything is decided by a clock
		asked := time.Now()
		now, err := p.redis.Client().Now(ctx)
		if err == nil {
			p.clk.Set(now, asked)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := durability.Read(ctx, p.stores()).Evicts(); err != nil && !c.Development {
		return err
	}
	if p.db, err = store.Open(c.MySQL.DSN.Reveal(), c.MySQL.MaxOpen); err != nil {
		return err
	}
	if p.anyMySQL, err = store.OpenAny(c.MySQL.DSN.Reveal(), 1); err != nil {
		return err
	}
	var version int64
	err = p.insist(ctx, "mysql", func(ctx context.Context) (err error) {
		version, err = store.Migrated(ctx, p.anyMySQL) // the other may serve only when this process has compared it
		return err
	})
	if err != nil {
		return err
	}
	if version < store.Version() {
		return fmt.Errorf("mysql: the schema is at version %d, this backend needs %d: run `backend migrate -config FILE` first", version, store.Version())
	}
	if c.Queue.Driver == RabbitMQ {
		bc := c.Queue.config()
		bc.Log, bc.Register = p.log, p.reg
		p.broker, err = broker.Open(bc)
	}
	return err
}

// insist calls f until it succeeds, with growing pauses, or ctx ends.
func (p *process) insist(ctx context.Context, what string, f func(context.Context) error) error {
	const most = 2 * time.Second
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, most) {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := f(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		p.status.set(fmt.Sprintf("waiting for %s: %v", what, err))
		p.log.Warn("waiting for "+what, "error", err, "again_in", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

package backend

import (
	"context"

	"floodgate.internal/backend/order"
	"floodgate.internal/backend/outbox"
)

// reader is what reads the outboxes in the name of one consumer of theirs.
func (p *process) reader(name string) outbox.ReaderConfig {
	return outbox.ReaderConfig{Redis: p.redis, Log: p.log, Register: p.reg,
		Live: p.catalog.Live, Name: name, ClaimIdle: p.config.Outbox.ClaimIdle, DeadLetter: p.letters.Take}
}

// relay carries orders from the outboxes to the broker.
func (p *process) relay(name string) *outbox.Relay {
	c := outbox.RelayConfig{ReaderConfig: p.reader(name), Broker: p.broker,
		Deferred: func(ctx context.Context, sale int64) (bool, error) { return order.HasDeferred(ctx, p.db, sale) }}
	if p.config.Accept.After == AfterConfirm {
		c.Spare = p.config.Accept.ConfirmWithin
	}
	return outbox.NewRelay(c)
}

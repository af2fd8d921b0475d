package backend

import (
	"context"
	"fmt"
	"os"

	"floodgate.internal/backend/order"
	"floodgate.internal/backend/outbox"
	"github.com/google/uuid"
)

// reader is what reads the outboxes in the name of one consumer of theirs.
func (p *process) reader(name string) outbox.ReaderConfig {
	return outbox.ReaderConfig{Redis: p.redis, Log: p.log, Register: p.reg,
		Live: p.catalog.Live, Name: name, ClaimIdle: p.config.Outbox.ClaimIdle, DeadLetter: p.deadLetters.Take}
}

// relay carries orders from the outboxes to the broker.
func (p *process) relay(name string) *outbox.Relay {
	c := outbox.RelayConfig{ReaderConfig: p.reader(name), Broker: p.broker, Tracer: p.tracer,
		Deferred: func(ctx context.Context, sale int64) (bool, error) { return order.HasDeferred(ctx, p.db, sale) }}
	if p.config.Accept.After == AfterConfirm {
		c.Spare = p.config.Accept.ConfirmWithin
	}
	return outbox.NewRelay(c)
}

// consumerName is unique among all processes, ever.
func consumerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
}

package backend

import (
	"context"
	"time"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/preflight"
)

// system is what is looked at before a sale, without its stores.
func (c Config) system() preflight.System {
	s := preflight.System{Queued: c.Queue.Driver == RabbitMQ, Confirm: c.Accept.After == AfterConfirm, Replicas: c.Accept.replicas(), MaxLag: c.Orders.MaxLag,
		MaxConnections: c.API.MaxConnections, MaxOpen: c.MySQL.MaxOpen, Secrets: c.developmentSecrets()}
	if c.Development {
		s.Secrets = append(s.Secrets, "development: true")
	}
	if c.TestPayments() {
		s.Secrets = append(s.Secrets, "the test provider of payments")
	}
	if c.Listen.InternalTLS.on() {
		s.Certificate = func() (time.Time, error) {
			m, err := c.Listen.InternalTLS.read()
			return m.Expires, err
		}
	}
	return s
}

// preflight looks whether everything is so that a sale can be held.
func (p *process) preflight(auditor *audit.Auditor) func(ctx context.Context, sale, shoppers int64) (preflight.Report, error) {
	system := p.config.system()
	system.Redis, system.DB, system.Broker = p.redis, p.db, p.broker
	return func(ctx context.Context, sale, shoppers int64) (preflight.Report, error) {
		s := preflight.Sale{System: &system, ID: sale, Audit: auditor, QueuedBound: p.config.Orders.QueuedBound, MaxQueued: p.config.Orders.MaxQueued,
			Gateways: p.gateways.List, Shoppers: shoppers}
		return s.Look(ctx)
	}
}

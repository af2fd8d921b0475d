package backend

import (
	"floodgate.internal/backend/api"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/revocation"
)

// newAPI makes the server of the internal listener, which answers from the features once it has begun.
func (p *process) newAPI() *api.Server {
	c := p.config
	return api.New(api.Config{
		Keys: c.Keys(), Clock: p.clk, Log: p.log, Register: p.reg, Tracer: p.tracer,
		Limits: api.Limits{InFlight: c.API.MaxInFlight, Waiting: c.API.MaxWaiting, Connections: c.API.MaxConnections,
			Queued: c.Orders.MaxQueued, Lag: c.Orders.MaxLag, Line: c.API.line()},
	})
}

// beginAPI starts what the role api alone needs, and lets its server answer.
func (p *process) beginAPI(base *stage) {
	reader := order.NewReader(order.ReaderConfig{DB: p.db, Redis: p.redis, Log: p.log, Register: p.reg})
	base.start("order reader", reader.Run)
	p.lists = eligibility.New(eligibility.Config{DB: p.db, Log: p.log, Register: p.reg})
	base.start("lists", p.lists.Run)
	p.revocations = revocation.New(revocation.Config{DB: p.db, Clock: p.clk, Keep: p.config.Revocations.Keep, Log: p.log, Register: p.reg})
	base.start("revoked tokens", p.revocations.Run)
	p.origins = origins.New(p.clk.Now())
	parts := api.Parts{
		Catalog: p.catalog, Redis: p.redis, Orders: p.orders, Reader: reader, Claims: p.claims, Carts: p.carts, Standby: p.standby, SKUs: p.skus,
		Reconciler: p.reconciler, Webhooks: p.payments, Timelines: p.timelines, Gateways: p.gateways, Lists: p.lists, Origins: p.origins, Revocations: p.revocations, Outage: p.outage,
	}
	if p.config.TestPayments() {
		parts.Payer = p.orders
	}
	if n := p.config.Accept.replicas(); n > 0 {
		replicas := outbox.NewReplicas(outbox.ReplicasConfig{Redis: p.redis, Count: n, Within: p.config.Accept.ConfirmWithin, Register: p.reg})
		base.start("replicas", replicas.Run)
		parts.Confirmer = replicas
	}
	if p.config.Accept.After == AfterConfirm {
		parts.Confirmer = outbox.NewConfirmer(outbox.ConfirmerConfig{Tracer: p.tracer, Redis: p.redis, Broker: p.broker, Within: p.config.Accept.ConfirmWithin, Register: p.reg})
	}
	p.api.Begin(parts)
}

// outage names the store without which no order can be finished and that has been away for longer than
// orders.max_outage; with accept.after: confirm the broker at once, for without it none can be accepted.
func (p *process) outage() string {
	most := p.config.Orders.MaxOutage
	if p.catalog.Silence() > most {
		return "mysql"
	}
	if p.broker == nil {
		return ""
	}
	if down := p.broker.Down(); down > most || down > 0 && p.config.Accept.After == AfterConfirm {
		return "rabbitmq"
	}
	return ""
}

package backend

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"floodgate.internal/backend/api"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/closing"
	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/event"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/payment"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/timeline"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/tracing"
	"floodgate.internal/shared/version"
)

// process is one running backend.
type process struct {
	config Config
	roles  Roles
	log    *slog.Logger
	reg    *prometheus.Registry
	clk    *clock.Clock
	status *status

	api       *api.Server // nil without the role
	internal  net.Listener
	tls       *internalTLS // of the internal listener; nil: plain HTTP
	operators *operators   // answers the admin listener from the first moment on
	roster    *roster
	admin     net.Listener

	redis  *reserve.Store
	db     *sql.DB
	broker *broker.Broker // nil with redis-stream

	anyMySQL *sql.DB // for the reconciler alone: also to a MySQL that serves nobody yet

	catalog     *catalog.Catalog
	events      *event.Log
	intents     *intent.Runner
	orders      *order.Store
	claims      *coupon.Claims
	carts       *cart.Carts
	skus        *sku.Cache
	standby     *standby.Line
	deadLetters *deadletter.Store
	payments    *payment.Webhooks
	timelines   *timeline.Store
	gateways    *gateways.Store
	reconciler  *reconcile.Reconciler
	closing     *closing.Sales
	lists       *eligibility.Lists // nil without the role api
	origins     *origins.Report    // the same
	revocations *revocation.List   // the same
	durability  durabilityLog
	tracer      *tracing.Tracer // nil: traces are off
}

// newProcess makes a process of the configuration that was read from path.
func newProcess(path string, c Config, roles Roles, log *slog.Logger) (*process, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.This().Metric("backend"))
	p := &process{config: c, roles: roles, log: log, reg: reg, clk: &clock.Clock{}, status: &status{}, durability: durabilityLog{log: log}}
	p.status.set("starting")
	p.watchReady()
	var err error
	if p.tracer, err = tracing.Open(c.Tracing, "backend", log, reg); err != nil {
		return nil, err
	}
	p.events = event.NewLog(c.Events.Endpoints)
	p.roster = newRoster(path, c, log, reg)
	p.roster.events = p.events
	p.operators = newOperators(p.status, reg, log, c.Listen.Admin, c.AdminHosts)
	if roles.API {
		p.api = p.newAPI()
	}
	return p, nil
}

// run listens, connects, works until ctx ends, and drains: first what takes requests, then what works on its own, then
// what both rest on, last the operators' listener and the connections.
func (p *process) run(ctx context.Context) (err error) {
	if err := p.listen(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	operators, base, work := newStage(ctx, fail), newStage(ctx, fail), newStage(ctx, fail)
	operators.start("admin listener", func(ctx context.Context) error { return p.operators.serve(ctx, p.admin) })
	operators.start("operators' names", func(ctx context.Context) error { return p.roster.follow(ctx, hangups(ctx)) })
	requests := newStage(ctx, fail)
	if p.api != nil {
		requests.start("internal listener", func(context.Context) error { return p.api.Serve(p.internal) })
		if p.tls != nil {
			base.start("certificates of the internal listener", p.tls.watch)
		}
	}
	p.log.Info("listening", "roles", p.roles.String(), "internal", addr(p.internal), "admin", addr(p.admin))

	err = p.connect(ctx)
	if err == nil {
		p.begin(base, work)
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			err = cause
		}
	} else if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // asked to end before it had begun
	}
	return errors.Join(err, p.drain(requests, work, base, operators))
}

func (p *process) listen(ctx context.Context) (err error) {
	if p.admin, err = listen(ctx, "listen.admin", p.config.Listen.Admin); err != nil {
		return err
	}
	if p.api == nil {
		return nil
	}
	if p.internal, err = listen(ctx, "listen.internal", p.config.Listen.Internal); err != nil {
		return errors.Join(err, p.admin.Close())
	}
	if c := p.config.Listen.InternalTLS; c.on() {
		if p.tls, err = newInternalTLS(c, p.log, p.reg); err != nil {
			return errors.Join(err, p.admin.Close(), p.internal.Close())
		}
		p.internal = p.tls.listener(p.internal)
	}
	return nil
}

func addr(ln net.Listener) string {
	if ln == nil {
		return "none"
	}
	return ln.Addr().String()
}

// begin builds the features, and starts what the roles do.
func (p *process) begin(base, work *stage) {
	p.build()
	p.watchQueued()
	base.start("what survives", p.durability.watch(p.stores()))
	base.start("catalog", p.catalog.Run)
	base.start("standby lines", p.standby.Run)
	if p.roles.API || p.roles.Timer {
		base.start("reconciler", p.reconciler.Keep)
		base.start("stock", p.skus.Keep)
	} else { // whoever decides, or says what is not there, must know the incarnation
		base.start("incarnation of redis", p.reconciler.Follow)
	}
	if p.roles.API {
		p.beginAPI(base)
	}
	consumer := consumerName()
	if p.roles.Relay && p.broker != nil {
		work.start("relay", p.relay(consumer).Run)
	}
	if p.roles.Consumer {
		p.beginConsumer(work, consumer)
	}
	operator := p.newAdmin()
	base.start("live view", operator.Sample)
	if p.roles.Timer {
		p.beginTimer(work, operator)
	}
	p.operators.become(operator)
	p.status.set("")
}

// build makes the features that every role has, each after those that it needs.
func (p *process) build() {
	c := p.config
	p.catalog = catalog.New(catalog.Config{DB: p.db, Redis: p.redis, Clock: p.clk, Log: p.log, Register: p.reg})
	p.standby = standby.New(standby.Config{DB: p.db, Redis: p.redis, Catalog: p.catalog, Clock: p.clk, Log: p.log, Register: p.reg,
		MaxLine: c.Standby.MaxLine})
	p.intents = intent.New(intent.Config{DB: p.db, Sales: sale.Reader{DB: p.db}, Redis: p.redis, Clock: p.clk, Log: p.log, Register: p.reg, Returned: p.standby.Wake})
	p.orders = order.NewStore(order.Config{Tracer: p.tracer, DB: p.db, Redis: p.redis, Intents: p.intents, Events: p.events, Clock: p.clk, Log: p.log, Register: p.reg,
		QueuedBound: c.Orders.QueuedBound, AcceptWithin: c.Standby.AcceptWithin, Returned: p.standby.Wake})
	p.claims = coupon.New(coupon.Config{DB: p.db, Clock: p.clk, Register: p.reg})
	p.deadLetters = deadletter.NewStore(deadletter.Config{DB: p.db, Orders: p.orders, Clock: p.clk, Log: p.log, Register: p.reg})
	p.payments = payment.New(payment.Config{DB: p.db, Orders: p.orders, Events: p.events, Clock: p.clk, Log: p.log, Register: p.reg,
		Providers: c.Payments.providers()})
	p.timelines = timeline.New(timeline.Config{DB: p.db, Orders: p.orders, Clock: p.clk, Log: p.log, Register: p.reg,
		Keep: c.Timeline.Keep, MaxRows: c.Timeline.MaxRowsPerSale})
	reconciling := reconcile.Config{DB: p.db, AnyMySQL: p.anyMySQL, Orders: p.orders, Redis: p.redis, Log: p.log, Register: p.reg, Lease: c.Locks.Lease}
	if p.broker != nil { // else the interface is nil
		reconciling.Fence = p.broker
	}
	p.reconciler = reconcile.New(reconciling)
	p.gateways = gateways.New(p.redis.Client(), p.clk)
	p.skus = sku.NewCache(sku.Config{DB: p.db, Redis: p.redis.Client(), Log: p.log, Register: p.reg})
	p.carts = cart.New(cart.Config{DB: p.db, SKUs: p.skus, Events: p.events, Clock: p.clk, Log: p.log, Register: p.reg,
		PayWithin: c.Carts.PayWithin, AbandonedAfter: c.Carts.AbandonedAfter, MaxInFlight: c.Carts.MaxInFlight})
}

// tracesTime is how long the end of the process waits for the collector to take the last traces.
const tracesTime = 2 * time.Second

// drain ends the stages in turn, within the time that the configuration gives, and closes the connections.
func (p *process) drain(requests, work, base, operators *stage) error {
	p.log.Info("draining", "at_most", p.config.Drain)
	p.status.set("shutting down")
	ctx, cancel := context.WithTimeout(context.Background(), p.config.Drain)
	defer cancel()
	var errs []error
	if p.api != nil {
		errs = append(errs, p.api.Shutdown(ctx))
		if err := p.internal.Close(); err != nil && !errors.Is(err, net.ErrClosed) { // it may not have been served yet
			errs = append(errs, err)
		}
	}
	for _, t := range []*stage{requests, work, base, operators} {
		errs = append(errs, t.end(ctx))
	}
	if p.broker != nil {
		errs = append(errs, p.broker.Close())
	}
	for _, db := range []*sql.DB{p.db, p.anyMySQL} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if p.redis != nil {
		p.redis.Close()
	}
	closing, endClosing := context.WithTimeout(context.Background(), tracesTime)
	defer endClosing()
	if err := p.tracer.Close(closing); err != nil {
		p.log.Warn("the last traces are lost", "error", err)
	}
	p.log.Info("ended")
	return errors.Join(errs...)
}

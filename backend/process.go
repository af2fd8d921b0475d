package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"floodgate.internal/backend/admin"
	"floodgate.internal/backend/api"
	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/cart"
	"floodgate.internal/backend/catalog"
	"floodgate.internal/backend/coupon"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/backend/order"
	"floodgate.internal/backend/origins"
	"floodgate.internal/backend/outbox"
	"floodgate.internal/backend/payment"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/standby"
	"floodgate.internal/backend/store"
	"floodgate.internal/backend/timeline"
	"floodgate.internal/shared/clock"
)

// process is one running backend.
type process struct {
	config Config
	roles  Roles
	log    *slog.Logger
	reg    *prometheus.Registry
	clk    *clock.Clock
	status *status

	api      *api.Server // nil without the role
	internal net.Listener
	front    *front // the admin listener's, from the first moment on
	operator net.Listener

	redis      *reserve.Store
	db         *sql.DB
	broker     *broker.Broker // nil with redis-stream
	catalog    *catalog.Catalog
	book       *order.Store
	claims     *coupon.Claims
	lists      *eligibility.Lists // nil without the role api
	origins    *origins.Report    // the same
	line       *standby.Line
	letters    *deadletter.Store
	payments   *payment.Webhooks
	reconciler *reconcile.Reconciler
	shelf      *sku.Cache
	survival   survival
}

func newProcess(c Config, roles Roles, log *slog.Logger) *process {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p := &process{config: c, roles: roles, log: log, reg: reg, clk: &clock.Clock{}, status: &status{}}
	p.survival.log = log
	p.status.set("starting")
	p.front = newFront(p.status, reg, log, c.Listen.Admin, c.AdminHosts)
	if roles.API {
		p.api = api.New(api.Config{
			Keys: c.Keys(), Clock: p.clk, Log: log, Register: reg,
			Limits: api.Limits{InFlight: c.API.MaxInFlight, Waiting: c.API.MaxWaiting, Connections: c.API.MaxConnections, Queued: c.Orders.MaxQueued,
				Lag: c.Orders.MaxLag, Line: c.API.line()},
		})
	}
	return p
}

// run listens, connects, works until ctx ends, and drains: first what takes requests, then what works on its own, then
// what both rest on, last the operators' listener and the connections.
func (p *process) run(ctx context.Context) (err error) {
	if err := p.listen(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	operators, base, work := newTier(ctx, fail), newTier(ctx, fail), newTier(ctx, fail)
	operators.start("admin listener", func(ctx context.Context) error { return p.front.serve(ctx, p.operator) })
	requests := newTier(ctx, fail)
	if p.api != nil {
		requests.start("internal listener", func(context.Context) error { return p.api.Serve(p.internal) })
	}
	p.log.Info("listening", "roles", p.roles.String(), "internal", addr(p.internal), "admin", addr(p.operator))

	err = p.connect(ctx)
	if err == nil {
		err = p.begin(base, work)
	}
	if err == nil {
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
	if p.operator, err = listen(ctx, "listen.admin", p.config.Listen.Admin); err != nil {
		return err
	}
	if p.api == nil {
		return nil
	}
	if p.internal, err = listen(ctx, "listen.internal", p.config.Listen.Internal); err != nil {
		return errors.Join(err, p.operator.Close())
	}
	return nil
}

func addr(ln net.Listener) string {
	if ln == nil {
		return "none"
	}
	return ln.Addr().String()
}

// connect reaches Redis and MySQL, however long that takes; /-/ready says what it waits for. A schema that is not there
// is an error.
func (p *process) connect(ctx context.Context) (err error) {
	c := p.config
	err = p.insist(ctx, "redis", func(ctx context.Context) (err error) {
		p.redis, err = reserve.Open(c.Redis.config(), c.Orders.MaxEnded)
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
	var version int64
	err = p.insist(ctx, "mysql", func(ctx context.Context) (err error) {
		version, err = store.Migrated(ctx, p.db)
		return err
	})
	if err != nil {
		return err
	}
	if version < store.Version() {
		return fmt.Errorf("mysql: the schema is at version %d, this backend needs %d: run `backend migrate -config FILE` first", version, store.Version())
	}
	if c.Queue.Driver == RabbitMQ {
		p.broker, err = broker.Open(c.Queue.config(), p.log, p.reg)
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

// begin starts the parts of the roles.
func (p *process) begin(base, work *tier) error {
	c := p.config
	p.catalog = catalog.New(p.db, p.redis, p.clk, p.log, p.reg)
	p.line = standby.New(standby.Config{DB: p.db, Redis: p.redis, Catalog: p.catalog, Clock: p.clk, Log: p.log, Register: p.reg, MaxLine: c.Standby.MaxLine})
	p.book = order.NewStore(order.Config{DB: p.db, Redis: p.redis, Clock: p.clk, Log: p.log, Register: p.reg,
		QueuedBound: c.Orders.QueuedBound, AcceptWithin: c.Standby.AcceptWithin, Returned: p.line.Wake})
	p.watchQueued()
	p.claims = coupon.New(coupon.Config{DB: p.db, Clock: p.clk, Register: p.reg})
	p.letters = deadletter.NewStore(deadletter.Config{DB: p.db, Orders: p.book, Clock: p.clk, Log: p.log, Register: p.reg})
	p.payments = payment.New(payment.Config{DB: p.db, Orders: p.book, Clock: p.clk, Log: p.log, Register: p.reg, Providers: c.Payments.providers()})
	var fence reconcile.Fence // a nil interface without a broker
	if p.broker != nil {
		fence = p.broker
	}
	timelines := timeline.New(timeline.Config{DB: p.db, Orders: p.book, Clock: p.clk, Log: p.log, Register: p.reg, Keep: c.Timeline.Keep, MaxRows: c.Timeline.MaxRowsPerSale})
	p.reconciler = reconcile.New(reconcile.Config{DB: p.db, Redis: p.redis, Fence: fence, Log: p.log, Register: p.reg, Lease: c.Locks.Lease})

	p.shelf = sku.NewCache(p.db, p.redis.Client(), p.log, p.reg)
	carts := cart.New(cart.Config{DB: p.db, SKUs: p.shelf, Clock: p.clk, Log: p.log, Register: p.reg,
		PayWithin: c.Carts.PayWithin, AbandonedAfter: c.Carts.AbandonedAfter, MaxInFlight: c.Carts.MaxInFlight})

	base.start("what survives", p.survival.watch(p.stores()))
	base.start("catalog", p.catalog.Run)
	base.start("standby lines", p.line.Run)
	if p.roles.API || p.roles.Timer {
		base.start("reconciler", p.reconciler.Keep)
		base.start("stock", p.shelf.Keep)
	} else { // whoever decides, or says what is not there, must know the life
		base.start("life of redis", p.reconciler.Follow)
	}
	name := consumerName()
	if p.roles.API {
		orders := order.NewReader(order.ReaderConfig{DB: p.db, Redis: p.redis, Log: p.log, Register: p.reg})
		base.start("order reader", orders.Run)
		p.lists, p.origins = eligibility.New(eligibility.Config{DB: p.db, Log: p.log, Register: p.reg}), origins.New(p.clk.Now())
		base.start("lists", p.lists.Run)
		parts := api.Parts{Catalog: p.catalog, Redis: p.redis, Book: p.book, Orders: orders, Claims: p.claims, Reconciler: p.reconciler, Lists: p.lists, Origins: p.origins,
			Outage: p.outage, Webhooks: p.payments, Carts: carts, Shelf: p.shelf, Timelines: timelines, Standby: p.line}
		if c.TestPayments() {
			parts.Payer = p.book
		}
		if c.Accept.After == AfterConfirm {
			parts.Confirmer = outbox.NewConfirmer(outbox.ConfirmerConfig{Redis: p.redis, Broker: p.broker, Within: c.Accept.ConfirmWithin, Register: p.reg})
		}
		p.api.Begin(parts)
	}
	if p.roles.Relay && p.broker != nil {
		work.start("relay", p.relay(name).Run)
	}
	if p.roles.Consumer {
		work.start("consumer", p.consumer(name))
		if p.broker != nil {
			work.start("dead letters", func(ctx context.Context) error { return p.broker.ConsumeDead(ctx, p.letters.Take) })
		}
		work.start("deferred orders", p.repeat("deferred orders", deferredEvery, func(ctx context.Context) (int, error) {
			return p.book.SettleDeferred(ctx, p.letters.Deferred)
		}))
	}
	operator := admin.New(admin.Config{
		Token: c.AdminToken.Reveal(), DB: p.db, Redis: p.redis, Clock: p.clk, Audit: p.auditor(),
		Reconcile: p.reconciler.Sale, Fence: p.fence(), Rebuild: p.shelf.Rebuild, Changed: p.catalog.Refresh, Queues: p.queues(), Book: p.book, Lists: p.lists, Concentration: p.origins, Letters: p.letters, Timeline: timelines.Of, Ready: p.reasons, Survives: p.survival.last.Load,
		Log: p.log, Gatherer: p.reg, Register: p.reg,
	})
	if p.roles.Timer {
		work.start("expiry", p.repeat("expiry", timerEvery, p.book.Expire))
		work.start("standby lines", p.repeat("standby lines", timerEvery, p.line.Sweep))
		work.start("coupons", p.repeat("the expiry of coupons", timerEvery, p.claims.Expire))
		work.start("intents", p.repeat("intents", timerEvery, p.book.RunIntents))
		work.start("intents of SKUs", p.repeat("intents of SKUs", timerEvery, sku.Intents{DB: p.db, Redis: p.redis.Client(), Clock: p.clk}.Run))
		work.start("carts", p.repeat("carts", timerEvery, carts.Sweep))
		work.start("unsold units", p.repeat("unsold units", timerEvery, operator.ReturnUnsold))
		work.start("sales that are over", p.repeatWithin("the archive of sales that are over", pruneEvery, archiveTime, func(ctx context.Context) (int, error) {
			return operator.ArchiveOver(ctx, c.Sales.archiveAfter())
		}))
		work.start("histories of sales", timelines.Watch(p.catalog.Feed))
		work.start("old timelines", p.repeat("old timelines", pruneEvery, timelines.Prune))
		work.start("old requests of carts", p.repeat("old requests of carts", pruneEvery, carts.Prune))
		work.start("old places in standby lines", p.repeat("old places in standby lines", pruneEvery, p.line.Prune))
		work.start("payments", p.repeat("payments", pruneEvery, p.payments.Tend))
		work.start("done intents", p.repeat("done intents", pruneEvery, p.book.PruneIntents))
		work.start("old Idempotency-Keys", p.repeat("old Idempotency-Keys", pruneEvery, operator.PruneKeys))
		work.start("old lists", p.repeat("old lists", pruneEvery, func(ctx context.Context) (int, error) { return eligibility.Prune(ctx, p.db) }))
		work.start("done intents of SKUs", p.repeat("done intents of SKUs", pruneEvery, sku.Intents{DB: p.db, Redis: p.redis.Client(), Clock: p.clk}.Prune))
	}
	p.front.become(operator)
	p.status.set("")
	return nil
}

// stores are those that are connected by now.
func (p *process) stores() durability.Stores {
	return durability.Stores{Redis: p.redis.Client(), DB: p.db, Broker: p.broker, Confirm: p.config.Accept.After == AfterConfirm}
}

func (p *process) auditor() *audit.Auditor {
	c := audit.Config{DB: p.db, Redis: p.redis, QueuedBound: p.config.Orders.QueuedBound, Abandoned: p.config.Carts.AbandonedAfter}
	if p.broker != nil {
		c.Broker = p.broker
	}
	return audit.New(c)
}

// fence waits until what was published of a sale before is settled. It is nil without a broker.
func (p *process) fence() func(context.Context, int64) error {
	if p.broker == nil {
		return nil
	}
	return func(ctx context.Context, sale int64) error {
		if err := p.broker.Fence(ctx, sale); err != nil {
			return err
		}
		return order.UntilNoneDeferred(ctx, p.db, sale)
	}
}

// queues is nil without a broker.
func (p *process) queues() func(context.Context) ([]broker.QueueState, error) {
	if p.broker == nil {
		return nil
	}
	return p.broker.Queues
}

// How long the timer rests when there is nothing to do: for orders and units, for deferred orders, which keep a sale closed, and
// where it only tidies up.
const (
	timerEvery    = time.Second
	deferredEvery = 200 * time.Millisecond
	pruneEvery    = 10 * time.Second
)

// How long one pass of the timer may take; one that archives a sale, whose audit reads all of its orders.
const (
	passTime    = 30 * time.Second
	archiveTime = 2 * time.Minute
)

// repeat makes one pass after the other while there is something to do, and else rests. A failure is logged once, and tried
// again with growing pauses.
func (p *process) repeat(what string, every time.Duration, pass func(context.Context) (int, error)) func(context.Context) error {
	return p.repeatWithin(what, every, passTime, pass)
}

// repeatWithin is repeat, with a time-out of its own for each pass.
func (p *process) repeatWithin(what string, every, within time.Duration, pass func(context.Context) (int, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		const most = 10 * time.Second
		rest, failing := every, false
		for {
			try, cancel := context.WithTimeout(ctx, within)
			n, err := pass(try)
			cancel()
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				if !failing {
					p.log.Warn("timer: "+what+" fails and is tried again", "error", err)
				}
				rest, failing = min(2*rest, most), true
			default:
				if failing {
					p.log.Info("timer: " + what + " works again")
				}
				rest, failing = every, false
				if n > 0 {
					continue
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(rest):
			}
		}
	}
}

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
		locks, err := p.shelf.Locks(ctx)
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

// drain ends the tiers in turn, within the time that the configuration gives, and closes the connections.
func (p *process) drain(requests, work, base, operators *tier) error {
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
	for _, t := range []*tier{requests, work, base, operators} {
		errs = append(errs, t.end(ctx))
	}
	if p.broker != nil {
		errs = append(errs, p.broker.Close())
	}
	if p.db != nil {
		errs = append(errs, p.db.Close())
	}
	if p.redis != nil {
		p.redis.Close()
	}
	p.log.Info("ended")
	return errors.Join(errs...)
}

// consumerName is unique among all processes, ever.
func consumerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
}

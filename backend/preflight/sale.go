package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/wire"
)

// Sale is one sale that is looked at, in a System.
type Sale struct {
	*System
	ID    int64
	Audit *audit.Auditor
	// QueuedBound is how long an order may be queued, MaxQueued how many of a sale may be.
	QueuedBound time.Duration
	MaxQueued   int64
	// Gateways are the last reports of the gateways: gateways.Store.List. Nil: there are no checks of them.
	Gateways func(ctx context.Context) ([]gateways.Gateway, error)
	// Shoppers is how many are expected at once; 0: not known.
	Shoppers int64
}

// Look makes every check of the sale and of the system. Nobody has decided yet. A sale that MySQL does not know is a
// *sale.NotFoundError.
func (s *Sale) Look(ctx context.Context) (Report, error) {
	l := &looks{Sale: s}
	l.record = sync.OnceValues(func() (sale.Record, error) {
		if s.DB == nil {
			return sale.Record{}, errNoMySQL
		}
		ctx, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		return sale.Get(ctx, s.DB, s.ID)
	})
	l.audited = sync.OnceValues(func() (audit.Result, error) {
		ctx, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		return s.Audit.Sale(ctx, s.ID)
	})
	var unknown *sale.NotFoundError
	if _, err := l.record(); errors.As(err, &unknown) {
		return Report{}, unknown
	}
	return Report{SaleID: s.ID, CheckedAt: wire.At(l.now()), Checks: Run(ctx, l.rows())}, nil
}

// looks are the looks at one sale, which read it and audit it once.
type looks struct {
	*Sale
	record  func() (sale.Record, error)
	audited func() (audit.Result, error)
}

func (l *looks) now() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

func (l *looks) rows() []Row {
	rows := []Row{
		{"sale", "open, or still to open", "a sale that is over is not opened again: make another; one that is paused: `backend sale resume`", l.sale},
		{"window", "time enough for a unit that comes back to be sold again", "let the sale end later: PATCH its ends_at", l.window},
		{"stock", "the same units and epoch in Redis and MySQL, and an open gate", "`backend rebuild --sale ID` writes Redis from MySQL", l.stock},
		{"audit", "every unit is accounted for", "`backend audit --sale ID` names what is wrong, and what to do", l.audit},
		{"readers", "at least one relay or consumer reads the outboxes", "start a backend with the role relay (with queue.driver: redis-stream: consumer)", l.readers},
		{"consumers", "at least one consumer of the sale's queue", "start a backend with the role consumer", l.consumers},
		{"limits", "orders.max_queued is at least the stock", "raise orders.max_queued: beyond it orders are OVERLOADED", l.limits},
		{"descriptors", "enough for api.max_connections", MoreFiles, l.descriptors},
		{"certificate", "valid beyond the end of the sale", "renew the certificate in listen.internal_tls: it is read again by itself", l.certificate},
	}
	return append(append(rows, l.System.Rows()...), l.gatewayRows()...)
}

func (l *looks) sale(context.Context) (Result, error) {
	r, err := l.record()
	if err != nil {
		return Result{}, err
	}
	now := l.now()
	state := r.State(now)
	value := fmt.Sprintf("%s, %q", state, r.Title)
	switch {
	case r.ArchivedAt != nil:
		value += ", archived"
	case r.ClosedAt != nil:
		value += ", closed"
	case now.Before(r.StartsAt):
		value += fmt.Sprintf(", opens in %v", r.StartsAt.Sub(now).Round(time.Second))
	}
	return Result{Value: value, OK: (state == wire.Open || state == wire.Upcoming) && r.ArchivedAt == nil}, nil
}

func (l *looks) window(context.Context) (Result, error) {
	r, err := l.record()
	if err != nil {
		return Result{}, err
	}
	from := r.StartsAt
	if now := l.now(); now.After(from) {
		from = now
	}
	left := max(0, r.EndsAt.Sub(from))
	value := fmt.Sprintf("%v to sell in", left.Round(time.Second))
	if r.Kind != wire.Coupon && r.PayWithin > left {
		value += fmt.Sprintf("; units that nobody pays for come back after %v, when the sale is over", r.PayWithin)
	}
	return Result{Value: value, OK: left >= l.QueuedBound, Want: fmt.Sprintf("at least %v, orders.queued_bound", l.QueuedBound)}, nil
}

func (l *looks) stock(context.Context) (Result, error) {
	a, err := l.audited()
	if err != nil {
		return Result{}, err
	}
	if !a.Redis.Loaded {
		return Result{Value: fmt.Sprintf("not in Redis; %d units in MySQL", a.MySQL.Total)}, nil
	}
	r := Result{Value: fmt.Sprintf("Redis: %d units, %d of them available, gate %s, epoch %d; MySQL: %d units, epoch %d", a.Redis.Total, a.Redis.Stock, a.Redis.Gate, a.Redis.Epoch, a.MySQL.Total, a.MySQL.Epoch),
		OK: a.Redis.Gate == lua.GateOpen && a.Redis.Total == a.MySQL.Total && a.Redis.Epoch == a.MySQL.Epoch}
	if r.OK && a.Redis.Stock == 0 {
		r.OK, r.Want, r.Do = false, "units to sell", "`backend sale restock` adds some"
	}
	return r, nil
}

func (l *looks) audit(context.Context) (Result, error) {
	a, err := l.audited()
	if err != nil {
		return Result{}, err
	}
	value := fmt.Sprintf("%d available + %d queued + %d locked + %d sold, total %d", a.Available, a.Queued, a.Locked, a.Sold, a.Total)
	if a.Balanced {
		return Result{Value: value, OK: true}, nil
	}
	first := a.Findings[0]
	return Result{Value: fmt.Sprintf("%s; %s: %s", count(len(a.Findings), "finding", "findings"), first.Equation, first.Detail), Do: first.Fix}, nil
}

func (l *looks) readers(ctx context.Context) (Result, error) {
	if l.Redis == nil {
		return Result{}, errNoRedis
	}
	n, err := l.Redis.Client().Readers(ctx)
	return Result{Value: count(n, "connection reads outboxes", "connections read outboxes"), OK: n > 0}, err
}

func (l *looks) consumers(ctx context.Context) (Result, error) {
	if !l.Queued {
		return Result{Value: "none is needed: the outbox is the queue (queue.driver: redis-stream)", OK: true}, nil
	}
	if l.Broker == nil {
		return Result{}, errNoBroker
	}
	states, err := l.Broker.Queues(ctx)
	if err != nil {
		return Result{}, err
	}
	name := broker.QueueName(l.Broker.Partition(l.ID))
	i := slices.IndexFunc(states, func(q broker.QueueState) bool { return q.Name == name })
	if i < 0 {
		return Result{}, fmt.Errorf("RabbitMQ does not say how %s is", name)
	}
	q := states[i]
	return Result{Value: fmt.Sprintf("%s: %s, %d ready", name, count(int(q.Consumers), "consumer", "consumers"), q.Ready), OK: q.Consumers > 0}, nil
}

func (l *looks) limits(context.Context) (Result, error) {
	r, err := l.record()
	if err != nil {
		return Result{}, err
	}
	return Result{Value: fmt.Sprintf("orders.max_queued %d, %d units available", l.MaxQueued, r.Available), OK: l.MaxQueued >= r.Available}, nil
}

func (l *looks) descriptors(context.Context) (Result, error) {
	have, err := openFiles()
	if err != nil {
		return Result{}, err
	}
	return l.Descriptors(have), nil
}

func (l *looks) certificate(context.Context) (Result, error) {
	if l.Certificate == nil {
		return Result{Value: "the internal listener speaks plain HTTP", OK: true}, nil
	}
	expires, err := l.Certificate()
	if err != nil {
		return Result{}, err
	}
	r, err := l.record()
	if err != nil {
		return Result{}, err
	}
	return Result{Value: "expires " + expires.UTC().Format(time.RFC3339), OK: expires.After(r.EndsAt), Want: "beyond " + r.EndsAt.Format(time.RFC3339) + ", the end of the sale"}, nil
}

// Package audit checks that every unit of a sale is accounted for.
//
// With S the stock in Redis, R its reservations, O the orders in the outbox, M the orders in MySQL, L the live ones and T
// the total stock:
//
//	S + |R| = T                                 in Redis
//	available + locked + sold = T               in MySQL, and the ledger's sum is the stock
//	|L| <= T, and no buyer holds more than the limit
//	each unit of an issued order is one claim, of its buyer
//	R = L ∪ (O \ M)                             except for releases under way, and orphans (docs/reconciling.md) until they are handled
//	O is empty, and the broker holds nothing     except for what is younger than the bound
//
// It compares Redis, MySQL and the broker, and trusts none of them. Answers compares a log of shoppers' answers with them. It is
// safe on a live sale: it changes nothing. It reads Redis, then MySQL at one moment, then Redis again, so an order that moved
// meanwhile is no finding.
package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/wire"
)

// ErrUnknownSale: MySQL has no such sale.
var ErrUnknownSale = errors.New("no such sale")

// ErrBusy: the audit of another sale did not end before the context did.
var ErrBusy = errors.New("another sale is being audited")

// Result is the audit of one sale. Available + Queued + Locked + Sold = Total when it is balanced.
type Result struct {
	SaleID    int64     `json:"sale_id"`
	CheckedAt wire.Time `json:"checked_at"`
	// Balanced: every equation holds and no order is queued longer than the bound.
	Balanced bool `json:"balanced"`
	// Total is all units the sale has.
	Total int64 `json:"total"`
	// Available units are in Redis's stock, unreleased tranches and units on their way back to it included.
	Available int64 `json:"available"`
	// Queued units are reserved, and have no order in MySQL yet.
	Queued int64 `json:"queued"`
	// Locked units are ordered and unpaid.
	Locked int64 `json:"locked"`
	// Sold units are paid for, or issued.
	Sold     int64     `json:"sold"`
	Redis    Redis     `json:"redis"`
	MySQL    MySQL     `json:"mysql"`
	Broker   *Broker   `json:"broker"` // null: the outbox is the queue
	Findings []Finding `json:"findings"`
}

// Redis is what Redis says, read in one moment.
type Redis struct {
	Loaded       bool   `json:"loaded"`
	Gate         string `json:"gate"`
	Epoch        int64  `json:"epoch"`
	Stock        int64  `json:"stock"`
	Total        int64  `json:"total"`
	Reserved     int64  `json:"reserved"`     // units
	Reservations int    `json:"reservations"` // orders
	Outbox       int    `json:"outbox"`       // entries
	Queued       int    `json:"queued"`       // of them, orders that MySQL does not have
	Unretired    int    `json:"unretired"`    // of them, orders that MySQL has: they are to be retired
}

// MySQL is what MySQL says, read in one moment.
type MySQL struct {
	Total      int64 `json:"total"`
	Available  int64 `json:"available"`
	Locked     int64 `json:"locked"`
	Sold       int64 `json:"sold"`
	Epoch      int64 `json:"epoch"`
	Orders     int   `json:"orders"`
	LiveOrders int   `json:"live_orders"`
	Claims     int   `json:"claims"` // units that were issued
	LedgerRows int   `json:"ledger_rows"`
	Releasing  int64 `json:"releasing"` // units of ended orders that Redis is still to get back
	Intents    int   `json:"intents"`   // that are not done yet
}

// Finding is one equation that does not hold, which order or key breaks it, and what to do.
type Finding struct {
	Equation string `json:"equation"`
	OrderID  string `json:"order_id,omitempty"`
	Key      string `json:"key,omitempty"`  // a key in Redis, or a table and row in MySQL
	Line     int    `json:"line,omitempty"` // of a log of answers
	Detail   string `json:"detail"`
	Fix      string `json:"fix"`
}

func (f Finding) String() string {
	where := f.OrderID
	if where == "" {
		where = f.Key
	}
	if f.Line > 0 {
		where = fmt.Sprintf("line %d %s", f.Line, where)
	}
	return fmt.Sprintf("%s [%s]: %s; %s", f.Equation, where, f.Detail, f.Fix)
}

func (f Finding) same(g Finding) bool {
	return f.Equation == g.Equation && f.OrderID == g.OrderID && f.Key == g.Key
}

// Auditor audits sales. It is safe for concurrent use: it audits one sale at a time, since each holds all rows of its sale in memory.
type Auditor struct {
	turn  chan struct{} // holds one value while a sale is audited
	db    *sql.DB
	redis *reserve.Store
	bound time.Duration
	// abandoned is how old what carts have locked in Redis may be, where MySQL has nothing of it; 0: as bound.
	abandoned time.Duration

	queues Queues // nil without a broker
	odd    *oddities
}

// Config is what an Auditor needs.
type Config struct {
	DB     *sql.DB
	Redis  *reserve.Store
	Broker Queues // nil: there is none, and the outbox is the queue

	// QueuedBound is how long an order may be queued; one that is queued longer is a finding.
	QueuedBound time.Duration
	// Abandoned is how old units that are locked in Redis, and that MySQL knows nothing of, may be. 0: as QueuedBound.
	Abandoned time.Duration
}

// New makes an Auditor.
func New(c Config) *Auditor {
	a := &Auditor{turn: make(chan struct{}, 1), db: c.DB, redis: c.Redis, bound: c.QueuedBound, abandoned: c.Abandoned, queues: c.Broker}
	if c.Broker != nil {
		a.odd = &oddities{since: map[string]sighting{}}
	}
	return a
}

// How often a sale is read before a deviation counts as a finding, and how long to wait in between. What is under way at
// the first reading is over at the next.
const (
	rounds = 3
	pause  = 100 * time.Millisecond
	// closedRounds: a closed gate belongs to a reconciler, which gets this many pauses to finish.
	closedRounds = 30
)

// Sale audits one sale, once no other is audited. It returns ErrUnknownSale, ErrBusy, or the error of a server that does not
// answer. What is wrong with the sale is in the Result.
func (a *Auditor) Sale(ctx context.Context, sale int64) (Result, error) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return Result{}, fmt.Errorf("audit sale %d: %w: %w", sale, ErrBusy, ctx.Err())
	}
	var last Result
	for round := 1; ; round++ {
		result, moving, err := a.once(ctx, sale)
		if err != nil {
			return Result{}, fmt.Errorf("audit sale %d: %w", sale, err)
		}
		if len(result.Findings) == 0 {
			return a.withBroker(ctx, result)
		}
		if round >= rounds && !moving || round >= closedRounds {
			if both := common(result.Findings, last.Findings); len(both) > 0 {
				result.Findings = both
			}
			return a.withBroker(ctx, result)
		}
		last = result
		select {
		case <-ctx.Done():
			return Result{}, fmt.Errorf("audit sale %d: %w", sale, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// withBroker adds what the broker says.
func (a *Auditor) withBroker(ctx context.Context, r Result) (Result, error) {
	said, err := a.ask(ctx, r.SaleID)
	if err != nil {
		return Result{}, fmt.Errorf("audit sale %d: %w", r.SaleID, err)
	}
	r.Broker = said.broker
	r.Findings = bounded(append(r.Findings, said.findings...))
	r.Balanced = len(r.Findings) == 0
	return r, nil
}

// once reads and compares; moving says that a reconciler is at work.
func (a *Auditor) once(ctx context.Context, sale int64) (result Result, moving bool, err error) {
	began, err := a.redis.Client().Now(ctx)
	if err != nil {
		return Result{}, false, err
	}
	before, err := a.redis.Snapshot(ctx, sale)
	if err != nil {
		return Result{}, false, err
	}
	m, err := read(ctx, a.db, sale)
	if err != nil {
		return Result{}, false, err
	}
	after, err := a.redis.Snapshot(ctx, sale)
	if err != nil {
		return Result{}, false, err
	}
	after.Buyers = nil // only those of before are compared: at a million orders it is memory
	result = compare(before, after, m, began, a.bound)
	moving = !m.archived && (!open(before.State) || !open(after.State) || before.State.Epoch != after.State.Epoch)
	return result, moving, nil
}

// common is the findings of a that b has too.
func common(a, b []Finding) []Finding {
	var both []Finding
	for _, f := range a {
		for _, g := range b {
			if f.same(g) {
				both = append(both, f)
				break
			}
		}
	}
	return both
}

// maxFindings bounds what an audit tells. Further findings are only counted.
const maxFindings = 100

func bounded(all []Finding) []Finding {
	if more := len(all) - maxFindings; more > 0 {
		all = append(all[:maxFindings:maxFindings], Finding{
			Equation: "...", Detail: fmt.Sprintf("and %d findings more", more), Fix: "see to these first, then audit again",
		})
	}
	return all
}

// Sales returns the ids of the sales that can be audited: every one that is not archived.
func (a *Auditor) Sales(ctx context.Context) ([]int64, error) { return sale.Live(ctx, a.db) }

// Package demo sells one sale out to a crowd, on the embedded system, and holds the system's books against what the crowd
// was told.
package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/audit"
	"floodgate.internal/embedded"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Options says how large the sale is and where its records go.
type Options struct {
	Stock    int
	Shoppers int
	Log      string        // file that gets the log lines of gateway and backend
	Timeout  time.Duration // of the sale, from the first press on
	PayIn    time.Duration // how long an order may stay unpaid, whole seconds; 0: payWithin
}

// Result is what a demo ends with: build/demo.json.
type Result struct {
	Total       int64 `json:"total"`        // units
	Accepted    int   `json:"accepted"`     // orders that were answered 202, each once
	SoldOut     int   `json:"sold_out"`     // answers
	Duplicate   int   `json:"duplicate"`    // answers: ALREADY_ORDERED, and 202 with an order that was there before
	RateLimited int   `json:"rate_limited"` // answers
	Orders      int   `json:"orders"`       // rows in MySQL, resales included
	Oversold    int64 `json:"oversold"`     // units
	Lost        int   `json:"lost"`         // accepted orders without a row
	Balanced    bool  `json:"balanced"`     // the auditor's verdict
}

// payWithin is how long an order may stay unpaid: short enough to watch what becomes of those that nobody pays,
// and longer than the 5 s between two presses of one shopper, so that who presses again when units come back is heard.
const payWithin = 6 * time.Second

// settleTimeout is how long the books may take to agree after the last payment.
const settleTimeout = time.Minute

// Run starts a system on free ports, runs the sale and checks it. The error says everything that is not as it must be:
// the audit does not balance, an order is lost, units are oversold or not all sold, or an answer breaks the contract.
func Run(ctx context.Context, o Options, out io.Writer) (result Result, err error) {
	fmt.Fprintf(out, "%s\n\n", embedded.GivesUp)
	dir, err := os.MkdirTemp("", "floodgate-demo-")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(filepath.Dir(o.Log), 0o755); err != nil {
		return result, err
	}
	log, err := os.Create(o.Log)
	if err != nil {
		return result, err
	}
	defer log.Close()

	began := time.Now()
	s, err := embedded.Start(ctx, embedded.Options{Dir: dir, Log: log, LogLevel: "warn"})
	if err != nil {
		return result, fmt.Errorf("start the embedded system: %w (its log: %s)", err, o.Log)
	}
	defer func() {
		if e := s.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("stop the embedded system: %w", e))
		}
	}()
	fmt.Fprintf(out, "up in %.1f s: gateway http://%s, backend http://%s, in-memory redis %s and mysql\n",
		time.Since(began).Seconds(), s.Addrs.Public, s.Addrs.Internal, s.RedisAddr())

	o.PayIn = cmp.Or(o.PayIn, payWithin)
	sale, err := openSale(ctx, s, o)
	if err != nil {
		return result, err
	}
	c := &crowd{client: newClient(s.Addrs.Public), tally: newTally(), sale: sale, stock: o.Stock, over: make(chan struct{})}
	defer c.client.close()
	if err := c.seeOpen(ctx); err != nil {
		return result, err
	}
	if err := c.run(ctx, s, o, out); err != nil {
		return result, err
	}
	return c.settle(ctx, s, out)
}

func openSale(ctx context.Context, s *embedded.System, o Options) (int64, error) {
	n := adminapi.Goods("Mechanical keyboard", 4900, int64(o.Stock), time.Now().Add(-time.Second), time.Now().Add(time.Hour))
	n.PayWithin = new(int64(o.PayIn / time.Second))
	return s.Admin().CreateSale(ctx, n)
}

// seeOpen waits until the gateway knows that the sale is open.
func (c *crowd) seeOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		s, err := c.client.sale(ctx, c.sale)
		if err == nil && s.State == wire.Open {
			return nil
		}
		if !c.pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the gateway does not show sale %d as open: %q, %w", c.sale, s.State, errors.Join(err, ctx.Err()))
		}
	}
}

// run lets the crowd in, all at once, and returns when all is sold and paid, or the time is over.
func (c *crowd) run(ctx context.Context, s *embedded.System, o Options, out io.Writer) error {
	tokens, err := s.Tokens(ctx, fmt.Sprintf("1-%d", o.Shoppers))
	if err != nil {
		return err
	}
	if len(tokens) != o.Shoppers {
		return fmt.Errorf("the gateway minted %d tokens for %d shoppers", len(tokens), o.Shoppers)
	}
	fmt.Fprintf(out, "sale %d: %d units, %v to pay; %d shoppers press at once, over %d connections, some twice, and %d strangers\n",
		c.sale, o.Stock, o.PayIn, o.Shoppers, maxConns, o.Shoppers/20)

	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	began := time.Now()
	gate := make(chan struct{})
	var all sync.WaitGroup
	for i, token := range tokens {
		all.Go(func() { <-gate; c.shop(ctx, shopper{n: i + 1, token: token}) })
	}
	for i := range o.Shoppers / 20 {
		forged := tokens[i][:len(tokens[i])-6] + "AAAAAA"
		all.Go(func() { <-gate; c.stranger(ctx, i, forged) })
	}
	gone := make(chan struct{})
	go func() { defer close(gone); all.Wait() }()
	close(gate)

	p := newProgress(out)
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-tick.C:
			p.show(c.tally.line())
		case <-gone:
			open = false
		}
	}
	p.show(c.tally.line())
	p.end()
	if whole.Err() != nil {
		return fmt.Errorf("interrupted: %w", whole.Err())
	}
	fmt.Fprintf(out, "the crowd is gone after %.1f s; the slowest press took %d ms\n", time.Since(began).Seconds(), c.tally.slowest.Milliseconds())
	return nil
}

// settle waits until the books are closed, and compares them with the crowd's record.
func (c *crowd) settle(ctx context.Context, s *embedded.System, out io.Writer) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var a audit.Result
	var b books
	for {
		var err error
		if a, err = readAudit(ctx, s, c.sale); err != nil {
			return Result{}, err
		}
		if b, err = readBooks(ctx, s, c.sale); err != nil {
			return Result{}, err
		}
		if a.Balanced && a.Queued == 0 && a.Locked == 0 && b.lost(c.tally.accepted) == 0 {
			break
		}
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	t := c.tally
	r := Result{
		Total: b.total, Accepted: len(t.accepted), SoldOut: t.refused[problem.SoldOut],
		Duplicate: t.refused[problem.AlreadyOrdered] + t.repeats, RateLimited: t.refused[problem.RateLimited],
		Orders: len(b.orders), Oversold: b.oversold(), Lost: b.lost(t.accepted), Balanced: a.Balanced,
	}
	fmt.Fprintf(out, `
shoppers were told:   %d accepted, %d sold out, %d duplicate, %d rate limited, %d overloaded, %d unauthenticated
mysql says:           %d orders: %d paid, %d cancelled, %d expired, %d rejected; %d of %d units sold
the audit says:       balanced %t; available %d + queued %d + locked %d + sold %d = total %d
oversold %d, lost %d
`,
		r.Accepted, r.SoldOut, r.Duplicate, r.RateLimited, t.refused[problem.Overloaded], t.refused[problem.Unauthenticated],
		r.Orders, b.statuses[wire.Paid], b.statuses[wire.Cancelled], b.statuses[wire.Expired], b.statuses[wire.Rejected], b.sold, b.total,
		a.Balanced, a.Available, a.Queued, a.Locked, a.Sold, a.Total, r.Oversold, r.Lost)
	return r, c.verdict(a, b, r)
}

func (c *crowd) verdict(a audit.Result, b books, r Result) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !r.Balanced {
		findings, _ := json.Marshal(a.Findings)
		wrong("the audit does not balance: %s", findings)
	}
	if a.Available+a.Queued+a.Locked+a.Sold != a.Total {
		wrong("available %d + queued %d + locked %d + sold %d is not the total %d", a.Available, a.Queued, a.Locked, a.Sold, a.Total)
	}
	if r.Lost > 0 {
		wrong("%d accepted orders are not in MySQL", r.Lost)
	}
	if r.Oversold > 0 {
		wrong("%d units are oversold", r.Oversold)
	}
	if int64(c.stock) != b.total || b.sold != b.total || b.statuses[wire.Paid] != c.stock {
		wrong("not all units are sold: %d of %d, with %d orders paid", b.sold, c.stock, b.statuses[wire.Paid])
	}
	if b.statuses[wire.Rejected] > 0 {
		wrong("%d accepted orders were rejected", b.statuses[wire.Rejected])
	}
	if paid := c.tally.statuses[wire.Paid]; paid != b.statuses[wire.Paid] {
		wrong("%d shoppers were told that they paid, MySQL has %d paid orders", paid, b.statuses[wire.Paid])
	}
	for _, w := range c.tally.wrong {
		wrong("%s", w)
	}
	if c.tally.failed > 0 {
		wrong("%d requests got no answer", c.tally.failed)
	}
	return errors.Join(errs...)
}

// Write puts the result into a JSON file.
func (r Result) Write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		panic("BUG: a result that does not encode: " + err.Error())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/shared/cli"
)

// Audit is the command "audit".
type Audit struct {
	Sale    int64         `help:"The sale to audit." placeholder:"ID" xor:"which"`
	SKU     int64         `help:"The SKU to audit: what carts have of it." name:"sku" placeholder:"ID" xor:"which"`
	All     bool          `help:"Every sale that is not archived, and every SKU that carts can hold." xor:"which"`
	Answers string        `help:"A log of answers to hold against the stores; alone, its sales are audited too." placeholder:"FILE"`
	Watch   bool          `help:"Again and again, until interrupted."`
	Every   time.Duration `default:"2s" help:"How often, with --watch."`
	File
	Output
}

// Help implements kong's HelpProvider.
func (Audit) Help() string {
	return `Reads Redis, MySQL and the broker and checks that available + queued + locked + sold = total, order by order. It changes
nothing and is safe on a live sale: what is in flight is no finding, what stays so past orders.queued_bound is. If the broker
holds something that no order accounts for, the audit waits for that bound, at most half a minute longer, to see whether it goes away. Of a SKU,
available + allotted + locked + sold = total, its ledger, and what Redis has of it for carts.

--answers holds what shoppers were told against the stores. Each line of the file is the answer to one order, as JSON:
  {"uid":"7","sale":1,"key":"k-1","status":202,"order_id":"01a1...-1"}
status 0 is for a request without an answer; with code, a problem's code, 503s that did nothing (OVERLOADED) are told apart
from those that may have. Every 202 must be in MySQL and not rejected for want of stock, a refused request must have no
order, and one key one order.

Exit code 0: balanced; 1: not, or a server does not answer; each finding says which order, key or line breaks which
equation, and what to do.

Examples:
  backend audit -config configs/backend.yaml --sale 7
  backend audit -config configs/backend.yaml --sku 3
  backend audit -config configs/backend.yaml --all --json
  backend audit -config configs/backend.yaml --all --answers answers.jsonl
  backend audit -config configs/backend.yaml --all --watch --every 5s`
}

// Run implements the command.
func (c *Audit) Run(ctx context.Context, env *Env) error {
	if c.Every <= 0 {
		return cli.Usage("--every %s: must be positive", c.Every)
	}
	if c.Sale == 0 && c.SKU == 0 && !c.All && c.Answers == "" {
		return cli.Usage("audit: say what: --sale ID, --sku ID, --all, or --answers FILE")
	}
	conf, err := env.Config(c.Config)
	if err != nil {
		return err
	}
	db, redis, done, err := conf.stores(ctx)
	if err != nil {
		return err
	}
	defer done()
	ac := audit.Config{DB: db, Redis: redis, QueuedBound: conf.QueuedBound, Abandoned: conf.Abandoned}
	if conf.Broker != nil {
		b, err := broker.Open(*conf.Broker, conf.Log, prometheus.NewRegistry())
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		defer func() { _ = b.Close() }() // it was only asked
		ac.Broker = b
	}
	auditor := audit.New(ac)
	for {
		err := c.round(ctx, env, auditor, conf.QueuedBound)
		if !c.Watch {
			return err
		}
		if ctx.Err() != nil {
			return nil // interrupted, as it is meant to be
		}
		if err != nil && !errors.Is(err, errUnbalanced) {
			fmt.Fprintln(env.Stderr, err)
		}
		select {
		case <-ctx.Done():
			if errors.Is(err, ctx.Err()) {
				return nil // the round was over just before
			}
			return err
		case <-time.After(c.Every):
		}
	}
}

// again is how often the broker is asked whether what nothing accounts for is still there.
const again = 500 * time.Millisecond

// round audits once, with the log of answers as it is now.
func (c *Audit) round(ctx context.Context, env *Env, auditor *audit.Auditor, bound time.Duration) error {
	var log []audit.Answer
	if c.Answers != "" {
		f, err := os.Open(c.Answers)
		if err != nil {
			return cli.Usage("--answers: %w", err)
		}
		log, err = audit.ReadAnswers(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return cli.Usage("--answers %s: %w", c.Answers, err)
		}
	}
	began := time.Now()
	for {
		var text bytes.Buffer
		odd, err := c.once(ctx, &Env{Stdout: &text, Stderr: env.Stderr, Config: env.Config}, auditor, log)
		if odd && err == nil && !c.Watch && time.Since(began) < bound+broker.StatisticsAge+2*again {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(again):
				continue
			}
		}
		if _, e := text.WriteTo(env.Stdout); e != nil {
			return e
		}
		return err
	}
}

// errUnbalanced: an equation does not hold.
var errUnbalanced = errors.New("not balanced")

// once audits; odd says that the broker holds something that no outbox accounts for, or does not answer: no finding yet.
func (c *Audit) once(ctx context.Context, env *Env, auditor *audit.Auditor, log []audit.Answer) (odd bool, err error) {
	ids := []int64{c.Sale}
	switch {
	case c.All:
		if ids, err = auditor.Sales(ctx); err != nil {
			return false, err
		}
	case c.SKU != 0 && log == nil:
		ids = nil
	case c.Sale == 0:
		ids = ids[:0]
		for _, line := range log {
			ids = append(ids, line.Sale)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
	case log != nil:
		log = slices.DeleteFunc(slices.Clone(log), func(a audit.Answer) bool { return a.Sale != c.Sale })
	}
	results, wrong := []audit.Result{}, 0
	for _, id := range ids {
		r, err := auditor.Sale(ctx, id)
		if errors.Is(err, audit.ErrUnknownSale) && c.Sale == 0 {
			continue // its lines say so
		}
		if err != nil {
			return false, err
		}
		results = append(results, r)
		if !r.Balanced {
			wrong++
		}
		odd = odd || r.Broker != nil && (r.Broker.Unexplained || r.Broker.Error != "")
	}
	skus, err := c.skus(ctx, auditor)
	if err != nil {
		return false, err
	}
	wrongSKUs := 0
	for _, s := range skus {
		if !s.Balanced {
			wrongSKUs++
		}
	}
	var answered *audit.Answered
	if log != nil {
		a, err := auditor.Answers(ctx, log)
		if err != nil {
			return false, err
		}
		answered = &a
	}
	good := wrong+wrongSKUs == 0 && (answered == nil || answered.Balanced)
	switch {
	case c.JSON && c.Sale != 0 && answered == nil:
		err = printJSON(env.Stdout, results[0])
	case c.JSON && c.SKU != 0 && answered == nil:
		err = printJSON(env.Stdout, skus[0])
	case c.JSON && answered == nil:
		err = printJSON(env.Stdout, map[string]any{"balanced": good, "sales": results, "skus": skus})
	case c.JSON:
		err = printJSON(env.Stdout, map[string]any{"balanced": good, "sales": results, "skus": skus, "answers": answered})
	default:
		if c.SKU == 0 {
			err = printAudits(env.Stdout, results)
		}
		if err == nil && len(skus) > 0 {
			err = printSKUs(env.Stdout, skus)
		}
		if err == nil && answered != nil {
			err = printAnswers(env.Stdout, *answered)
		}
	}
	switch {
	case err != nil || good:
	case wrongSKUs > 0:
		err = fmt.Errorf("audit: %w: %d of %d SKUs, %d of %d sales", errUnbalanced, wrongSKUs, len(skus), wrong, len(results))
	case wrong > 0:
		err = fmt.Errorf("audit: %w: %d of %d sales", errUnbalanced, wrong, len(results))
	default:
		err = fmt.Errorf("audit: %w: the log of answers contradicts the stores", errUnbalanced)
	}
	return odd, err
}

// skus audits the SKU that was asked for, or all.
func (c *Audit) skus(ctx context.Context, auditor *audit.Auditor) (results []audit.SKU, err error) {
	results = []audit.SKU{}
	var ids []int64
	if c.SKU != 0 {
		ids = []int64{c.SKU}
	} else if c.All {
		if ids, err = auditor.SKUs(ctx); err != nil {
			return nil, err
		}
	}
	for _, id := range ids {
		s, err := auditor.SKU(ctx, id)
		if err != nil {
			return nil, err
		}
		results = append(results, s)
	}
	return results, nil
}

func printSKUs(w io.Writer, results []audit.SKU) error {
	var rows []string
	for _, s := range results {
		verdict := "balanced"
		if !s.Balanced {
			verdict = "NOT BALANCED"
		}
		in := "not loaded"
		if s.Redis.Loaded {
			in = fmt.Sprintf("%d + %d + %d, %d in flight", s.Redis.Available, s.Redis.Locked, s.Redis.Sold, s.Redis.InFlight)
		}
		rows = append(rows, fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s", s.SKUID, s.Available, s.Allotted, s.Locked, s.Sold, s.Total, verdict, in))
	}
	if err := table(w, "SKU\tAVAILABLE +\tALLOTTED +\tLOCKED +\tSOLD =\tTOTAL\t\tIN REDIS: AVAILABLE + LOCKED + SOLD", rows); err != nil {
		return err
	}
	for _, s := range results {
		for _, f := range s.Findings {
			where := f.Key
			if f.OrderID != "" {
				where += " order " + f.OrderID
			}
			if _, err := fmt.Fprintf(w, "\nSKU %d: %s does not hold\n  where  %s\n  what   %s\n  to do  %s\n", s.SKUID, f.Equation, where, f.Detail, f.Fix); err != nil {
				return err
			}
		}
	}
	return nil
}

func printAnswers(w io.Writer, a audit.Answered) error {
	fmt.Fprintf(w, "\n%d answers: %d accepted, %d refused, %d of unknown outcome; %d orders promised, %d of them queued, %d lost\n",
		a.Lines, a.Accepted, a.Refused, a.Unknown, a.Promised, a.Queued, a.Lost)
	for _, reason := range slices.Sorted(maps.Keys(a.Rejected)) {
		fmt.Fprintf(w, "%d promised orders are rejected: %s\n", a.Rejected[reason], reason)
	}
	for _, f := range a.Findings {
		if _, err := fmt.Fprintf(w, "\nline %d: %s does not hold\n  where  order %s\n  what   %s\n  to do  %s\n", f.Line, f.Equation, f.OrderID, f.Detail, f.Fix); err != nil {
			return err
		}
	}
	return nil
}

func printAudits(w io.Writer, results []audit.Result) error {
	var rows []string
	for _, r := range results {
		verdict := "balanced"
		if !r.Balanced {
			verdict = "NOT BALANCED"
		}
		rows = append(rows, fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d\t%s", r.SaleID, r.Available, r.Queued, r.Locked, r.Sold, r.Total, verdict))
	}
	if err := table(w, "SALE\tAVAILABLE +\tQUEUED +\tLOCKED +\tSOLD =\tTOTAL\t", rows); err != nil {
		return err
	}
	for _, r := range results {
		if b := r.Broker; b != nil {
			text := fmt.Sprintf("%s: %d ready, %s unacknowledged, %d consumers; %d unrouted, %d dead, %d dead letters of the sale", b.Queue, b.Ready, orUnknown(b.Unacked), b.Consumers, b.Unrouted, b.Dead, b.DeadLetters)
			if b.Error != "" {
				text = "the broker does not say how its queues are: " + b.Error
			}
			if _, err := fmt.Fprintf(w, "sale %d: %s\n", r.SaleID, text); err != nil {
				return err
			}
		}
		for _, f := range r.Findings {
			where := f.Key
			if f.OrderID != "" {
				where += " order " + f.OrderID
			}
			if _, err := fmt.Fprintf(w, "\nsale %d: %s does not hold\n  where  %s\n  what   %s\n  to do  %s\n", r.SaleID, f.Equation, where, f.Detail, f.Fix); err != nil {
				return err
			}
		}
	}
	return nil
}

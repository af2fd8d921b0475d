package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/store"
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

func (c *Audit) Run(ctx context.Context, env *Env) (err error) {
	if c.Every <= 0 {
		return cli.Usage("--every %s: must be positive", c.Every)
	}
	if c.Sale == 0 && c.SKU == 0 && !c.All && c.Answers == "" {
		return cli.Usage("audit: say what: --sale ID, --sku ID, --all, or --answers FILE")
	}
	s, err := c.open(ctx, env, store.OpenAny, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for {
		err := c.round(ctx, env, s)
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
func (c *Audit) round(ctx context.Context, env *Env, s *stores) error {
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
	p := cli.StartProgress(env.Stderr, "audit")
	defer p.End()
	for {
		r, err := c.look(ctx, s.auditor, log, p)
		if err != nil {
			return err
		}
		if !r.odd || !r.Balanced || c.Watch || time.Since(began) >= s.QueuedBound+broker.StatisticsAge+2*again {
			p.End()
			return c.tell(env, r)
		}
		p.Say("waiting for what the broker holds and no order accounts for")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again):
		}
	}
}

// errUnbalanced: an equation does not hold.
var errUnbalanced = errors.New("not balanced")

// report is what one look found.
type report struct {
	Balanced bool            `json:"balanced"`
	Sales    []audit.Result  `json:"sales"`
	SKUs     []audit.SKU     `json:"skus"`
	Answers  *audit.Answered `json:"answers,omitzero"`
	// odd says that the broker holds something that no outbox accounts for, or does not answer: no finding yet.
	odd bool
}

// look audits once. log is nil without a log of answers.
func (c *Audit) look(ctx context.Context, auditor *audit.Auditor, log []audit.Answer, p *cli.Progress) (r report, err error) {
	if c.Sale != 0 && log != nil {
		log = slices.DeleteFunc(slices.Clone(log), func(a audit.Answer) bool { return a.Sale != c.Sale })
	}
	sales, skus, err := c.which(ctx, auditor, log)
	if err != nil {
		return r, err
	}
	r.Balanced = true
	for i, id := range sales {
		p.Say("sale %d, %d of %d", id, i+1, len(sales))
		s, err := auditor.Sale(ctx, id)
		if errors.Is(err, audit.ErrUnknownSale) && c.Sale == 0 {
			continue // its lines say so
		}
		if err != nil {
			return r, err
		}
		r.Sales, r.Balanced = append(r.Sales, s), r.Balanced && s.Balanced
		r.odd = r.odd || s.Broker != nil && (s.Broker.Unexplained || s.Broker.Error != "")
	}
	for i, id := range skus {
		p.Say("SKU %d, %d of %d", id, i+1, len(skus))
		s, err := auditor.SKU(ctx, id)
		if err != nil {
			return r, err
		}
		r.SKUs, r.Balanced = append(r.SKUs, s), r.Balanced && s.Balanced
	}
	if log != nil {
		p.Say("%d answers", len(log))
		a, err := auditor.Answers(ctx, log)
		if err != nil {
			return r, err
		}
		r.Answers, r.Balanced = &a, r.Balanced && a.Balanced
	}
	return r, nil
}

// tell prints a report. One that is not balanced is an error.
func (c *Audit) tell(env *Env, r report) error {
	var shown any = r
	switch {
	case c.Sale != 0 && r.Answers == nil:
		shown = r.Sales[0]
	case c.SKU != 0 && r.Answers == nil:
		shown = r.SKUs[0]
	}
	if err := c.print(env.Stdout, shown, func(w *bytes.Buffer) { c.text(w, r) }); err != nil || r.Balanced {
		return err
	}
	sales, skus := 0, 0
	for _, s := range r.Sales {
		if !s.Balanced {
			sales++
		}
	}
	for _, s := range r.SKUs {
		if !s.Balanced {
			skus++
		}
	}
	switch {
	case skus > 0:
		return fmt.Errorf("audit: %w: %d of %d SKUs, %d of %d sales", errUnbalanced, skus, len(r.SKUs), sales, len(r.Sales))
	case sales > 0:
		return fmt.Errorf("audit: %w: %d of %d sales", errUnbalanced, sales, len(r.Sales))
	default:
		return fmt.Errorf("audit: %w: the log of answers contradicts the stores", errUnbalanced)
	}
}

// which says what to audit: the sale or the SKU that was asked for, all, or the sales of the log.
func (c *Audit) which(ctx context.Context, auditor *audit.Auditor, log []audit.Answer) (sales, skus []int64, err error) {
	switch {
	case c.All:
		if sales, err = auditor.Sales(ctx); err == nil {
			skus, err = auditor.SKUs(ctx)
		}
		return sales, skus, err
	case c.Sale != 0:
		return []int64{c.Sale}, nil, nil
	case c.SKU != 0:
		skus = []int64{c.SKU}
	}
	for _, line := range log {
		sales = append(sales, line.Sale)
	}
	slices.Sort(sales)
	return slices.Compact(sales), skus, nil
}

func (c *Audit) text(w *bytes.Buffer, r report) {
	if c.SKU == 0 {
		listed(w, row{"SALE", "AVAILABLE +", "QUEUED +", "LOCKED +", "SOLD =", "TOTAL", ""}, r.Sales, func(s audit.Result) row {
			return row{s.SaleID, s.Available, s.Queued, s.Locked, s.Sold, s.Total, inWords(s.Balanced)}
		})
	}
	for _, s := range r.Sales {
		if b := s.Broker; b != nil && b.Error != "" {
			fmt.Fprintf(w, "sale %d: the broker does not say how its queues are: %s\n", s.SaleID, b.Error)
		} else if b != nil {
			fmt.Fprintf(w, "sale %d: %s: %d ready, %s unacknowledged, %d consumers; %d unrouted, %d dead, %d dead letters of the sale\n",
				s.SaleID, b.Queue, b.Ready, orUnknown(b.Unacked), b.Consumers, b.Unrouted, b.Dead, b.DeadLetters)
		}
		printFindings(w, fmt.Sprintf("sale %d", s.SaleID), s.Findings...)
	}
	if len(r.SKUs) > 0 {
		listed(w, row{"SKU", "AVAILABLE +", "ALLOTTED +", "LOCKED +", "SOLD =", "TOTAL", "", "IN REDIS: AVAILABLE + LOCKED + SOLD"}, r.SKUs, func(s audit.SKU) row {
			in := "not loaded"
			if s.Redis.Loaded {
				in = fmt.Sprintf("%d + %d + %d, %d in flight", s.Redis.Available, s.Redis.Locked, s.Redis.Sold, s.Redis.InFlight)
			}
			return row{s.SKUID, s.Available, s.Allotted, s.Locked, s.Sold, s.Total, inWords(s.Balanced), in}
		})
	}
	for _, s := range r.SKUs {
		printFindings(w, fmt.Sprintf("SKU %d", s.SKUID), s.Findings...)
	}
	if a := r.Answers; a != nil {
		fmt.Fprintf(w, "\n%d answers: %d accepted, %d refused, %d of unknown outcome; %d orders promised, %d of them queued, %d lost\n",
			a.Lines, a.Accepted, a.Refused, a.Unknown, a.Promised, a.Queued, a.Lost)
		for _, reason := range slices.Sorted(maps.Keys(a.Rejected)) {
			fmt.Fprintf(w, "%d promised orders are rejected: %s\n", a.Rejected[reason], reason)
		}
		for _, f := range a.Findings {
			printFindings(w, fmt.Sprintf("line %d", f.Line), f)
		}
	}
}

func inWords(balanced bool) string {
	if balanced {
		return "balanced"
	}
	return "NOT BALANCED"
}

// printFindings says where each finding is, and what to do.
func printFindings(w *bytes.Buffer, of string, findings ...audit.Finding) {
	for _, f := range findings {
		where := f.Key
		if f.OrderID != "" {
			where = strings.TrimSpace(where + " order " + f.OrderID)
		}
		fmt.Fprintf(w, "\n%s: %s does not hold\n  where  %s\n  what   %s\n  to do  %s\n", of, f.Equation, where, f.Detail, f.Fix)
	}
}

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/shared/cli"
)

// Preflight is the command "preflight".
type Preflight struct {
	Sale      int64  `required:"" help:"The sale." placeholder:"ID"`
	Shoppers  int64  `help:"How many shoppers are expected at once, where that is known." placeholder:"N"`
	Rehearsal string `help:"What a rehearsal left (build/rehearsal.json of make rehearse), to hold against the sale." placeholder:"FILE"`
	Accepting
	API
}

// Accepting is the flag of commands that make checks.
type Accepting struct {
	Accept []string `help:"Checks that may be as they are, by name: known, and not in the way." placeholder:"NAME,..."`
}

// Run asks the backend, for it alone knows its gateways. One that does not answer is a no-go, too.
func (c *Preflight) Run(ctx context.Context, env *Env) error {
	if c.Sale < 1 || c.Shoppers < 0 {
		return cli.Usage("--sale %d, --shoppers %d: positive numbers", c.Sale, c.Shoppers)
	}
	rehearsed, err := c.rehearsal()
	if err != nil {
		return err
	}
	var r preflight.Report
	p := cli.StartProgress(env.Stderr, "preflight")
	err = c.with(env, func(api *adminapi.Client) (err error) {
		query := url.Values{}
		if c.Shoppers > 0 {
			query.Set("shoppers", strconv.FormatInt(c.Shoppers, 10))
		}
		if r, err = send[preflight.Report](ctx, api, get("/sales/%d/preflight?%s", c.Sale, query.Encode())); err != nil || rehearsed == nil {
			return err
		}
		s, err := send[adminapi.Sale](ctx, api, get("/sales/%d", c.Sale))
		r.Checks = append(r.Checks, rehearsed.Check(s.Total, c.Shoppers, time.Now()))
		return err
	})
	p.End()
	var usage *cli.UsageError
	switch {
	case errors.As(err, &usage), ctx.Err() != nil:
		return err
	case err != nil:
		r = preflight.Report{SaleID: c.Sale, Checks: []preflight.Check{{Name: "backend", Value: err.Error(), Want: "a backend that answers for the sale", Do: "`backend doctor` says what is wrong"}}}
	}
	return c.judge(env, c.Output, &r, "GO", "NO-GO")
}

func (c *Preflight) rehearsal() (*preflight.Rehearsal, error) {
	if c.Rehearsal == "" {
		return nil, nil
	}
	b, err := os.ReadFile(c.Rehearsal)
	if err != nil {
		return nil, cli.Usage("--rehearsal: %w", err)
	}
	r := new(preflight.Rehearsal)
	if err := json.Unmarshal(b, r); err != nil || r.At.IsZero() {
		return nil, cli.Usage("--rehearsal %s: it is not what make rehearse writes to build/rehearsal.json", c.Rehearsal)
	}
	return r, nil
}

// judge decides, and prints the report. A no-go is an error.
func (a Accepting) judge(env *Env, o Output, r *preflight.Report, yes, no string) error {
	if err := r.Decide(a.Accept); err != nil {
		return cli.Usage("--accept: %w", err)
	}
	word, bad := yes, 0
	for _, c := range r.Checks {
		if !c.OK && !c.Accepted {
			word = no
			bad++
		}
	}
	if err := o.print(env.Stdout, r, func(w *bytes.Buffer) { printChecks(w, *r, word) }); err != nil || bad == 0 {
		return err
	}
	return fmt.Errorf("%d of %d checks are not as wanted", bad, len(r.Checks))
}

// printChecks ends with the word for all of them.
func printChecks(w *bytes.Buffer, r preflight.Report, word string) {
	listed(w, row{"", "CHECK", "MEASURED"}, r.Checks, func(c preflight.Check) row {
		switch {
		case c.OK:
			return row{"ok", c.Name, c.Value}
		case c.Accepted:
			return row{"accepted", c.Name, c.Value}
		}
		return row{"NO", c.Name, c.Value}
	})
	for _, c := range r.Checks {
		if !c.OK {
			fmt.Fprintf(w, "\n%s\n  is     %s\n  wanted %s\n  to do  %s\n", c.Name, c.Value, c.Want, c.Do)
		}
	}
	fmt.Fprintf(w, "\n%s\n", word)
}

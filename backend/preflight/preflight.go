// Package preflight looks whether everything is so that a sale can be held, and says go or no-go: each check with what it measured,
// what is wanted, and what to do. The checks of the system as a whole are a table that `backend doctor` has as well.
//
// A check that cannot be made is a no-go that says why. Checks run side by side, each for at most Patience. They change nothing.
package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"floodgate.internal/shared/wire"
)

// Patience bounds each check.
const Patience = 10 * time.Second

// Check is what one check found.
type Check struct {
	Name  string `json:"name"`  // stable: for scripts
	OK    bool   `json:"ok"`    // Value is what is wanted
	Value string `json:"value"` // as it was measured, or why it is not known
	Want  string `json:"want"`
	Do    string `json:"do"` // one sentence; "" while OK
	// Accepted: somebody knows of it, and it does not stand in the way.
	Accepted bool `json:"accepted,omitzero"`
}

// Report is what all checks found.
type Report struct {
	Go        bool      `json:"go"`
	SaleID    int64     `json:"sale_id,omitzero"`    // 0: of the system alone
	CheckedAt wire.Time `json:"checked_at,omitzero"` // by the clock of the process that looked
	Checks    []Check   `json:"checks"`
}

// Decide sets Go: every check is OK, or accepted by its name. An error names an accepted one that there is not.
func (r *Report) Decide(accept []string) error {
	for _, name := range accept {
		if !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Name == name }) {
			return fmt.Errorf("there is no check %q", name)
		}
	}
	r.Go = true
	for i := range r.Checks {
		c := &r.Checks[i]
		c.Accepted = !c.OK && slices.Contains(accept, c.Name)
		r.Go = r.Go && (c.OK || c.Accepted)
	}
	return nil
}

// Result is what a look found.
type Result struct {
	Value string
	OK    bool
	Want  string // "": the row's
	Do    string // "": the row's
}

// Row is one check of a table.
type Row struct {
	Name string
	Want string
	Do   string // where it is not as wanted
	// Look measures. An error says that it cannot be known.
	Look func(ctx context.Context) (Result, error)
}

// Run makes the checks side by side, and returns what they found in the table's order. A look that outlives its context is not
// waited for: the time-outs of its connection end it.
func Run(ctx context.Context, rows []Row) []Check {
	checks := make([]Check, len(rows))
	var all sync.WaitGroup
	for i, row := range rows {
		all.Go(func() { checks[i] = row.check(ctx) })
	}
	all.Wait()
	return checks
}

// InOrder makes the checks one after the other. After one that is not as wanted the others are not made, and say so.
func InOrder(ctx context.Context, rows []Row) []Check {
	checks := make([]Check, len(rows))
	failed := ""
	for i, row := range rows {
		if failed != "" {
			checks[i] = Check{Name: row.Name, Want: row.Want, Value: "not looked at", Do: "see to " + failed + " first"}
			continue
		}
		if checks[i] = row.check(ctx); !checks[i].OK {
			failed = row.Name
		}
	}
	return checks
}

func (row Row) check(ctx context.Context) Check {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	type answer struct {
		Result
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		r, err := row.Look(ctx)
		answered <- answer{r, err}
	}()
	c := Check{Name: row.Name, Want: row.Want, Do: row.Do}
	select {
	case a := <-answered:
		if a.err != nil {
			c.Value = "not known: " + a.err.Error()
			return c
		}
		c.OK, c.Value = a.OK, a.Value
		if a.Want != "" {
			c.Want = a.Want
		}
		if a.Do != "" {
			c.Do = a.Do
		}
	case <-ctx.Done():
		c.Value = fmt.Sprintf("not known: no answer within %v", Patience)
	}
	if c.OK {
		c.Do = ""
	}
	return c
}

// list is items in one line, the first few of them.
func list(items []string) string {
	const most = 5
	if more := len(items) - most; more > 0 {
		return strings.Join(items[:most], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(items, ", ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

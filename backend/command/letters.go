package command

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"floodgate.internal/backend/deadletter"
	"floodgate.internal/shared/cli"
)

// DeadLetters is the command "dead-letters".
type DeadLetters struct {
	List   ListLetters   `cmd:"" help:"What could not be processed, newest first, with its payload and the reason."`
	Replay ReplayLetters `cmd:"" help:"Process one anew, or all that were not replayed yet."`
}

// ListLetters is the command "dead-letters list".
type ListLetters struct {
	Open bool `help:"Only those that were not replayed yet."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (ListLetters) Help() string {
	return `A readable order that died has its terminal row, and its units are back; what is no order is only kept.

Examples:
  backend dead-letters list -config configs/backend.yaml
  backend dead-letters list -config configs/backend.yaml --open --json`
}

// Run implements the command.
func (c *ListLetters) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	all, err := api.letters(ctx, c.Open)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(env.Stdout, map[string]any{"dead_letters": all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(env.Stdout, "there are no dead letters")
		return err
	}
	rows := make([]string, len(all))
	for i, l := range all {
		order, replayed := "no order", "-"
		if l.OrderID != "" {
			order = l.OrderID + " (" + string(l.Status) + ")"
			if l.Status == "" {
				order = l.OrderID + " (no row)"
			}
		}
		if l.ReplayedAt != nil {
			replayed = l.ReplayedAt.Format("2006-01-02 15:04:05")
		}
		rows[i] = fmt.Sprintf("%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s", l.ID, l.LastAt.Format("2006-01-02 15:04:05"), l.Queue, l.Times, replayed, order, short(l.Reason), short(l.Payload))
	}
	if err := table(env.Stdout, "ID\tLAST DIED\tQUEUE\tTIMES\tREPLAYED\tORDER\tREASON\tPAYLOAD", rows); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "\n%d dead letters\n", len(all))
	return err
}

// short is text for a cell.
func short(s string) string {
	s = strconv.Quote(s)
	if r := []rune(s[1 : len(s)-1]); len(r) > 80 {
		return string(r[:77]) + "..."
	}
	return s[1 : len(s)-1]
}

// letters reads every page.
func (c *client) letters(ctx context.Context, open bool) ([]deadletter.Letter, error) {
	all := []deadletter.Letter{}
	for cursor := ""; ; {
		var page struct {
			DeadLetters []deadletter.Letter `json:"dead_letters"`
			Next        string              `json:"next"`
		}
		if err := c.call(ctx, http.MethodGet, fmt.Sprintf("/admin/v1/dead-letters?open=%t%s", open, cursor), "", nil, &page); err != nil {
			return nil, fmt.Errorf("dead-letters: %w", err)
		}
		all = append(all, page.DeadLetters...)
		if page.Next == "" {
			return all, nil
		}
		cursor = "&cursor=" + page.Next
	}
}

// ReplayLetters is the command "dead-letters replay".
type ReplayLetters struct {
	ID  int64 `arg:"" optional:"" help:"Of the letter."`
	All bool  `help:"Every one that was not replayed yet."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (ReplayLetters) Help() string {
	return `An order that has a row in MySQL is left as it is, so a replay may be repeated. What is no order is only marked as seen.

Examples:
  backend dead-letters replay -config configs/backend.yaml 12
  backend dead-letters replay -config configs/backend.yaml --all`
}

// Run implements the command.
func (c *ReplayLetters) Run(ctx context.Context, env *Env) error {
	if (c.ID != 0) == c.All {
		return cli.Usage("dead-letters replay: give an id, or --all")
	}
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	ids := []int64{c.ID}
	if c.All {
		all, err := api.letters(ctx, true)
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, l := range slices.Backward(all) { // oldest first
			ids = append(ids, l.ID)
		}
	}
	done, results := []deadletter.Replayed{}, map[string]int{}
	for _, id := range ids {
		var r deadletter.Replayed
		if err := api.call(ctx, http.MethodPost, fmt.Sprintf("/admin/v1/dead-letters/%d/replay", id), "", nil, &r); err != nil {
			return fmt.Errorf("dead-letters replay %d, after %d others: %w", id, len(done), err)
		}
		done = append(done, r)
		results[r.Result]++
		if !c.JSON {
			fmt.Fprintf(env.Stdout, "%d: %s: %s\n", r.ID, r.Result, r.Detail)
		}
	}
	if c.JSON && !c.All {
		return printJSON(env.Stdout, done[0])
	}
	if c.JSON {
		return printJSON(env.Stdout, map[string]any{"replayed": done})
	}
	if c.All {
		var counts []string
		for _, r := range slices.Sorted(maps.Keys(results)) {
			counts = append(counts, fmt.Sprintf("%d %s", results[r], r))
		}
		text := strings.Join(counts, ", ")
		if text != "" {
			text = ": " + text
		}
		_, err = fmt.Fprintf(env.Stdout, "%d dead letters were replayed%s\n", len(done), text)
	}
	return err
}

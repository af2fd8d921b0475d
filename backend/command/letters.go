package command

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/deadletter"
	"floodgate.internal/shared/cli"
)

// DeadLetters is the command "dead-letters".
type DeadLetters struct {
	List   listLetters   `cmd:"" help:"What could not be processed, newest first, with its payload and the reason."`
	Replay replayLetters `cmd:"" help:"Process one anew, or all that were not replayed yet."`
}

// letters reads all dead letters, or all that were not replayed yet.
func letters(ctx context.Context, c *adminapi.Client, open bool) ([]deadletter.Message, error) {
	all, _, err := collect(ctx, c, "/dead-letters", filter("open", strconv.FormatBool(open)), math.MaxInt, 100, func(p adminapi.DeadLetters) []deadletter.Message { return p.DeadLetters })
	return all, err
}

type listLetters struct {
	Open bool `help:"Only those that were not replayed yet."`
	API
}

func (c *listLetters) Run(ctx context.Context, env *Env) error {
	return c.with(env, func(api *adminapi.Client) error {
		all, err := letters(ctx, api, c.Open)
		if err != nil {
			return err
		}
		return c.print(env.Stdout, map[string]any{"dead_letters": all}, func(w *bytes.Buffer) {
			if len(all) == 0 {
				fmt.Fprintln(w, "there are no dead letters")
				return
			}
			listed(w, row{"ID", "LAST DIED", "QUEUE", "TIMES", "REPLAYED", "ORDER", "REASON", "PAYLOAD"}, all, func(l deadletter.Message) row {
				order := "no order"
				switch {
				case l.OrderID != "" && l.Status == "":
					order = l.OrderID + " (no row)"
				case l.OrderID != "":
					order = fmt.Sprintf("%s (%s)", l.OrderID, l.Status)
				}
				return row{l.ID, shown(&l.LastAt), l.Queue, l.Times, shown(l.ReplayedAt), order, short(l.Reason), short(l.Payload)}
			})
			fmt.Fprintf(w, "\n%d dead letters\n", len(all))
		})
	})
}

// short is text for a cell.
func short(s string) string {
	s = strconv.Quote(s)
	if r := []rune(s[1 : len(s)-1]); len(r) > 80 {
		return string(r[:77]) + "..."
	}
	return s[1 : len(s)-1]
}

type replayLetters struct {
	ID  int64 `arg:"" optional:"" help:"Of the letter."`
	All bool  `help:"Every one that was not replayed yet."`
	API
}

func (c *replayLetters) Run(ctx context.Context, env *Env) error {
	if (c.ID != 0) == c.All {
		return cli.Usage("dead-letters replay: give an id, or --all")
	}
	if !c.All {
		return ask(ctx, env, c.API, post("", nil, "/dead-letters/%d/replay", c.ID), func(w *bytes.Buffer, r deadletter.Replayed) { fmt.Fprintln(w, inLine(r)) })
	}
	return c.with(env, func(api *adminapi.Client) error {
		all, err := letters(ctx, api, true)
		if err != nil {
			return err
		}
		done, results := []deadletter.Replayed{}, map[string]int{}
		for _, l := range slices.Backward(all) { // oldest first
			r, err := send[deadletter.Replayed](ctx, api, post("", nil, "/dead-letters/%d/replay", l.ID))
			if err != nil {
				return fmt.Errorf("dead-letters replay %d, after %d others: %w", l.ID, len(done), err)
			}
			done = append(done, r)
			results[r.Result]++
			if !c.JSON { // it may take long
				fmt.Fprintln(env.Stdout, inLine(r))
			}
		}
		return c.print(env.Stdout, map[string]any{"replayed": done}, func(w *bytes.Buffer) {
			var counts []string
			for _, r := range slices.Sorted(maps.Keys(results)) {
				counts = append(counts, fmt.Sprintf("%d %s", results[r], r))
			}
			fmt.Fprintf(w, "%d dead letters were replayed%s\n", len(done), strings.TrimSuffix(": "+strings.Join(counts, ", "), ": "))
		})
	})
}

func inLine(r deadletter.Replayed) string { return fmt.Sprintf("%d: %s: %s", r.ID, r.Result, r.Detail) }

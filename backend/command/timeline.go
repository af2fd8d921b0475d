package command

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Timeline is the command "timeline".
type Timeline struct {
	UID  string `required:"" help:"The buyer." name:"uid" placeholder:"UID"`
	Sale int64  `required:"" help:"The sale." placeholder:"ID"`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (Timeline) Help() string {
	return `What became of a buyer's presses in a sale, by which rule, and when; their orders; and the sale's own history.

Example:
  backend timeline -config configs/backend.yaml --uid 4711 --sale 7`
}

// Run implements the command.
func (c *Timeline) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var t verdict.Timeline
	query := url.Values{"uid": {c.UID}, "sale_id": {strconv.FormatInt(c.Sale, 10)}}
	if err := api.call(ctx, http.MethodGet, "/admin/v1/timeline?"+query.Encode(), "", nil, &t); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	if c.JSON {
		return printJSON(env.Stdout, t)
	}
	var rows []string
	for _, e := range t.Events {
		until := "still so"
		if e.Until != nil {
			until = e.Until.Format(wire.TimeFormat)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s", e.At.Format(wire.TimeFormat), until, e.Count, e.What, e.Rule, e.Detail))
	}
	if err := table(env.Stdout, "FROM\tUNTIL\tTIMES\tWHAT\tRULE\tDETAIL", rows); err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "\n%s\n", t.Note)
	for _, m := range t.Missing {
		fmt.Fprintf(env.Stdout, "not complete: %s\n", m)
	}
	return nil
}

package command

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// AuditLog is the command "audit-log".
type AuditLog struct {
	Target string `help:"Of this alone, like \"sale 7\", \"sku 3\", \"bans\" or \"order ID\"." placeholder:"TARGET"`
	Limit  int    `default:"50" help:"How many changes, at most."`
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (AuditLog) Help() string {
	return `Every change by an operator or the timer, newest first: who, what, before and after (--json shows these two).

Examples:
  backend audit-log -config configs/backend.yaml
  backend audit-log -config configs/backend.yaml --target "sale 7" --json`
}

type logEntry struct {
	ID     int64          `json:"id"`
	At     wire.Time      `json:"at"`
	Who    string         `json:"who"`
	Action string         `json:"action"`
	Target string         `json:"target"`
	Before jsontext.Value `json:"before"`
	After  jsontext.Value `json:"after"`
}

// Run implements the command.
func (c *AuditLog) Run(ctx context.Context, env *Env) error {
	if c.Limit < 1 {
		return cli.Usage("--limit %d: must be positive", c.Limit)
	}
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	query := url.Values{}
	if c.Target != "" {
		query.Set("target", c.Target)
	}
	entries := []logEntry{}
	for more := true; more && len(entries) < c.Limit; {
		var page struct {
			Entries []logEntry `json:"entries"`
			Next    string     `json:"next"`
		}
		query.Set("limit", strconv.Itoa(min(200, c.Limit-len(entries))))
		if err := api.call(ctx, http.MethodGet, "/admin/v1/audit-log?"+query.Encode(), "", nil, &page); err != nil {
			return fmt.Errorf("audit-log: %w", err)
		}
		entries = append(entries, page.Entries...)
		query.Set("cursor", page.Next)
		more = page.Next != ""
	}
	if c.JSON {
		return printJSON(env.Stdout, map[string]any{"entries": entries})
	}
	var rows []string
	for _, e := range entries {
		rows = append(rows, fmt.Sprintf("%d\t%s\t%s\t%s\t%s", e.ID, e.At.Format("2006-01-02 15:04:05"), e.Who, e.Action, e.Target))
	}
	return table(env.Stdout, "ID\tAT\tWHO\tACTION\tTARGET", rows)
}

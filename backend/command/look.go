package command

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/broker"
	"floodgate.internal/shared/verdict"
	"floodgate.internal/shared/wire"
)

// Queue is the command "queue".
type Queue struct{ API }

func (c *Queue) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/queue"), printQueue)
}

func printQueue(w *bytes.Buffer, q adminapi.Queue) {
	fmt.Fprintf(w, "%d orders are queued, the oldest for %s; %d changes are on their way to Redis; %d dead letters\n", q.Depth, millis(q.OldestAgeMS), q.Intents, q.DeadLetters)
	rows := []row{{"SALE", "OUTBOX", "OLDEST", "PENDING", "READER", "IDLE", "HELD FOR", "DELIVERIES"}}
	for _, o := range q.Outboxes {
		rows = append(rows, row{o.SaleID, o.Depth, millis(o.OldestAgeMS), o.Pending, ""})
		for _, r := range o.Consumers {
			held, deliveries := "-", "-"
			if r.Pending > 0 {
				held, deliveries = millis(r.HeldMS), fmt.Sprint(r.Deliveries)
			}
			rows = append(rows, row{"", "", "", r.Pending, r.Name, millis(r.IdleMS), held, deliveries})
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		table(w, rows...)
	}
	if q.BrokerError != "" {
		fmt.Fprintf(w, "\nthe broker does not say how its queues are: %s\n", q.BrokerError)
	}
	if len(q.Queues) > 0 {
		fmt.Fprintln(w)
		listed(w, row{"QUEUE", "DEPTH", "READY", "UNACKED", "CONSUMERS"}, q.Queues, func(s broker.QueueState) row {
			return row{s.Name, s.Depth, s.Ready, orUnknown(s.Unacked), s.Consumers}
		})
	}
}

// orUnknown is a number that the broker may not say.
func orUnknown(n int64) string {
	if n < 0 {
		return "?"
	}
	return strconv.FormatInt(n, 10)
}

// Timeline is the command "timeline".
type Timeline struct {
	UID  string `required:"" help:"The buyer." name:"uid" placeholder:"UID"`
	Sale int64  `required:"" help:"The sale." placeholder:"ID"`
	API
}

func (c *Timeline) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, get("/timeline?uid=%s&sale_id=%d", url.QueryEscape(c.UID), c.Sale), func(w *bytes.Buffer, t verdict.Timeline) {
		listed(w, row{"FROM", "UNTIL", "TIMES", "WHAT", "RULE", "DETAIL"}, t.Events, func(e verdict.Event) row {
			until := "still so"
			if e.Until != nil {
				until = e.Until.Format(wire.TimeFormat)
			}
			return row{e.At.Format(wire.TimeFormat), until, e.Count, e.What, e.Rule, e.Detail}
		})
		fmt.Fprintf(w, "\n%s\n", t.Note)
		for _, m := range t.Missing {
			fmt.Fprintf(w, "not complete: %s\n", m)
		}
	})
}

// AuditLog is the command "audit-log".
type AuditLog struct {
	Target string `help:"Of this alone, like \"sale 7\", \"sku 3\", \"bans\" or \"order ID\"." placeholder:"TARGET"`
	Limit  int    `default:"50" help:"How many changes, at most."`
	API
}

func (c *AuditLog) Run(ctx context.Context, env *Env) error {
	return c.with(env, func(api *adminapi.Client) error {
		list, _, err := collect(ctx, api, "/audit-log", filter("target", c.Target), c.Limit, 200, func(p adminapi.Log) []adminapi.LogEntry { return p.Entries })
		if err != nil {
			return err
		}
		return c.print(env.Stdout, map[string]any{"entries": list}, func(w *bytes.Buffer) {
			listed(w, row{"ID", "AT", "WHO", "ROLE", "ACTION", "TARGET"}, list, func(e adminapi.LogEntry) row {
				return row{e.ID, shown(&e.At), e.Who, cmp.Or(e.Role, "-"), e.Action, e.Target}
			})
		})
	})
}

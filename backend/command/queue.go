package command

import (
	"context"
	"fmt"
	"net/http"

	"floodgate.internal/backend/broker"
)

// Queue is the command "queue".
type Queue struct {
	Remote
	Output
}

// Help implements kong's HelpProvider.
func (Queue) Help() string {
	return `Every order stays in its sale's outbox until its row in MySQL is committed; the broker carries it there.
The reader "published" stands for the broker. What cannot be processed is in backend dead-letters list.

Example:
  backend queue -config configs/backend.yaml`
}

type queueState struct {
	Depth       int64               `json:"depth"`
	OldestAgeMS int64               `json:"oldest_age_ms"`
	Pending     int64               `json:"pending"`
	Outboxes    []outboxState       `json:"outboxes"`
	BrokerError string              `json:"broker_error"`
	Ready       int64               `json:"ready"`
	Unacked     int64               `json:"unacked"`
	Consumers   int64               `json:"consumers"`
	DeadLetters int64               `json:"dead_letters"`
	Queues      []broker.QueueState `json:"queues"`
	Intents     int64               `json:"intents"`
}

type outboxState struct {
	SaleID      int64 `json:"sale_id"`
	Depth       int64 `json:"depth"`
	OldestAgeMS int64 `json:"oldest_age_ms"`
	Pending     int64 `json:"pending"`
	Consumers   []struct {
		Name       string `json:"name"`
		Pending    int64  `json:"pending"`
		IdleMS     int64  `json:"idle_ms"`
		HeldMS     int64  `json:"held_ms"`
		Deliveries int64  `json:"deliveries"`
	} `json:"consumers"`
}

// Run implements the command.
func (c *Queue) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var q queueState
	if err := api.call(ctx, http.MethodGet, "/admin/v1/queue", "", nil, &q); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	if c.JSON {
		return printJSON(env.Stdout, q)
	}
	fmt.Fprintf(env.Stdout, "%d orders are queued, the oldest for %s; %d changes are on their way to Redis; %d dead letters\n", q.Depth, millis(q.OldestAgeMS), q.Intents, q.DeadLetters)
	var rows []string
	for _, o := range q.Outboxes {
		rows = append(rows, fmt.Sprintf("%d\t%d\t%s\t%d\t", o.SaleID, o.Depth, millis(o.OldestAgeMS), o.Pending))
		for _, r := range o.Consumers {
			held, deliveries := "-", "-"
			if r.Pending > 0 {
				held, deliveries = millis(r.HeldMS), fmt.Sprint(r.Deliveries)
			}
			rows = append(rows, fmt.Sprintf("\t\t\t%d\t%s\t%s\t%s\t%s", r.Pending, r.Name, millis(r.IdleMS), held, deliveries))
		}
	}
	if rows != nil {
		fmt.Fprintln(env.Stdout)
		if err := table(env.Stdout, "SALE\tOUTBOX\tOLDEST\tPENDING\tREADER\tIDLE\tHELD FOR\tDELIVERIES", rows); err != nil {
			return err
		}
	}
	if q.BrokerError != "" {
		fmt.Fprintf(env.Stdout, "\nthe broker does not say how its queues are: %s\n", q.BrokerError)
	}
	rows = nil
	for _, s := range q.Queues {
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%s\t%d", s.Name, s.Depth, s.Ready, orUnknown(s.Unacked), s.Consumers))
	}
	if rows != nil {
		fmt.Fprintln(env.Stdout)
		return table(env.Stdout, "QUEUE\tDEPTH\tREADY\tUNACKED\tCONSUMERS", rows)
	}
	return nil
}

// orUnknown is a number that the broker may not say.
func orUnknown(n int64) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

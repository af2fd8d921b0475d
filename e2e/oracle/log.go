package oracle

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"floodgate.internal/shared/wire"
)

// Log is the clients' own log of answers: who asked for what, and what they were told.
type Log struct {
	mu      sync.Mutex // guards entries and told
	entries []Answer
	told    map[string]bool             // order ids that were promised
	ended   map[string]wire.OrderStatus // what owners were told of their orders last: paid, cancelled
	came    chan struct{}               // gets a token (never blocks) at each new promise
}

// Answer is one request for an order and what was answered. Status 0: nothing was.
type Answer struct {
	UID, Key string // Key: the Idempotency-Key, "" for none
	Status   int
	Code     string // of a problem
	OrderID  string
}

// NewLog makes an empty one.
func NewLog() *Log {
	return &Log{told: map[string]bool{}, ended: map[string]wire.OrderStatus{}, came: make(chan struct{}, 1)}
}

// Add notes an answer.
func (j *Log) Add(e Answer) {
	j.mu.Lock()
	j.entries = append(j.entries, e)
	if e.Status == 202 && !j.told[e.OrderID] {
		j.told[e.OrderID] = true
		select {
		case j.came <- struct{}{}:
		default:
		}
	}
	j.mu.Unlock()
}

// End notes that an owner was told that the order is paid or cancelled.
func (j *Log) End(orderID string, status wire.OrderStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended[orderID] = status
}

// Promised is how many different orders were answered 202 so far.
func (j *Log) Promised() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.told)
}

// Promises are the orders that were answered 202 so far.
func (j *Log) Promises() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Keys(j.told))
}

// Await returns once n orders were promised.
func (j *Log) Await(ctx context.Context, n int) error {
	for j.Promised() < n {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d promised, waiting for %d: %w", j.Promised(), n, ctx.Err())
		case <-j.came:
		}
	}
	return nil
}

// Summary counts the answers by status and code.
func (j *Log) Summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := map[string]int{}
	for _, e := range j.entries {
		n[strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, e.Code))]++
	}
	var parts []string
	for k, v := range n {
		parts = append(parts, fmt.Sprintf("%s: %d", k, v))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// WriteLines writes the log as `backend audit --answers` reads it: a JSON object a line.
func (j *Log) WriteLines(w io.Writer, sale int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	for _, a := range j.entries {
		if err := lines.Encode(map[string]any{"uid": a.UID, "sale": sale, "key": a.Key, "status": a.Status, "code": a.Code, "order_id": a.OrderID}); err != nil {
			return err
		}
	}
	return out.Flush()
}

// kept compares the clients' log with the orders: every 202 is a row of that buyer, and who got none has no order.
func (o View) kept(j *Log) (bad []string) {
	say := func(format string, args ...any) {
		if len(bad) < 20 {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	may := map[string]bool{}              // uids that may have an order
	first := map[string]string{}          // uid and key -> order id
	byUID := map[string]map[string]bool{} // uid -> promised orders
	for _, a := range j.entries {
		switch {
		case a.Status == 202:
			may[a.UID] = true
			if r, ok := o.Orders[a.OrderID]; !ok {
				say("lost: %s was promised order %s, mysql does not have it", a.UID, a.OrderID)
			} else if r.UID != a.UID {
				say("%s was promised order %s, which mysql has for %s", a.UID, a.OrderID, r.UID)
			} else if r.Status == string(wire.Rejected) {
				say("%s was promised order %s, which was rejected: %s", a.UID, a.OrderID, r.Reason)
			}
			if id := first[a.UID+" "+a.Key]; a.Key != "" && id != "" && id != a.OrderID {
				say("%s repeated key %s and got %s, before %s", a.UID, a.Key, a.OrderID, id)
			}
			first[a.UID+" "+a.Key] = a.OrderID
			if byUID[a.UID] == nil {
				byUID[a.UID] = map[string]bool{}
			}
			byUID[a.UID][a.OrderID] = true
		case a.Code == "ALREADY_ORDERED":
			may[a.UID] = true
			if r, ok := o.Orders[a.OrderID]; !ok || r.UID != a.UID {
				say("%s was told of order %s, mysql has %+v", a.UID, a.OrderID, r)
			}
		case a.Status == 0 || a.Code == "OUTCOME_UNKNOWN":
			may[a.UID] = true // until it asks again: then one of the above must come
		}
	}
	for id, status := range j.ended {
		if got := o.Orders[id].Status; got != string(status) {
			say("the owner of order %s was told that it is %s, mysql says %q", id, status, got)
		}
	}
	for id, r := range o.Orders {
		if !may[r.UID] {
			say("%s was only ever refused, and has order %s (%s)", r.UID, id, r.Status)
		}
	}
	return bad
}

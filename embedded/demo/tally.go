package demo

import (
	"fmt"
	"sync"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// tally is the shoppers' own record of what they were told: the system's books are held against it.
type tally struct {
	mu       sync.Mutex // guards all below
	presses  int
	accepted map[string]bool // order ids of 202s
	repeats  int             // 202s with an order id that was told before
	refused  map[problem.Code]int
	failed   int // requests without an answer
	statuses map[wire.OrderStatus]int
	left     int      // orders that their buyers walked away from
	wrong    []string // answers that the contract does not allow
	slowest  time.Duration
}

func newTally() *tally {
	return &tally{accepted: map[string]bool{}, refused: map[problem.Code]int{}, statuses: map[wire.OrderStatus]int{}}
}

// pressed records an answer to an order that took so long, and returns how many orders were accepted before a new one.
func (t *tally) pressed(a answer, orderID string, took time.Duration) (before int, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.presses++
	t.slowest = max(t.slowest, took)
	before = len(t.accepted)
	switch {
	case a.status != 202:
		t.refused[a.problem.Code]++
	case t.accepted[orderID]:
		t.repeats++
	default:
		t.accepted[orderID] = true
		return before, true
	}
	return before, false
}

func (t *tally) refuse(code problem.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused[code]++
}

func (t *tally) became(s wire.OrderStatus) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.statuses[s]++
	return t.statuses[s]
}

func (t *tally) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left++
}

func (t *tally) fail() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.presses++
	t.failed++
}

// say records an answer that should not be, a bounded number of them.
func (t *tally) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.wrong) < 20 {
		t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
	}
}

// line is the progress line.
func (t *tally) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%d presses: %d accepted, %d sold out, %d too fast, %d again; %d paid, %d back",
		t.presses, len(t.accepted), t.refused[problem.SoldOut], t.refused[problem.RateLimited],
		t.refused[problem.AlreadyOrdered]+t.repeats, t.statuses[wire.Paid], t.statuses[wire.Cancelled]+t.left)
}

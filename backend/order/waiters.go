package order

import "sync"

// maxWaiters bounds the clients of one process that wait for their orders; one more is answered at once.
const maxWaiters = 16384

// waiters are the clients that wait for their orders to be settled.
type waiters struct {
	wake chan struct{} // holds one while woken is not empty

	mu    sync.Mutex                  // guards what follows
	all   map[string]map[*waiter]bool // by order id
	count int
	most  int
	woken map[string]struct{} // orders said to be settled, all of them waited for
}

// waiter is one client. At most one row is ever in c.
type waiter struct {
	id string
	c  chan row
}

func newWaiters(most int) *waiters {
	return &waiters{wake: make(chan struct{}, 1), all: map[string]map[*waiter]bool{}, most: most, woken: map[string]struct{}{}}
}

// add begins to wait. It returns nil when too many clients wait.
func (w *waiters) add(id string) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count >= w.most {
		return nil
	}
	x := &waiter{id: id, c: make(chan row, 1)}
	if w.all[id] == nil {
		w.all[id] = map[*waiter]bool{}
	}
	w.all[id][x] = true
	w.count++
	return x
}

// remove ends the wait.
func (w *waiters) remove(x *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all[x.id], x)
	if len(w.all[x.id]) == 0 {
		delete(w.all, x.id)
		delete(w.woken, x.id)
	}
	w.count--
}

// settled notes that an order was settled, if a client waits for it.
func (w *waiters) settled(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[id] == nil {
		return
	}
	w.woken[id] = struct{}{}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// takeWoken returns the orders that were settled since its last call.
func (w *waiters) takeWoken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.woken))
	for id := range w.woken {
		ids = append(ids, id)
	}
	clear(w.woken)
	return ids
}

// ids returns every order that a client waits for.
func (w *waiters) ids() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.all))
	for id := range w.all {
		ids = append(ids, id)
	}
	return ids
}

// deliver gives an order to every client that waits for it.
func (w *waiters) deliver(r row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x := range w.all[r.id] {
		select {
		case x.c <- r:
		default: // it has one
		}
	}
}

func (w *waiters) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

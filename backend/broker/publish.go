package broker

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/backoff"
	"floodgate.internal/shared/failpoint"
)

// publisher is a publishing connection.
type publisher struct {
	conn    *amqp.Connection
	orders  *amqp.Channel // in confirm mode
	fences  *amqp.Channel // fences, their answers, and the direct reply-to of our own fences
	done    chan struct{} // closed when the connection or a channel is gone
	drained chan struct{} // closed when every goroutine of this connection is gone
	err     error         // why it is gone; set before done is closed
	passed  chan struct{} // watch sends on it when all returns that came before are recorded
	refused chan error    // holds one when the connection is to end because the broker did not confirm
	proven  atomic.Int64  // how many messages the broker confirmed
	seq     atomic.Uint64 // of publishings

	mu       sync.Mutex        // guards what follows
	returned map[string]string // correlation id -> why; only of publishings whose Publish still waits
	blocked  chan struct{}     // closed while the broker blocks us
	reason   string            // why it does
	since    time.Time         // when it began to
}

// keepPublisher connects for ever, and replaces a connection on which the broker does not confirm. A channel of RabbitMQ looks up a
// queue's leader once. If it was opened just after the leader died, it may ask the dead node about every message, and refuse all
// of them until that node is back, though the queue has a new leader.
func (b *Broker) keepPublisher(ctx context.Context) {
	defer close(b.ended)
	for pause := newPause(); ctx.Err() == nil; {
		p, err := b.openPublisher(ctx)
		b.m.connects.WithLabelValues("publish", result(err)).Inc()
		if err != nil {
			b.setPublisher(nil, err)
			b.log.Warn("rabbitmq: publishing connection", "error", err)
			pause.Wait(ctx, nil)
			continue
		}
		b.setPublisher(p, nil)
		b.log.Info("rabbitmq: publishing connection is open")
		select {
		case <-p.done:
			pause.Reset()
			b.setPublisher(nil, p.err)
			b.log.Warn("rabbitmq: publishing connection was lost", "error", p.err)
		case err := <-p.refused:
			b.log.Warn("rabbitmq: publishing connection is given up", "error", err)
			hangUp(p.conn)
			if p.proven.Load() > 0 {
				pause.Reset()
			}
			pause.Wait(ctx, nil)
		case <-ctx.Done():
			hangUp(p.conn)
		}
		<-p.drained
	}
	b.setPublisher(nil, context.Canceled)
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// giveUp ends a connection: publisher no longer returns it.
func (b *Broker) giveUp(p *publisher, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.out == p {
		b.set(nil, why)
		p.refused <- why
	}
}

func (b *Broker) setPublisher(p *publisher, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(p, err)
}

// set is called under the lock.
func (b *Broker) set(p *publisher, err error) {
	if p == nil && b.out != nil {
		b.lost = time.Now()
	}
	b.out, b.outErr = p, err
	if p == nil && err == nil {
		b.outErr = ErrDown
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// publisher returns the open connection. It waits only for the first attempt to connect.
func (b *Broker) publisher(ctx context.Context) (*publisher, error) {
	for {
		b.mu.Lock()
		p, err, changed := b.out, b.outErr, b.changed
		b.mu.Unlock()
		if p != nil {
			return p, nil
		}
		if err != nil {
			return nil, down(err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, down(ctx.Err())
		}
	}
}

func (b *Broker) openPublisher(ctx context.Context) (p *publisher, err error) {
	conn, err := b.dial(ctx, "publish")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			hangUp(conn)
		}
	}()
	if err := b.topology(conn); err != nil {
		return nil, err
	}
	p = &publisher{conn: conn, done: make(chan struct{}), drained: make(chan struct{}), passed: make(chan struct{}), refused: make(chan error, 1), returned: map[string]string{}, blocked: make(chan struct{})}
	if p.orders, err = conn.Channel(); err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if err := p.orders.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	if p.fences, err = conn.Channel(); err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	replies, err := p.fences.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	if err != nil {
		return nil, fmt.Errorf("consume replies: %w", err)
	}
	// All are unbuffered and read by one goroutine. The library hands over a return before the confirm that follows it, so a
	// receive from passed after that confirm comes after the return was recorded.
	returns := p.orders.NotifyReturn(make(chan amqp.Return))
	blockings := conn.NotifyBlocked(make(chan amqp.Blocking))
	closed := []chan *amqp.Error{
		conn.NotifyClose(make(chan *amqp.Error, 1)),
		p.orders.NotifyClose(make(chan *amqp.Error, 1)),
		p.fences.NotifyClose(make(chan *amqp.Error, 1)),
	}
	go b.watch(p, returns, blockings, replies, closed)
	return p, nil
}

// watch drains every notification of a connection until it is gone.
func (b *Broker) watch(p *publisher, returns chan amqp.Return, blockings chan amqp.Blocking, replies <-chan amqp.Delivery, closed []chan *amqp.Error) {
	defer close(p.drained)
	gone := make(chan *amqp.Error, len(closed))
	for _, c := range closed {
		go func() { gone <- <-c }() // ends at the latest with the connection
	}
	for {
		select {
		case r, ok := <-returns:
			if !ok {
				returns = nil
				continue
			}
			p.mu.Lock()
			if _, waits := p.returned[r.CorrelationId]; waits {
				p.returned[r.CorrelationId] = r.ReplyText
			}
			p.mu.Unlock()
		case bl, ok := <-blockings:
			if !ok {
				blockings = nil
				continue
			}
			p.setBlocked(bl)
			b.log.Warn("rabbitmq: publishers blocked", "blocked", bl.Active, "reason", bl.Reason)
		case d, ok := <-replies:
			if !ok {
				replies = nil
				continue
			}
			b.fences.answered(d.CorrelationId, d.Type)
		case p.passed <- struct{}{}:
		case err := <-gone:
			if err != nil {
				p.err = err
			} else {
				p.err = amqp.ErrClosed
			}
			close(p.done)
			hung := make(chan struct{})
			go func() { hangUp(p.conn); close(hung) }() // also if only a channel is gone; it closes what is drained here
			drain(returns, blockings, replies)
			<-hung
			for range len(closed) - 1 {
				<-gone
			}
			return
		}
	}
}

// drain reads what the library still sends while it shuts down, until it has closed the channels.
func drain(returns chan amqp.Return, blockings chan amqp.Blocking, replies <-chan amqp.Delivery) {
	for returns != nil || blockings != nil || replies != nil {
		select {
		case _, ok := <-returns:
			if !ok {
				returns = nil
			}
		case _, ok := <-blockings:
			if !ok {
				blockings = nil
			}
		case _, ok := <-replies:
			if !ok {
				replies = nil
			}
		}
	}
}

func (p *publisher) setBlocked(bl amqp.Blocking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.blocked:
		if !bl.Active {
			p.blocked, p.reason = make(chan struct{}), ""
		}
	default:
		if bl.Active {
			p.reason, p.since = bl.Reason, time.Now()
			close(p.blocked)
		}
	}
}

// blockedNow also returns the reason.
func (p *publisher) blockedNow() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.blocked:
		return p.reason, true
	default:
		return "", false
	}
}

// blockedFor is for how long the broker has been blocking us; 0 when it does not.
func (p *publisher) blockedFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.blocked:
		return time.Since(p.since)
	default:
		return 0
	}
}

func (p *publisher) blockedChan() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked
}

// window is how many orders one Publish has unconfirmed at most.
const window = 1000

// Publish sends the orders to their partitions, up to 64 of a sale in one message. After nil each of them is confirmed and was not returned. After an error some may
// still be in the broker. It takes at most the confirm time-out for each 1,000 orders, and fails at once while there is no
// connection or the broker blocks publishers. If the broker refuses an order, or confirms nothing in that time, the connection is
// replaced, and what others publish over it is unconfirmed, too.
func (b *Broker) Publish(ctx context.Context, entries []queued.Entry) error {
	for len(entries) > 0 {
		n := min(len(entries), window)
		if err := b.publish(ctx, entries[:n]); err != nil {
			b.m.failed.Add(float64(len(entries)))
			return fmt.Errorf("publish %d orders: %w", len(entries), err)
		}
		b.m.published.Add(float64(n))
		entries = entries[n:]
	}
	return nil
}

func (b *Broker) publish(caller context.Context, entries []queued.Entry) error {
	ctx, cancel := context.WithTimeout(caller, b.cfg.ConfirmTimeout)
	defer cancel()
	p, err := b.publisher(ctx)
	if err != nil {
		return err
	}
	blocked, proven := p.blockedChan(), p.proven.Load()
	messages := together(entries)
	ids := make([]string, 0, len(messages))
	defer func() { p.forget(ids) }()
	confirms := make([]*amqp.DeferredConfirmation, 0, len(messages))
	for _, m := range messages {
		select {
		case <-blocked:
			return ErrBlocked
		default:
		}
		msg := encode(m, p.seq.Add(1))
		ids = append(ids, msg.CorrelationId)
		p.expect(msg.CorrelationId)
		c, err := p.orders.PublishWithDeferredConfirmWithContext(ctx, Exchange, strconv.Itoa(b.Partition(m[0].Sale)), true, false, msg)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
		}
		confirms = append(confirms, c)
	}
	failpoint.Hit("relay.before-confirm")
	for _, c := range confirms {
		select {
		case <-c.Done():
			if !c.Acked() {
				if p.orders.IsClosed() {
					return fmt.Errorf("%w: the connection was lost", ErrUnconfirmed)
				}
				err := fmt.Errorf("%w: negative confirm", ErrUnconfirmed)
				b.giveUp(p, err)
				return err
			}
			p.proven.Add(1)
		case <-blocked:
			return ErrBlocked
		case <-ctx.Done():
			err := fmt.Errorf("%w: %w", ErrUnconfirmed, ctx.Err())
			if caller.Err() == nil && p.proven.Load() == proven { // it is not just slow
				b.giveUp(p, err)
			}
			return err
		}
	}
	select {
	case <-p.passed:
	case <-p.done:
		return fmt.Errorf("%w: %w", ErrUnconfirmed, p.err)
	}
	return p.returnOf(ids)
}

func (p *publisher) expect(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.returned[id] = ""
}

func (p *publisher) forget(ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.returned, id)
	}
}

func (p *publisher) returnOf(ids []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if why := p.returned[id]; why != "" {
			return fmt.Errorf("%w: returned: %s", ErrUnconfirmed, why)
		}
	}
	return nil
}

// newPause is between two attempts at what the broker refuses.
func newPause() *backoff.Backoff {
	return &backoff.Backoff{First: 100 * time.Millisecond, Most: 3 * time.Second}
}

// Package broker carries orders from the outbox to the order consumers through RabbitMQ.
//
// A sale always uses the same partition, a quorum queue with a single active consumer, so its orders are settled in order. Nothing
// depends on the broker keeping anything: the outbox holds every order until it is settled, and what the broker loses is
// published again. See docs/rabbitmq.md.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The names in RabbitMQ.
const (
	Exchange = "fg.orders"   // direct; routing key: the partition's number
	Unrouted = "fg.unrouted" // exchange and queue: messages whose partition's queue was missing
	Dead     = "fg.dead"     // exchange and queue: messages that are no orders, or were delivered too often
)

// DeliveryLimit is how often a message is delivered before it is a dead letter. It is generous, for a consumer that goes away
// returns all that it held, and each return counts. A message that MySQL cannot take now is held, not returned.
const DeliveryLimit = 50

// Config says where RabbitMQ is and how it is used.
type Config struct {
	URL            string        // amqp://user:password@host:port/vhost
	ManagementURL  string        // http://user:password@host:port of the management API; "" for none
	Partitions     int           // quorum queues, at least 1
	ConfirmTimeout time.Duration // of one Publish; 0: 5 s
	StallAfter     time.Duration // without a delivery, before a consumer looks whether its queue is empty; 0: 10 s
	Log            *slog.Logger
	Register       prometheus.Registerer
}

var (
	// ErrDown: there is no connection to publish on.
	ErrDown = errors.New("rabbitmq is not connected")
	// ErrBlocked: the broker is out of memory or disk and takes nothing.
	ErrBlocked = errors.New("rabbitmq blocks publishers")
	// ErrUnconfirmed: no confirm came, or a negative one, or the message was returned. The broker may have it.
	ErrUnconfirmed = errors.New("rabbitmq did not confirm")
)

// Broker is one process's side of RabbitMQ: a connection to publish on and, for each Consume, one to consume on. It
// connects again for ever. It is safe for concurrent use.
type Broker struct {
	cfg    Config
	vhost  string
	log    *slog.Logger
	m      metrics
	stop   context.CancelFunc
	ended  chan struct{} // closed when the publishing goroutine is gone
	fences fences

	mu      sync.Mutex    // guards what follows
	out     *publisher    // nil: not connected
	outErr  error         // why out is nil; nil before the first attempt ended
	lost    time.Time     // since when out is nil
	changed chan struct{} // closed and replaced when out or outErr changes
}

// Open checks the configuration and starts to connect; it does not wait for RabbitMQ. Close ends it.
func Open(cfg Config) (*Broker, error) {
	u, err := amqp.ParseURI(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("queue.url: %w: the form is amqp://user:password@host:5672/vhost", err)
	}
	if cfg.Partitions < 1 {
		return nil, fmt.Errorf("queue.partitions: %d must be at least 1", cfg.Partitions)
	}
	if cfg.ManagementURL != "" {
		if m, err := url.Parse(cfg.ManagementURL); err != nil || m.Host == "" {
			return nil, errors.New("queue.management_url: it is no URL: the form is http://user:password@host:15672")
		}
	}
	if cfg.ConfirmTimeout == 0 {
		cfg.ConfirmTimeout = 5 * time.Second
	}
	if cfg.StallAfter == 0 {
		cfg.StallAfter = 10 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &Broker{cfg: cfg, vhost: u.Vhost, log: cfg.Log, m: newMetrics(cfg.Register), stop: stop, ended: make(chan struct{}), changed: make(chan struct{}), lost: time.Now()}
	go b.keepPublisher(ctx)
	return b, nil
}

// Close ends the publishing connection and waits for its goroutine. A Consume ends by its context.
func (b *Broker) Close() error {
	b.stop()
	<-b.ended
	return nil
}

// Healthy is nil while messages can be published.
func (b *Broker) Healthy() error {
	b.mu.Lock()
	p, err := b.out, b.outErr
	b.mu.Unlock()
	if p == nil {
		return down(err)
	}
	if reason, blocked := p.blockedNow(); blocked {
		return fmt.Errorf("%w: %s", ErrBlocked, reason)
	}
	return nil
}

// Down is for how long nothing could be published; 0 while it can.
func (b *Broker) Down() time.Duration {
	b.mu.Lock()
	p, lost := b.out, b.lost
	b.mu.Unlock()
	if p == nil {
		return time.Since(lost)
	}
	return p.blockedFor()
}

// Partition is the number of the queue that a sale's orders go through.
func (b *Broker) Partition(sale int64) int { return int(sale % int64(b.cfg.Partitions)) }

// QueueName is the queue of a partition.
func QueueName(partition int) string { return Exchange + "." + strconv.Itoa(partition) }

func down(why error) error {
	if why == nil {
		return ErrDown
	}
	return fmt.Errorf("%w: %w", ErrDown, why)
}

// handshakeTimeout bounds a connection attempt, ioTimeout each write: a half-open connection must not hold a caller.
const (
	handshakeTimeout = 5 * time.Second
	ioTimeout        = 10 * time.Second
	heartbeat        = 5 * time.Second
)

// dial connects. The connection ends with ctx if it is cancelled during the handshake.
func (b *Broker) dial(ctx context.Context, role string) (*amqp.Connection, error) {
	dialer := net.Dialer{Timeout: handshakeTimeout}
	conn, err := amqp.DialConfig(b.cfg.URL, amqp.Config{
		Heartbeat:  heartbeat,
		Properties: amqp.Table{"connection_name": "floodgate " + role},
		Dial: func(network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil { // the library lifts it afterwards
				return nil, errors.Join(err, c.Close())
			}
			return &timedConn{Conn: c}, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to rabbitmq: %w", err)
	}
	return conn, nil
}

// timedConn gives each write a deadline. The library sets none, and a peer that does not read would block every publisher.
// A deadline for everything is set only to hang up (CloseDeadline), and then stays. The library would extend the reading
// side's with each frame, and wait for a broker that keeps the connection open for a queue without a leader.
type timedConn struct {
	net.Conn
	mu  sync.Mutex // guards end
	end time.Time
}

// SetDeadline implements net.Conn.
func (c *timedConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = t
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *timedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.IsZero() && t.After(c.end) {
		t = c.end
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *timedConn) Write(p []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// hangUp closes a connection without waiting long for the other side.
func hangUp(conn *amqp.Connection) {
	_ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) // it is given up either way
}

// topology declares exchanges, queues and bindings. All of them may exist already.
func (b *Broker) topology(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	defer ch.Close()
	for _, x := range []struct {
		name, kind string
		args       amqp.Table
	}{
		{Dead, amqp.ExchangeFanout, nil},
		{Unrouted, amqp.ExchangeFanout, nil},
		{Exchange, amqp.ExchangeDirect, amqp.Table{"alternate-exchange": Unrouted}},
	} {
		if err := ch.ExchangeDeclare(x.name, x.kind, true, false, false, false, x.args); err != nil {
			return fmt.Errorf("declare exchange %s: %w", x.name, err)
		}
	}
	queue := func(name, exchange, key string, args amqp.Table) error {
		args[amqp.QueueTypeArg] = amqp.QueueTypeQuorum
		if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
			return fmt.Errorf("declare queue %s: %w", name, err)
		}
		if err := ch.QueueBind(name, key, exchange, false, nil); err != nil {
			return fmt.Errorf("bind queue %s: %w", name, err)
		}
		return nil
	}
	if err := queue(Dead, Dead, "", amqp.Table{}); err != nil {
		return err
	}
	if err := queue(Unrouted, Unrouted, "", amqp.Table{amqp.SingleActiveConsumerArg: true}); err != nil {
		return err
	}
	for i := range b.cfg.Partitions {
		err := queue(QueueName(i), Exchange, strconv.Itoa(i), amqp.Table{
			amqp.SingleActiveConsumerArg: true,
			"x-delivery-limit":           DeliveryLimit,
			"x-dead-letter-exchange":     Dead,
			"x-dead-letter-strategy":     "at-least-once",
			amqp.QueueOverflowArg:        amqp.QueueOverflowRejectPublish, // at-least-once dead-lettering wants it
		})
		if err != nil {
			return err
		}
	}
	return nil
}

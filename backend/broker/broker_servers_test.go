//go:build servers

package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

func open(t *testing.T, url string, partitions int) *broker.Broker {
	t.Helper()
	return openWith(t, broker.Config{URL: url, Partitions: partitions, ManagementURL: os.Getenv("AMQP_MANAGEMENT_URL")})
}

func openWith(t *testing.T, cfg broker.Config) *broker.Broker {
	t.Helper()
	cfg.Log, cfg.Register = backendtest.Log(t), prometheus.NewRegistry()
	b, err := broker.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func orders(sale int64, n int) []queued.Entry {
	es := make([]queued.Entry, n)
	for i := range es {
		id := uuid.Must(uuid.NewV7()).String()
		es[i] = queued.Entry{ID: wire.NewOrderID(id, sale), Sale: sale, UID: fmt.Sprintf("u%d", i), Quantity: 1, Slots: "1", Epoch: 1,
			At: 1_700_000_000_000, Entry: fmt.Sprintf("1-%d", i)}
	}
	return es
}

// book is where the orders of a test are settled.
type book struct {
	mu      sync.Mutex // guards what follows
	seen    []queued.Entry
	retired []queued.Entry
	largest int
	changed chan struct{}
}

func newBook() *book { return &book{changed: make(chan struct{})} }

func (b *book) settle(_ context.Context, es []queued.Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, es...)
	b.largest = max(b.largest, len(es))
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

func (b *book) settled(_ context.Context, es []queued.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = append(b.retired, es...)
	close(b.changed)
	b.changed = make(chan struct{})
}

// until waits until f, called under the lock, is true.
func (b *book) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		b.mu.Lock()
		ok, changed := f(), b.changed
		b.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never: %s: %d seen, %d retired", what, len(b.seen), len(b.retired))
		}
	}
}

func ids(es []queued.Entry) []string {
	out := make([]string, len(es))
	for i, e := range es {
		out[i] = e.ID
	}
	return out
}

func ofSale(es []queued.Entry, sale int64) []string {
	var out []string
	for _, e := range es {
		if e.Sale == sale {
			out = append(out, e.ID)
		}
	}
	return out
}

// consume runs Consume until the returned function is called, which waits for its end.
func consume(t *testing.T, b *broker.Broker, batch int, settle func(context.Context, []queued.Entry) error, settled func(context.Context, []queued.Entry)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- b.Consume(ctx, batch, 2*time.Millisecond, broker.Handler{Settle: settle, Settled: settled, Postpone: settle})
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Consume: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func publish(t *testing.T, b *broker.Broker, es []queued.Entry) {
	t.Helper()
	if err := b.Publish(t.Context(), es); err != nil {
		t.Fatal(err)
	}
}

// publishApart publishes each order in a message of its own.
func publishApart(t *testing.T, b *broker.Broker, es []queued.Entry) {
	t.Helper()
	for one := range slices.Chunk(es, 1) {
		publish(t, b, one)
	}
}

func fence(t *testing.T, b *broker.Broker, sale int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := b.Fence(ctx, sale); err != nil {
		t.Fatal(err)
	}
}

// channel is the test's own view of the broker.
func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return ch
}

// ready counts what a queue holds, when nobody consumes it.
func ready(t *testing.T, ch *amqp.Channel, queue string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

func TestOrdersComeInOrderOnceAndInBatches(t *testing.T) {
	b := open(t, backendtest.AMQP(t), 3)
	var all [4][]queued.Entry
	var wg sync.WaitGroup
	for sale := range all {
		all[sale] = orders(int64(sale)+1, 700)
		wg.Go(func() { // four callers publish at once
			for part := range slices.Chunk(all[sale], 150) {
				if err := b.Publish(t.Context(), part); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	bk := newBook()
	consume(t, b, 100, bk.settle, bk.settled)
	for sale := range all {
		fence(t, b, int64(sale)+1)
	}
	bk.mu.Lock()
	defer bk.mu.Unlock()
	for sale := range all {
		if got, want := ofSale(bk.seen, int64(sale)+1), ids(all[sale]); !slices.Equal(got, want) {
			t.Errorf("sale %d: got %d orders, want these %d in order", sale+1, len(got), len(want))
		}
	}
	if len(bk.retired) != 2800 || bk.largest >= 100+64 || bk.largest < 100 {
		t.Errorf("got %d retired, largest batch %d; want 2800, from 100 to less than a message more", len(bk.retired), bk.largest)
	}
	if d := bk.seen[0]; d.UID != "u0" || d.Quantity != 1 || d.Slots != "1" || d.Epoch != 1 || d.Entry != "1-0" || d.At != 1_700_000_000_000 {
		t.Errorf("an order changed on its way: %+v", d)
	}
}

func TestABatchThatCannotBeSettledIsHeldAndOthersGoOn(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 2)
	bk := newBook()
	var mu sync.Mutex // guards failed
	failed := 0
	settle := func(ctx context.Context, es []queued.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		if es[0].Sale == 2 && failed < 3 {
			failed++
			return errors.New("no MySQL")
		}
		return bk.settle(ctx, es)
	}
	held, other := orders(2, 5), orders(3, 5)
	publish(t, b, held)
	publish(t, b, other)
	consume(t, b, 100, settle, bk.settled)
	fence(t, b, 3)
	fence(t, b, 2)
	bk.mu.Lock()
	defer bk.mu.Unlock()
	if got := ofSale(bk.seen, 2); !slices.Equal(got, ids(held)) || failed != 3 {
		t.Errorf("held orders: got %v after %d failures, want %v after 3", got, failed, ids(held))
	}
	if got := ofSale(bk.seen, 3); !slices.Equal(got, ids(other)) {
		t.Errorf("the other partition: got %v, want %v", got, ids(other))
	}
}

func TestAFenceWaitsForWhatIsBeforeIt(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.Fence(ctx, 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a fence without a consumer: got %v, want its deadline", err)
	}
	inSettle, release := make(chan struct{}, 1), make(chan struct{})
	bk := newBook()
	publish(t, b, orders(4, 3))
	passed := make(chan error, 1)
	go func() { passed <- b.Fence(t.Context(), 4) }()
	ch := channel(t, url)
	eventually(t, "two fences and three orders are queued", func() bool { return ready(t, ch, broker.QueueName(0)) >= 5 })
	consume(t, b, 100, func(ctx context.Context, es []queued.Entry) error {
		if es[0].Sale == 4 {
			inSettle <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return bk.settle(ctx, es)
	}, bk.settled)
	<-inSettle
	fence(t, b, 5) // another partition's passes meanwhile
	select {
	case err := <-passed:
		t.Fatalf("the fence passed (%v) before the orders ahead of it were settled", err)
	default:
	}
	close(release)
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	bk.mu.Lock()
	defer bk.mu.Unlock()
	if len(bk.retired) != 3 {
		t.Errorf("when the fence passed %d orders were retired, want 3", len(bk.retired))
	}
}

// A fence that comes with a batch is answered after it.
func TestAFenceInABatchWaitsForTheBatch(t *testing.T) {
	b := open(t, backendtest.AMQP(t), 2)
	bk := newBook()
	last := orders(4, 3)
	inSettle, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.Consume(ctx, 100, time.Hour, broker.Handler{Settled: bk.settled, Settle: func(ctx context.Context, es []queued.Entry) error { // a batch ends with a fence
			if es[0].ID == last[0].ID {
				close(inSettle)
				<-release
			}
			return bk.settle(ctx, es)
		}})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	publish(t, b, orders(4, 1)) // then the consumer no longer takes one message at a time
	bk.until(t, "the first order", func() bool { return len(bk.retired) == 1 })
	publish(t, b, last)
	passed := make(chan error, 1)
	go func() { passed <- b.Fence(t.Context(), 4) }()
	<-inSettle
	fence(t, b, 5) // by the same channels, after an answer that came too early
	if n := b.WaitingFences(); n != 1 {
		t.Errorf("%d fences wait, want 1: it passed before the batch was settled", n)
	}
	close(release)
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	bk.mu.Lock()
	defer bk.mu.Unlock()
	if len(bk.retired) != 4 || bk.largest != 3 {
		t.Errorf("when the fence passed %d orders were retired, in batches of up to %d; want 4, 3", len(bk.retired), bk.largest)
	}
}

// Row A9: what a consumer has at hand is bounded, and the rest waits where it is; while there is nothing the consumer waits.
func TestAConsumerTakesNoMoreThanItMayHoldAndWaitsForMore(t *testing.T) {
	t.Attr("row", "A9")
	const batch = 10
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	bk := newBook()
	var mu sync.Mutex // guards what follows
	var calls int
	gate := make(chan struct{})
	close(gate)
	consume(t, b, batch, func(ctx context.Context, es []queued.Entry) error {
		mu.Lock()
		calls++
		open := gate
		mu.Unlock()
		if len(es) == 0 {
			t.Error("a consumer with nothing at hand does not wait")
		}
		select {
		case <-open:
		case <-ctx.Done():
			return ctx.Err()
		}
		return bk.settle(ctx, es)
	}, bk.settled)
	publish(t, b, orders(1, 1)) // then it no longer takes one at a time
	bk.until(t, "the first order", func() bool { return len(bk.retired) == 1 })
	mu.Lock()
	gate = make(chan struct{})
	mu.Unlock()
	publishApart(t, b, orders(1, 200))
	ch := channel(t, url)
	eventually(t, "it holds as much as it may", func() bool { return ready(t, ch, broker.QueueName(0)) <= 200-2*batch })
	publishApart(t, b, orders(1, 50))
	eventually(t, "the others are queued", func() bool { return ready(t, ch, broker.QueueName(0)) >= 250-2*batch })
	if n := ready(t, ch, broker.QueueName(0)); n != 250-2*batch {
		t.Errorf("%d wait in the queue, want %d: a consumer holds two batches at most", n, 250-2*batch)
	}
	close(gate)
	bk.until(t, "all of them", func() bool { return len(bk.retired) == 251 })
	fence(t, b, 1)
	mu.Lock()
	before := calls
	mu.Unlock()
	for range 3 { // it has nothing to do, and is woken by what comes
		fence(t, b, 1)
	}
	mu.Lock()
	if calls != before {
		t.Errorf("settle was called %d times with nothing to settle", calls-before)
	}
	mu.Unlock()
	publish(t, b, orders(1, 1))
	bk.until(t, "one that came later", func() bool { return len(bk.retired) == 252 })
}

func TestStoppingEndsAHoldAndPutsTheOrdersBack(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	publish(t, b, orders(1, 10))
	tried := make(chan struct{}, 1000)
	stop := consume(t, b, 100, func(context.Context, []queued.Entry) error {
		tried <- struct{}{}
		return errors.New("no MySQL")
	}, func(context.Context, []queued.Entry) { t.Error("settled was called") })
	<-tried
	stop()
	if t.Failed() {
		return // nothing would come back
	}
	bk := newBook()
	consume(t, b, 100, bk.settle, bk.settled)
	bk.until(t, "ten orders", func() bool { return len(bk.retired) == 10 })
}

func TestStoppingLetsASettleUnderWayFinish(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	bk := newBook()
	in, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	last := orders(1, 10)
	go func() {
		done <- b.Consume(ctx, 10, 5*time.Second, broker.Handler{Settled: bk.settled, Settle: func(ctx context.Context, es []queued.Entry) error {
			if es[0].ID == last[0].ID {
				close(in)
				<-release
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			return bk.settle(ctx, es)
		}})
	}()
	publish(t, b, orders(1, 10))
	fence(t, b, 1) // RabbitMQ 3.10 may lose the first acknowledgement of a queue that is quite new, if its channel closes right after
	publish(t, b, last)
	<-in
	cancel()
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(bk.retired) != 20 {
		t.Errorf("got %d orders settled and retired, want 20", len(bk.retired))
	}
	if n := ready(t, channel(t, url), broker.QueueName(0)); n != 0 {
		t.Errorf("%d orders went back to the queue, want none", n)
	}
}

func TestWhatIsNoOrderIsADeadLetter(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	publish(t, b, orders(1, 1))
	ch := channel(t, url)
	good := orders(1, 1)[0]
	bad := []string{"", "{", `{"id":"x"}`, `[]`, `{"id":"` + good.ID + `","sale":2,"uid":"a","quantity":1}`,
		`{"id":"` + good.ID + `","sale":1,"uid":"a b","quantity":1}`, `{"id":"` + good.ID + `","sale":1,"uid":"a","quantity":0}`}
	for _, body := range bad {
		if err := ch.PublishWithContext(t.Context(), broker.Exchange, "0", true, false, amqp.Publishing{Type: "order", Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	bk := newBook()
	consume(t, b, 100, bk.settle, bk.settled)
	dead, err := ch.Consume(broker.Dead, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for range bad {
		d := <-dead
		got = append(got, string(d.Body))
	}
	slices.Sort(got)
	slices.Sort(bad)
	if !slices.Equal(got, bad) {
		t.Errorf("dead letters: got %q, want %q", got, bad)
	}
	bk.until(t, "the good order", func() bool { return len(bk.retired) == 1 })
}

// A kept order is safe elsewhere: its message goes, but it is not settled.
func TestAKeptOrderIsAcknowledgedAndNotSettled(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	es := orders(1, 10)
	publish(t, b, es[:1])
	publish(t, b, es[1:])
	bk := newBook()
	stop := consume(t, b, 100, func(ctx context.Context, batch []queued.Entry) error {
		var good, kept []queued.Entry
		for _, e := range batch {
			switch e.ID {
			case es[0].ID, es[4].ID, es[9].ID: // the only one of its message; the last
				kept = append(kept, e)
			default:
				good = append(good, e)
			}
		}
		if err := bk.settle(ctx, good); err != nil || len(kept) == 0 {
			return err
		}
		return fmt.Errorf("settle: %w", &queued.KeptError{Entries: kept})
	}, bk.settled)
	fence(t, b, 1)
	stop()
	if want := slices.Concat(ids(es[1:4]), ids(es[5:9])); !slices.Equal(ids(bk.retired), want) {
		t.Errorf("retired: got %v, want %v", ids(bk.retired), want)
	}
	ch := channel(t, url)
	eventually(t, "nothing is left", func() bool {
		return ready(t, ch, broker.QueueName(0)) == 0 && ready(t, ch, broker.Dead) == 0
	})
}

// A message of several orders over which consumers die is postponed, for nobody knows which of its orders is the culprit. What was
// delivered beside it is settled.
func TestASuspiciousMessageOfSeveralOrdersIsPostponed(t *testing.T) {
	b := open(t, backendtest.AMQP(t), 1)
	suspects, others := orders(1, 10), orders(1, 10)
	publish(t, b, orders(1, 1)) // then the consumer no longer takes one message at a time
	publish(t, b, suspects)
	publish(t, b, others)
	bk := newBook()
	postponed := make(chan []queued.Entry, 100)
	for deaths := 0; len(postponed) == 0; deaths++ { // a consumer ends, with its connection, as soon as it is to settle the culprit
		if deaths > broker.DeliveryLimit/2 {
			t.Fatal("it is never postponed")
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := b.Consume(ctx, 50, 2*time.Millisecond, broker.Handler{
			Settle: func(sctx context.Context, es []queued.Entry) error {
				if slices.Contains(ids(es), suspects[5].ID) {
					cancel()
					return errors.New("killed")
				}
				return bk.settle(sctx, es)
			},
			Settled: bk.settled,
			Postpone: func(_ context.Context, es []queued.Entry) error {
				postponed <- es
				cancel()
				return &queued.KeptError{Entries: es}
			},
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := <-postponed; !slices.Equal(ids(got), ids(suspects)) {
		t.Errorf("postponed: got %v, want %v", ids(got), ids(suspects))
	}
	consume(t, b, 50, bk.settle, bk.settled)
	bk.until(t, "the others", func() bool { return len(bk.retired) == 11 })
	for _, e := range suspects {
		if slices.Contains(ids(bk.retired), e.ID) {
			t.Errorf("order %s was postponed and settled", e.ID)
		}
	}
}

// A message of a newer format waits for a newer consumer. What came before it is settled.
func TestANewerMessageIsLeftToANewerConsumer(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	publish(t, b, orders(1, 3))
	ch := channel(t, url)
	if err := ch.PublishWithContext(t.Context(), broker.Exchange, "0", true, false, amqp.Publishing{Type: "orders", Headers: amqp.Table{"format": int32(2)}, Body: []byte("?")}); err != nil {
		t.Fatal(err)
	}
	bk := newBook()
	stop := consume(t, b, 100, bk.settle, bk.settled)
	bk.until(t, "what came before", func() bool { return len(bk.retired) == 3 })
	eventually(t, "it is back in its queue, which has no consumer", func() bool {
		q, err := ch.QueueDeclarePassive(broker.QueueName(0), true, false, false, false, nil)
		return err == nil && q.Messages == 1 && q.Consumers == 0
	})
	stop()
	if n := ready(t, ch, broker.Dead); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

func TestAMessageWithoutAQueueIsNotPublished(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 1)
	publish(t, b, orders(1, 1))
	ch := channel(t, url)
	for _, q := range []string{broker.QueueName(0), broker.Unrouted} {
		if _, err := ch.QueueDelete(q, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Publish(t.Context(), orders(1, 3)); !errors.Is(err, broker.ErrUnconfirmed) || !strings.Contains(err.Error(), "returned") {
		t.Errorf("got %v, want %v, returned", err, broker.ErrUnconfirmed)
	}
}

func TestADeletedQueueIsMadeAnewAndWhatMissedItComesBack(t *testing.T) {
	url := backendtest.AMQP(t)
	b := open(t, url, 2)
	bk := newBook()
	publish(t, b, orders(1, 1))
	ch := channel(t, url)
	if _, err := ch.QueueDelete(broker.QueueName(1), false, false, false); err != nil {
		t.Fatal(err)
	}
	missed := orders(1, 20)
	publishApart(t, b, missed)
	if n := ready(t, ch, broker.Unrouted); n != 20 {
		t.Fatalf("%d unrouted, want 20", n)
	}
	consume(t, b, 100, bk.settle, bk.settled)
	bk.until(t, "the missed orders", func() bool { return len(bk.retired) == 20 })
	if got := ofSale(bk.seen, 1); !slices.Equal(got, ids(missed)) {
		t.Errorf("got %v, want %v", got, ids(missed))
	}
	// and while it is consumed
	if _, err := ch.QueueDelete(broker.QueueName(1), false, false, false); err != nil {
		t.Fatal(err)
	}
	publish(t, b, orders(1, 20))
	bk.until(t, "those after the second deletion", func() bool { return len(bk.retired) == 40 })
}

func TestTwoConsumersTakeTurns(t *testing.T) {
	url := backendtest.AMQP(t)
	one, two := open(t, url, 1), open(t, url, 1)
	var mu sync.Mutex // guards who and both
	who := map[int]int{}
	bk := newBook()
	settle := func(n int) func(context.Context, []queued.Entry) error {
		return func(ctx context.Context, es []queued.Entry) error {
			mu.Lock()
			who[n] += len(es)
			mu.Unlock()
			return bk.settle(ctx, es)
		}
	}
	stop := consume(t, one, 10, settle(1), bk.settled)
	publish(t, one, orders(1, 1))
	fence(t, one, 1) // the first has the partition
	consume(t, two, 10, settle(2), bk.settled)
	first := orders(1, 200)
	publish(t, two, first)
	fence(t, two, 1) // sent by the one, answered by the other
	mu.Lock()
	if who[1] != 201 || who[2] != 0 {
		t.Errorf("got %v, want 201 by the first", who)
	}
	mu.Unlock()
	stop()
	publish(t, one, orders(1, 50))
	fence(t, one, 1)
	mu.Lock()
	defer mu.Unlock()
	if who[1] != 201 || who[2] != 50 {
		t.Errorf("got %v, want 50 by the second after the first stopped", who)
	}
}

func TestQueuesTellsWhatIsThere(t *testing.T) {
	url := backendtest.AMQP(t)
	b := openWith(t, broker.Config{URL: url, Partitions: 2})
	publishApart(t, b, orders(3, 7))
	states, err := b.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []broker.QueueState{{broker.QueueName(0), 0, 0, -1, 0}, {broker.QueueName(1), 7, 7, -1, 0}, {broker.Unrouted, 0, 0, -1, 0}, {broker.Dead, 0, 0, -1, 0}}
	if !slices.Equal(states, want) {
		t.Errorf("got %+v, want %+v", states, want)
	}
	// With the management API, too, what is ready and who consumes is so now: its own numbers come seconds later.
	managed := open(t, url, 2)
	same := func(want []broker.QueueState) {
		t.Helper()
		states, err := managed.Queues(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if s := states[i]; s.Name != w.Name || s.Ready != w.Ready || s.Consumers != w.Consumers || s.Unacked < 0 || s.Depth != s.Ready+s.Unacked {
				t.Errorf("with the management API: got %+v, want %+v", s, w)
			}
		}
	}
	same(want)
	bk := newBook()
	consume(t, b, 10, bk.settle, bk.settled)
	fence(t, b, 2)
	fence(t, b, 3)
	want[0].Consumers, want[1].Consumers, want[1].Ready = 1, 1, 0
	same(want[:2])
}

package order

import (
	"context"
	"iter"
	"slices"
	"strings"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/shared/wire"
)

// notice says to processes with waiting clients where an order stands now.
type notice struct {
	id     string
	status wire.OrderStatus
}

// noticesOnce bounds one message: about 40 KB.
const noticesOnce = 500

// channel is the pub/sub channel to which every process with waiting clients subscribes.
func channel(s *reserve.Store) string { return s.Client().Prefix() + "settled" }

// notify publishes one message for each batch, with a line "id status" for each order. If it is lost, the clients wait
// half a second longer.
func (s *Store) notify(ctx context.Context, notices []notice) {
	for chunk := range slices.Chunk(notices, noticesOnce) {
		var text strings.Builder
		for _, n := range chunk {
			text.WriteString(n.id + " " + string(n.status) + "\n")
		}
		ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
		c := s.redis.Client()
		err := c.Do(ctx, c.B().Publish().Channel(channel(s.redis)).Message(text.String()).Build()).Error()
		cancel()
		if err != nil {
			s.metrics.unsent.Inc()
			s.log.Debug("order: publish the settled orders", "orders", len(chunk), "error", err)
		}
	}
}

// noticed reads the order ids of a message, and skips lines that are no notices.
func noticed(message string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(message) {
			if id, _, ok := strings.Cut(line, " "); ok && !yield(id) {
				return
			}
		}
	}
}

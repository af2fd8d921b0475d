// Package closing is what happens to a sale after its end: its unsold units go back to their SKU, and it leaves Redis.
package closing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/change"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
)

// page is how many sales are read at once.
const page = 100

// Config is what Sales works with. All of it is needed, but for what says otherwise.
type Config struct {
	DB    *sql.DB
	Redis *reserve.Store
	Clock *clock.Clock
	Audit *audit.Auditor
	Maker *change.Maker
	// Fence returns once the sale's queue is drained, broker.Broker.Fence: nil without a broker.
	Fence    func(ctx context.Context, sale int64) error
	Log      *slog.Logger
	Register prometheus.Registerer
}

// Sales closes sales.
type Sales struct {
	Config
	refused map[int64]time.Time // see ArchiveOver: when it looks at a sale again
	stuck   prometheus.Gauge
}

// New makes a Sales. It registers its metrics.
func New(c Config) *Sales {
	s := &Sales{Config: c, refused: map[int64]time.Time{}}
	s.stuck = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "backend_sales_unarchived", Help: "Sales that are over for longer than sales.archive_after, and that this process could not archive: the log says why, and so does `backend sale archive`.",
	})
	c.Register.MustRegister(s.stuck)
	return s
}

// ReturnUnsold gives the unsold units of closed sales back to their SKUs, and says how many sales it did that for. One pass over
// the live sales (at most sale.MaxLive): the timer calls it again and again, since orders of a closed sale may still be cancelled
// or expire.
//
// A sale's turn comes only when Redis is open, has the sale as closed, and has nothing in its outbox: then every order that will
// ever be is in MySQL, and what MySQL says is available stays so. MySQL is changed first; Redis follows by the intent's id. Any
// number of processes may do this at once.
func (s *Sales) ReturnUnsold(ctx context.Context) (n int, err error) {
	var errs []error
	for last := int64(0); ; {
		ids, err := sale.Unsold(ctx, s.DB, last, page)
		if err != nil {
			return n, errors.Join(append(errs, err)...)
		}
		for _, id := range ids {
			switch done, err := s.returnUnsold(ctx, id); {
			case err != nil:
				errs = append(errs, fmt.Errorf("return the unsold units of sale %d: %w", id, err))
			case done:
				n++
			}
		}
		if len(ids) < page || ctx.Err() != nil {
			break
		}
		last = ids[len(ids)-1]
	}
	return n, errors.Join(errs...)
}

func (s *Sales) returnUnsold(ctx context.Context, id int64) (bool, error) {
	if over, err := s.allSettled(ctx, id); err != nil || !over {
		return false, err
	}
	c, err := s.Maker.InTx(ctx, change.Timer, func(ctx context.Context, tx *sql.Tx) (change.Change, error) {
		before, err := sale.Lock(ctx, tx, id)
		if err != nil {
			return change.Change{}, err
		}
		c, err := sale.Return(ctx, tx, s.Maker.Now(), before)
		if err != nil {
			return change.Change{}, err
		}
		return s.Maker.OfSale(ctx, tx, "sale.return", c)
	})
	if err != nil || c.Nothing { // another process was here
		return false, err
	}
	s.Log.Info("unsold units are back at the SKU", "sale", id)
	s.Maker.Apply(ctx, c)
	return true, nil
}

// allSettled reports whether Redis has the sale as closed, and MySQL has every order of it.
func (s *Sales) allSettled(ctx context.Context, id int64) (bool, error) {
	// The state before the outbox: closed means that the outbox has seen its last order.
	states, err := s.Redis.States(ctx, []int64{id})
	if err != nil {
		return false, err
	}
	if st := states[0]; st.Gate != lua.GateOpen || !st.Closed {
		return false, nil
	}
	c := s.Redis.Client()
	queued, err := c.Do(ctx, c.B().Xlen().Key(s.Redis.OutboxKey(id)).Build()).AsInt64()
	if err != nil {
		return false, fmt.Errorf("outbox of sale %d: %w", id, err)
	}
	return queued == 0, nil
}

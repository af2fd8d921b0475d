package preflight

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/durability"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sale"
	"floodgate.internal/backend/store"
)

// System is what is looked at.
type System struct {
	Redis  *reserve.Store // nil: it is away
	DB     *sql.DB        // nil: it is away
	Broker *broker.Broker // nil with Queued: it is away
	Queued bool           // a broker carries the orders; else the outbox is the queue

	// Confirm: an order is accepted once the broker has confirmed it.
	Confirm bool
	// Replicas is how many replicas of Redis must have acknowledged an order before it is accepted.
	Replicas int
	// MaxLag is how long orders of a sale may have been queued until new ones are refused.
	MaxLag time.Duration
	// MaxConnections bounds the connections of the internal listener, MaxOpen those to MySQL.
	MaxConnections, MaxOpen int
	// Secrets names the fields with a development secret, and what else is for development alone.
	Secrets []string
	// Certificate is when the certificate of the internal listener expires; nil: it has none.
	Certificate func() (time.Time, error)
	// Now is the process's own clock: time.Now where it is nil.
	Now func() time.Time
}

var (
	errNoRedis  = errors.New("redis is away")
	errNoMySQL  = errors.New("mysql is away")
	errNoBroker = errors.New("rabbitmq is away")
)

// MaxSkew is how far the clocks of stores and processes may be apart. Redis's decides; the others stand in logs and rows.
const MaxSkew = 2 * time.Second

// Rows are the checks of the whole system.
func (s *System) Rows() []Row {
	return []Row{
		{"clocks", fmt.Sprintf("Redis, MySQL and this process within %v of each other", MaxSkew), "run NTP on every machine (timedatectl, chronyc tracking)", s.clocks},
		{"durability", "no setting of a store that takes something from what a 202 promises", "set what is named", s.durability},
		{"schema", "what this build needs", "run `backend migrate -config FILE`", s.schema},
		{"queues", "quorum queues", "delete a queue of another type while it is empty: it is declared anew", s.queues},
		{"lag", fmt.Sprintf("the oldest queued order of any sale is younger than %v, half of orders.max_lag", s.MaxLag/2),
			"`backend queue` says who holds it: are relay and consumer running, does MySQL keep up?", s.lag},
		{"dead_letters", "none", "`backend dead-letters list --open` has the reason of each; mend it, then replay them", s.deadLetters},
		{"secrets", "no development secret, and nothing else that is for development", "set secrets of your own, and take development: true out", s.secrets},
	}
}

func (s *System) clocks(ctx context.Context) (Result, error) {
	if s.Redis == nil || s.DB == nil {
		return Result{}, errors.Join(missing(s.Redis == nil, errNoRedis), missing(s.DB == nil, errNoMySQL))
	}
	now := s.Now
	if now == nil {
		now = time.Now
	}
	// apart is how far a clock is from this process's, and half of the round trip, by which that may be wrong.
	apart := func(ask func() (time.Time, error)) (time.Duration, time.Duration, error) {
		asked := now()
		at, err := ask()
		trip := now().Sub(asked)
		return at.Sub(asked.Add(trip / 2)), trip / 2, err
	}
	redis, redisTrip, err := apart(func() (time.Time, error) { return s.Redis.Client().Now(ctx) })
	if err != nil {
		return Result{}, fmt.Errorf("redis: %w", err)
	}
	mysql, mysqlTrip, err := apart(func() (at time.Time, err error) {
		var text string
		if err = s.DB.QueryRowContext(ctx, `SELECT CAST(UTC_TIMESTAMP(3) AS CHAR)`).Scan(&text); err != nil {
			return at, fmt.Errorf("mysql: %w", err)
		}
		return time.Parse("2006-01-02 15:04:05.999", text)
	})
	if err != nil {
		return Result{}, err
	}
	worst := max(redis.Abs()-redisTrip, mysql.Abs()-mysqlTrip, (redis-mysql).Abs()-redisTrip-mysqlTrip)
	return Result{Value: fmt.Sprintf("Redis %s, MySQL %s from this process", ahead(redis), ahead(mysql)), OK: worst <= MaxSkew}, nil
}

func ahead(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%v behind", -d.Round(time.Millisecond))
	}
	return fmt.Sprintf("%v ahead", d.Round(time.Millisecond))
}

func missing(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

func (s *System) durability(ctx context.Context) (Result, error) {
	if err := errors.Join(missing(s.Redis == nil, errNoRedis), missing(s.DB == nil, errNoMySQL), missing(s.Queued && s.Broker == nil, errNoBroker)); err != nil {
		return Result{}, err
	}
	r := durability.Read(ctx, durability.Stores{Redis: s.Redis.Client(), DB: s.DB, Broker: s.Broker, Confirm: s.Confirm, Replicas: s.Replicas})
	return Result{Value: "with accept.after: " + r.AcceptAfter + ", a 202 survives " + r.Survives, OK: !r.Weak, Do: r.Advice()}, nil
}

func (s *System) schema(ctx context.Context) (Result, error) {
	if s.DB == nil {
		return Result{}, errNoMySQL
	}
	version, err := store.Migrated(ctx, s.DB)
	if err != nil {
		return Result{}, err
	}
	r := Result{Value: fmt.Sprintf("version %d", version), Want: fmt.Sprintf("at least version %d, which this build needs", store.Version()), OK: version >= store.Version()}
	return r, nil
}

func (s *System) queues(ctx context.Context) (Result, error) {
	if !s.Queued {
		return Result{Value: "none: the outbox is the queue (queue.driver: redis-stream)", OK: true}, nil
	}
	if s.Broker == nil {
		return Result{}, errNoBroker
	}
	if err := s.Broker.Healthy(); errors.Is(err, broker.ErrBlocked) {
		return Result{Value: err.Error(), Do: "give RabbitMQ memory or disk"}, nil
	}
	kinds, err := s.Broker.Kinds(ctx)
	if err != nil {
		return Result{}, err
	}
	var odd []string
	least := 0
	for i, k := range kinds {
		if k.Type != "quorum" {
			odd = append(odd, k.Name+" is "+k.Type)
		}
		if i == 0 || k.Members < least {
			least = k.Members
		}
	}
	if len(odd) > 0 {
		return Result{Value: list(odd)}, nil
	}
	members := "members not known: queue.management_url is not set, or does not answer"
	if least > 0 {
		members = count(least, "member each", "members each")
	}
	return Result{Value: count(len(kinds), "quorum queue, ", "quorum queues, ") + members, OK: true}, nil
}

func (s *System) lag(ctx context.Context) (Result, error) {
	if err := errors.Join(missing(s.Redis == nil, errNoRedis), missing(s.DB == nil, errNoMySQL)); err != nil {
		return Result{}, err
	}
	ids, err := sale.Live(ctx, s.DB)
	if err != nil {
		return Result{}, err
	}
	now, err := s.Redis.Client().Now(ctx)
	if err != nil {
		return Result{}, err
	}
	all, err := s.Redis.Backlogs(ctx, ids)
	if err != nil {
		return Result{}, err
	}
	var depth int64
	var oldest time.Duration
	for _, b := range all {
		depth += b.Depth
		if b.Oldest > 0 {
			oldest = max(oldest, now.Sub(time.UnixMilli(b.Oldest)))
		}
	}
	if depth == 0 {
		return Result{Value: "nothing is queued", OK: true}, nil
	}
	return Result{Value: fmt.Sprintf("%d orders are queued, the oldest for %v", depth, oldest.Round(time.Millisecond)), OK: oldest < s.MaxLag/2}, nil
}

func (s *System) deadLetters(ctx context.Context) (Result, error) {
	if err := errors.Join(missing(s.DB == nil, errNoMySQL), missing(s.Queued && s.Broker == nil, errNoBroker)); err != nil {
		return Result{}, err
	}
	var open int64
	if err := s.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM dead_letters WHERE replayed_at IS NULL`).Scan(&open); err != nil {
		return Result{}, fmt.Errorf("dead letters: %w", err)
	}
	if s.Broker != nil {
		states, err := s.Broker.Queues(ctx)
		if err != nil {
			return Result{}, err
		}
		for _, q := range states {
			if q.Name == broker.Dead || q.Name == broker.Unrouted {
				open += q.Ready
			}
		}
	}
	return Result{Value: fmt.Sprint(open), OK: open == 0}, nil
}

func (s *System) secrets(context.Context) (Result, error) {
	if len(s.Secrets) == 0 {
		return Result{Value: "none", OK: true}, nil
	}
	return Result{Value: strings.Join(s.Secrets, ", ")}, nil
}

// filesBeside is the files that a backend has open besides its connections to gateways and MySQL: listeners, Redis, RabbitMQ, the
// log, operators.
const filesBeside = 128

// MoreFiles is what to do where Descriptors are not enough.
const MoreFiles = "raise the limit (LimitNOFILE=, ulimit -Hn), or lower api.max_connections"

// Descriptors compares a limit on a backend's open files with what its bounds may need.
func (s *System) Descriptors(limit int64) Result {
	need := int64(s.MaxConnections + s.MaxOpen + filesBeside)
	return Result{Value: fmt.Sprintf("the backend may open %d files", limit), OK: limit >= need,
		Want: fmt.Sprintf("at least %d: api.max_connections %d, mysql.max_open %d, and %d besides", need, s.MaxConnections, s.MaxOpen, filesBeside)}
}

// openFiles is the limit on this process's open files.
func openFiles() (int64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit on open files: %w", err)
	}
	return int64(min(l.Cur, 1<<62)), nil
}

package oracle

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Order is an order in MySQL.
type Order struct {
	ID, UID, Status, Reason, Key string
	Quantity                     int64
}

// View is what Redis and MySQL say of one sale, asked by nothing of Floodgate's.
type View struct {
	Stock, Total, Reserved int64 // units, in Redis
	Gate                   string
	Reservations           map[string]string // order -> uid
	Outbox                 []string          // order ids
	Row                    Row               // MySQL's stock row
	Orders                 map[string]Order
	Slots                  map[string][]int // order -> slots
	Claims                 map[string]int64 // order -> coupons
	Ledger                 []string         // what is wrong with it
	OpenIntents            int
}

// Row is a stock row.
type Row struct{ Total, Available, Locked, Sold int64 }

// Books are the two stores.
type Books struct {
	DB     *sql.DB
	Redis  rueidis.Client
	Prefix string // of Redis's keys
}

func (b Books) key(sale int64, name string) string {
	return b.Prefix + "{sale:" + strconv.FormatInt(sale, 10) + "}:" + name
}

// Look reads Redis in one moment and MySQL in one moment.
func (b Books) Look(ctx context.Context, sale int64) (o View, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := b.lookRedis(ctx, sale, &o); err != nil {
		return o, fmt.Errorf("redis: %w", err)
	}
	tx, err := b.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return o, err
	}
	defer tx.Rollback()
	if err := lookMySQL(ctx, tx, sale, &o); err != nil {
		return o, fmt.Errorf("mysql: %w", err)
	}
	return o, tx.Commit()
}

// Gate is a sale's gate in Redis.
type Gate struct {
	Open  bool
	Token int64 // of the reconciler that was there last
}

// Gate reads a sale's gate.
func (b Books) Gate(ctx context.Context, sale int64) (g Gate, err error) {
	m, err := b.Redis.Do(ctx, b.Redis.B().Hgetall().Key(b.key(sale, "state")).Build()).AsStrMap()
	if err != nil {
		return g, fmt.Errorf("the gate of sale %d: %w", sale, err)
	}
	g.Open = m["gate"] == "open"
	g.Token, err = strconv.ParseInt(m["token"], 10, 64)
	return g, err
}

func (b Books) lookRedis(ctx context.Context, sale int64, o *View) error {
	cmd := b.Redis.B()
	var state, held, entries rueidis.RedisMessage
	err := b.Redis.Dedicated(func(c rueidis.DedicatedClient) error {
		for _, r := range c.DoMulti(ctx, cmd.Multi().Build(), cmd.Hgetall().Key(b.key(sale, "state")).Build(), cmd.Hgetall().Key(b.key(sale, "orders")).Build(),
			cmd.Xrange().Key(b.key(sale, "outbox")).Start("-").End("+").Build(), cmd.Exec().Build()) {
			if err := r.Error(); err != nil {
				return err
			}
			if m, err := r.ToMessage(); err == nil && m.IsArray() {
				list, err := m.ToArray()
				if err != nil {
					return err
				}
				if len(list) == 3 {
					state, held, entries = list[0], list[1], list[2]
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s, err := state.AsStrMap()
	if err != nil {
		return err
	}
	o.Gate = s["gate"]
	o.Stock, _ = strconv.ParseInt(s["stock"], 10, 64)
	o.Total, _ = strconv.ParseInt(s["total"], 10, 64)
	orders, err := held.AsStrMap()
	if err != nil {
		return err
	}
	o.Reservations = map[string]string{}
	for id, v := range orders {
		f := strings.Fields(v)
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return fmt.Errorf("reservation %s: %q", id, v)
		}
		o.Reserved += n
		o.Reservations[id] = f[0]
	}
	list, err := entries.AsXRange()
	if err != nil {
		return err
	}
	for _, e := range list {
		o.Outbox = append(o.Outbox, e.FieldValues["id"])
	}
	return nil
}

func lookMySQL(ctx context.Context, tx *sql.Tx, sale int64, o *View) error {
	if err := tx.QueryRowContext(ctx, "SELECT total, available, locked, sold FROM sale_stock WHERE sale_id = ?", sale).
		Scan(&o.Row.Total, &o.Row.Available, &o.Row.Locked, &o.Row.Sold); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM intents WHERE sale_id = ? AND done_at IS NULL", sale).Scan(&o.OpenIntents); err != nil {
		return err
	}
	o.Orders, o.Slots, o.Claims = map[string]Order{}, map[string][]int{}, map[string]int64{}
	err := each(ctx, tx, "SELECT id, uid, status, reason, quantity, COALESCE(idem_key, '') FROM orders WHERE sale_id = ?", sale, func(r *sql.Rows) error {
		var x Order
		err := r.Scan(&x.ID, &x.UID, &x.Status, &x.Reason, &x.Quantity, &x.Key)
		o.Orders[x.ID] = x
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, tx, "SELECT order_id, slot FROM order_slots WHERE sale_id = ?", sale, func(r *sql.Rows) error {
		var id string
		var slot int
		err := r.Scan(&id, &slot)
		o.Slots[id] = append(o.Slots[id], slot)
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, tx, "SELECT order_id, COUNT(*) FROM coupon_claims WHERE sale_id = ? GROUP BY order_id", sale, func(r *sql.Rows) error {
		var id string
		var n int64
		err := r.Scan(&id, &n)
		o.Claims[id] = n
		return err
	})
	if err != nil {
		return err
	}
	var available, locked int64
	err = each(ctx, tx, `SELECT id, available_before, available_change, available_after, locked_before, locked_change, locked_after FROM ledger
		WHERE sale_id = ? ORDER BY id`, sale, func(r *sql.Rows) error {
		var id, ab, ac, aa, lb, lc, la int64
		if err := r.Scan(&id, &ab, &ac, &aa, &lb, &lc, &la); err != nil {
			return err
		}
		if ab != available || lb != locked || ab+ac != aa || lb+lc != la {
			o.Ledger = append(o.Ledger, fmt.Sprintf("ledger row %d says available %d%+d=%d, locked %d%+d=%d; the rows before end at %d and %d",
				id, ab, ac, aa, lb, lc, la, available, locked))
		}
		available, locked = aa, la
		return nil
	})
	if err == nil && (available != o.Row.Available || locked != o.Row.Locked) {
		o.Ledger = append(o.Ledger, fmt.Sprintf("the ledger ends at available %d, locked %d; the stock row has %d and %d", available, locked, o.Row.Available, o.Row.Locked))
	}
	return err
}

func each(ctx context.Context, tx *sql.Tx, query string, sale int64, f func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query, sale)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

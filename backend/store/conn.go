package store

import (
	"context"
	"database/sql/driver"
)

// connector gives connections that leave the pool when a transaction on them did not end as it should. The driver keeps such a
// connection, with the transaction open in it: seen on a Galera node that had lost the others, which refuses ROLLBACK, too.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	x, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{full: x.(full)}, nil
}

// full is all that the driver's connections can.
type full interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type conn struct {
	full
	stuck bool // in a transaction that did not end
}

func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.full.BeginTx(ctx, o)
	if err != nil {
		c.stuck = true
		if number(err, inTransaction) {
			err = driver.ErrBadConn // nothing was done: the pool begins on another
		}
		return nil, err
	}
	return transaction{tx, c}, nil
}

// inTransaction is the error of SET TRANSACTION within one.
const inTransaction = 1568

// IsValid is asked when the connection comes back to the pool.
func (c *conn) IsValid() bool { return !c.stuck && c.full.IsValid() }

type transaction struct {
	driver.Tx
	on *conn
}

func (t transaction) Commit() error   { return t.ended(t.Tx.Commit()) }
func (t transaction) Rollback() error { return t.ended(t.Tx.Rollback()) }

func (t transaction) ended(err error) error {
	t.on.stuck = t.on.stuck || err != nil
	return err
}

package store

import (
	"context"
	"database/sql"
	"errors"
)

// Queryer is a *sql.DB or a *sql.Tx, of which rows are read.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Querier is a *sql.DB or a *sql.Tx.
type Querier interface {
	Queryer
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Each runs a query and gives every row to scan.
func Each(ctx context.Context, q Queryer, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// Column runs a query of one column and returns its values; nil where there are none.
func Column[T any](ctx context.Context, q Queryer, query string, args ...any) (list []T, err error) {
	err = Each(ctx, q, func(rows *sql.Rows) error {
		var v T
		err := rows.Scan(&v)
		list = append(list, v)
		return err
	}, query, args...)
	return list, err
}

// Changed is how many rows a statement changed: Changed(tx.ExecContext(...)).
func Changed(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

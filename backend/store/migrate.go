package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings the schema up to date and says how many steps it took. Any number may run at once: a lock in the
// database lets one through at a time. One that died half way is gone on with: MySQL has no transaction around what
// changes a schema, so each migration notes how far it is.
func Migrate(ctx context.Context, db *sql.DB) (steps int, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var all []*goose.Migration
	for _, file := range files {
		text, err := migrations.ReadFile(file)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		m := migration{versionOf(file), statements(string(text))}
		all = append(all, goose.NewGoMigration(m.version, &goose.GoFunc{RunTx: m.run}, nil))
	}
	p, err := goose.NewProvider(goose.DialectMySQL, db, nil, goose.WithGoMigrations(all...), goose.WithSessionLocker(migrationLock{}))
	if err != nil {
		return 0, fmt.Errorf("migrations: %w", err)
	}
	// Up looks whether anything is to be done before it takes the lock, and makes the version table for that. Asking for
	// the version makes the table under the lock.
	if _, err := p.GetDBVersion(ctx); err != nil {
		return 0, fmt.Errorf("migrate: %w", err)
	}
	done, err := p.Up(ctx)
	if err != nil {
		return len(done), fmt.Errorf("migrate: %w", err)
	}
	return len(done), nil
}

// statements are the statements of a file, down to "-- +goose Down". Each ends with a semicolon at the end of its line's
// code; comments are left out.
func statements(text string) (list []string) {
	var b strings.Builder
	text, _, _ = strings.Cut(text, "-- +goose Down")
	for line := range strings.Lines(text) {
		code, _, _ := strings.Cut(line, "--")
		if code = strings.TrimSpace(code); code == "" {
			continue
		}
		b.WriteString(code + "\n")
		if strings.HasSuffix(code, ";") {
			list = append(list, strings.TrimSuffix(b.String(), ";\n"))
			b.Reset()
		}
	}
	if b.Len() > 0 {
		panic("BUG: a migration ends without a semicolon: " + b.String())
	}
	return list
}

// migration is one file.
type migration struct {
	version    int64
	statements []string
}

// run runs the statements, or those that are left of an attempt that died. migration_progress says which one was begun
// last: what it makes may be there.
func (m migration) run(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS migration_progress (version BIGINT NOT NULL PRIMARY KEY, begun INT NOT NULL)`); err != nil {
		return fmt.Errorf("migration %d: %w", m.version, err)
	}
	begun := -1
	err := tx.QueryRowContext(ctx, `SELECT begun FROM migration_progress WHERE version = ?`, m.version).Scan(&begun)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = tx.ExecContext(ctx, `INSERT INTO migration_progress (version, begun) VALUES (?, ?)`, m.version, begun)
	}
	if err != nil {
		return fmt.Errorf("progress of migration %d: %w", m.version, err)
	}
	for i := max(begun, 0); i < len(m.statements); i++ {
		if i > begun {
			if _, err := tx.ExecContext(ctx, `UPDATE migration_progress SET begun = ? WHERE version = ?`, i, m.version); err != nil {
				return fmt.Errorf("progress of migration %d: %w", m.version, err)
			}
		}
		if _, err := tx.ExecContext(ctx, m.statements[i]); err != nil && !(i == begun && made(err)) {
			return fmt.Errorf("migration %d, statement %d: %w", m.version, i+1, err)
		}
	}
	return nil
}

// made reports whether err says that what was to be made is there: a table, a column, an index.
func made(err error) bool { return number(err, 1050, 1060, 1061) }

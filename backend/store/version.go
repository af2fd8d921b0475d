package store

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Version is the newest schema version that this binary knows.
func Version() int64 {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var newest int64
	for _, name := range files {
		newest = max(newest, versionOf(name))
	}
	return newest
}

// versionOf is the number at the head of a migration's file name.
func versionOf(file string) int64 {
	number, _, _ := strings.Cut(strings.TrimPrefix(file, "migrations/"), "_")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic("BUG: migration " + file + ": " + err.Error())
	}
	return n
}

// Migrated returns the schema version that the database has; 0 where nothing was ever migrated. It changes nothing.
func Migrated(ctx context.Context, db *sql.DB) (version int64, err error) {
	err = db.QueryRowContext(ctx, `SELECT COALESCE(MAX(version_id), 0) FROM goose_db_version`).Scan(&version)
	if number(err, 1146) { // there is no such table
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, nil
}

package standin

import (
	"github.com/dolthub/go-mysql-server/memory"
	"github.com/dolthub/go-mysql-server/sql"
)

// The in-memory engine's secondary indexes hold the positions of rows, and a ROLLBACK (of a transaction, or of one failed
// statement) leaves the positions that the undone changes moved: from then on a lookup by such an index finds other rows,
// or none. So the query planner is shown databases whose tables have no indexes: every query scans. Unique keys are kept
// by the engine's table editors, which scan anyway.

// provider shows databases without indexes.
type provider struct{ *memory.DbProvider }

func (p provider) Database(ctx *sql.Context, name string) (sql.Database, error) {
	db, err := p.DbProvider.Database(ctx, name)
	return hideIndexes(db), err
}

func (p provider) AllDatabases(ctx *sql.Context) []sql.Database {
	all := p.DbProvider.AllDatabases(ctx)
	for i, db := range all {
		all[i] = hideIndexes(db)
	}
	return all
}

func hideIndexes(db sql.Database) sql.Database {
	if m, ok := db.(*memory.Database); ok {
		return schema{m}
	}
	return db
}

type schema struct{ *memory.Database }

func (s schema) GetTableInsensitive(ctx *sql.Context, name string) (sql.Table, bool, error) {
	t, ok, err := s.Database.GetTableInsensitive(ctx, name)
	if m, is := t.(*memory.Table); is {
		t = table{m}
	}
	return t, ok, err
}

type table struct{ *memory.Table }

func (t table) GetIndexes(*sql.Context) ([]sql.Index, error) { return nil, nil }

func (t table) WithProjections(columns []string) sql.Table {
	return table{t.Table.WithProjections(columns).(*memory.Table)}
}

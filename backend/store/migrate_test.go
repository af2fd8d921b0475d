package store

import "testing"

func TestStatementsOfEveryMigration(t *testing.T) {
	got := statements("-- +goose Up\n\n-- One; two.\nCREATE TABLE a (\n  x INT, -- a thing; or two\n  y INT\n);\nDROP TABLE b; -- gone\n\n-- +goose Down\nDROP TABLE a;\n")
	want := []string{"CREATE TABLE a (\nx INT,\ny INT\n)", "DROP TABLE b"}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %q, want %q", got, want)
	}
}

package store

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

func TestOpenRefusesADSNThatNamesNoDatabase(t *testing.T) {
	for _, dsn := range []string{"", "root@tcp(127.0.0.1:3306)/", "nonsense", "root@tcp(127.0.0.1:3306"} {
		if db, err := Open(dsn, 1); err == nil || !strings.HasPrefix(err.Error(), "mysql.dsn: ") {
			t.Errorf("%q: got %v, %v; want an error that names mysql.dsn", dsn, db, err)
		}
	}
}

func TestWhatAnErrorMeans(t *testing.T) {
	server := func(number uint16, state string) error {
		e := &mysql.MySQLError{Number: number, Message: "said so"}
		copy(e.SQLState[:], state)
		return fmt.Errorf("insert: %w", e)
	}
	for _, c := range []struct {
		err                                  error
		retryable, duplicate, check, refused bool
	}{
		{err: nil},
		{err: errors.New("1213")},
		{err: driver.ErrBadConn},
		{err: mysql.ErrInvalidConn},
		{err: server(1213, "40001"), retryable: true},
		{err: server(1205, "HY000"), retryable: true},
		{err: server(1020, "HY000"), retryable: true},
		{err: server(1062, "23000"), duplicate: true, refused: true},
		{err: server(3819, "HY000"), check: true, refused: true},
		{err: server(4025, "23000"), check: true, refused: true},
		{err: server(1105, "HY000"), check: true, refused: true},
		{err: server(1406, "22001"), refused: true},
		{err: server(1366, "HY000"), refused: true},
		{err: server(1040, "08004")},
		{err: server(1053, "08S01")},
		{err: server(1290, "HY000")},
		{err: server(1114, "HY000")},
		{err: server(1146, "42S02")},
	} {
		if got := Retryable(c.err); got != c.retryable {
			t.Errorf("Retryable(%v): got %v", c.err, got)
		}
		if got := Duplicate(c.err); got != c.duplicate {
			t.Errorf("Duplicate(%v): got %v", c.err, got)
		}
		if got := CheckViolated(c.err); got != c.check {
			t.Errorf("CheckViolated(%v): got %v", c.err, got)
		}
		if got := Refused(c.err); got != c.refused {
			t.Errorf("Refused(%v): got %v", c.err, got)
		}
	}
}

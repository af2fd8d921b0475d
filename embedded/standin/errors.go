package standin

import (
	"errors"
	"strings"

	"github.com/dolthub/vitess/go/mysql"
)

// named gives an error of the engine the number and the SQLSTATE that MySQL gives it: the backend goes by them.
func named(err error) error {
	var e *mysql.SQLError
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Num == mysql.ERDupEntry:
		e.State = mysql.SSDupKey
	case e.Num == mysql.ERUnknownError && strings.HasPrefix(e.Message, "Check constraint "):
		e.Num = 3819 // ER_CHECK_CONSTRAINT_VIOLATED
	}
	return e
}

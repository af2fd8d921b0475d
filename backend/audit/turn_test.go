package audit

import (
	"context"
	"errors"
	"testing"
)

func TestOneSaleIsAuditedAtATime(t *testing.T) {
	a := New(Config{})
	a.turn <- struct{}{} // by another
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Sale(ctx, 1); !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that another sale is being audited", err)
	}
	if len(a.turn) != 1 {
		t.Error("it took the other's turn")
	}
}

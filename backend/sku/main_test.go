//go:build servers

package sku

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main of the processes of TestHerdLoadsOnce.
func TestMain(m *testing.M) {
	if os.Getenv("FLOODGATE_HERD") != "" {
		os.Exit(herdProcess())
	}
	goleak.VerifyTestMain(m)
}

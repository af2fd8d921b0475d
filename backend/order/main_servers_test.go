//go:build servers

package order

import (
	"fmt"
	"os"
	"testing"
)

// TestMain makes this binary a racer or a claimant where the environment says so: a process of its own, with connections of
// its own.
func TestMain(m *testing.M) {
	var err error
	if role := os.Getenv(racerRole); role != "" {
		err = race(role, os.Stdin, os.Stdout)
	} else if plan := os.Getenv(claimantPlan); plan != "" {
		err = claimAll(plan)
	} else {
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

//go:build servers

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Whatever the gateway and the backend do in these tests they do without a data race: the tests run once more, in a process of their
// own, on binaries that are built with the race detector. It writes what it finds to a binary's log, which world.end reads.
func TestTheBinariesHaveNoDataRace(t *testing.T) {
	t.Parallel()
	for name, tests := range map[string][]string{
		"story":  {"TestStory"},
		"others": {"TestCartStory", "TestCouponStory", "TestStandbyStory", "TestWhyDidntIGetOne", "TestReplenishingWhileItSells", "TestKilledInTheMiddle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=10m", "-test.run=^("+strings.Join(tests, "|")+")$")
			cmd.Env = append(os.Environ(), "FLOODGATE_RACE=1")
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
			cmd.WaitDelay = 30 * time.Second
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, test := range tests {
				if !strings.Contains(string(out), "--- PASS: "+test+" (") {
					t.Errorf("%s did not run:\n%s", test, out)
				}
			}
		})
	}
}

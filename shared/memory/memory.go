// Package memory keeps a process's heap within the memory that its control group allows.
package memory

import (
	"log/slog"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Limit sets Go's soft memory limit to 90 % of the control group's limit, so that the collector works harder before the system
// ends the process. It does nothing where GOMEMLIMIT is set, or the group has no limit. A limit that cannot be read is only
// logged.
func Limit(log *slog.Logger) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Warn("the control group's memory limit cannot be read: Go's heap has none", "error", err)
	} else if limit < math.MaxInt64 {
		log.Debug("Go's memory limit", "bytes", limit)
	}
}

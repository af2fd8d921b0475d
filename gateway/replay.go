package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/replay"
	"floodgate.internal/shared/cli"
)

// replayLog runs an access log against the limits of c, and prints who would have been refused.
func replayLog(c Config, path string, asJSON bool, stdout io.Writer) error {
	log := os.Stdin
	if path != "-" {
		var err error
		if log, err = os.Open(path); err != nil {
			return cli.Usage("--replay: %w", err)
		}
		defer log.Close()
	}
	report, err := replay.Run(log, limitsOf(edge.Settings{}, LimitsConfig{}, c, time.Now()))
	if err != nil {
		return cli.Usage("--replay %s: %w", path, err)
	}
	if !asJSON {
		return report.Write(stdout)
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err = stdout.Write(append(b, '\n'))
	return err
}

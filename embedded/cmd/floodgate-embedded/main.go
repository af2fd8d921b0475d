// Command floodgate-embedded runs the whole system in one process, without servers: see package embedded.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"floodgate.internal/shared/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "floodgate-embedded:", err)
	}
	os.Exit(cli.ExitCode(err))
}

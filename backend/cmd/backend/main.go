// Command backend is Floodgate's backend; see package backend.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"floodgate.internal/backend"
	"floodgate.internal/shared/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := backend.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "backend:", err)
	}
	os.Exit(cli.ExitCode(err))
}

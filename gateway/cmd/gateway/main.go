// Command gateway is the edge of a flash sale.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"floodgate.internal/gateway"
	"floodgate.internal/shared/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, or server.shutdown_delay while it lasts
	err := gateway.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
	}
	os.Exit(cli.ExitCode(err))
}

package gateway

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// delayShutdown goes on for server.shutdown_delay after told has ended, not ready any more, so that balancers find out while
// connections are still taken. SIGINT and SIGTERM end the delay.
func (r *process) delayShutdown(told context.Context) {
	delay := r.current.Load().Server.ShutdownDelay
	if told.Err() == nil || delay == 0 { // it ends because of an error, or at once
		return
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(again)
	r.leaving.Store(true)
	r.log.Info("not ready any more, still accepting", "for", delay)
	select {
	case <-again:
		r.log.Info("a second signal: the delay is over")
	case <-time.After(delay):
	}
}

package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
)

// Rebuild is the command "rebuild".
type Rebuild struct {
	Sale int64 `help:"The sale to write anew." placeholder:"ID" xor:"which" required:""`
	SKU  int64 `help:"The SKU to write anew." name:"sku" placeholder:"ID" xor:"which" required:""`
	File
	Output
}

// Help implements kong's HelpProvider.
func (Rebuild) Help() string {
	return `Closes the sale for a moment, writes Redis from MySQL's orders and from what is still queued, opens it, and audits it. Safe
at any time, also on a live sale, and any number of times. With RabbitMQ a consumer must run: what is queued has to reach
MySQL first. While Redis itself was restarted or emptied, the backend does this by itself for every sale.

A SKU is written from MySQL alone, with the units that carts have locked and bought; carts that are just being decided lock
their units anew.

Examples:
  backend rebuild -config configs/backend.yaml --sale 7
  backend rebuild -config configs/backend.yaml --sku 3`
}

// Run implements the command.
func (c *Rebuild) Run(ctx context.Context, env *Env) (err error) {
	conf, err := env.Config(c.Config)
	if err != nil {
		return err
	}
	db, redis, done, err := conf.stores(ctx)
	if err != nil {
		return err
	}
	defer done()
	registry := prometheus.NewRegistry() // nobody reads it: the command is over soon
	if c.SKU != 0 {
		auditor := audit.New(audit.Config{DB: db, Redis: redis, QueuedBound: conf.QueuedBound, Abandoned: conf.Abandoned})
		if _, err := auditor.SKU(ctx, c.SKU); errors.Is(err, audit.ErrUnknownSKU) {
			return err
		}
		if err := sku.NewCache(db, redis, conf.Log, registry).Rebuild(ctx, c.SKU); errors.Is(err, sku.ErrUnknown) {
			return fmt.Errorf("rebuild: SKU %d was made for one sale: carts cannot hold it, so Redis has nothing of it; rebuild its sale", c.SKU)
		} else if err != nil {
			return fmt.Errorf("rebuild: %w", err)
		}
		_, err = (&Audit{SKU: c.SKU, Output: c.Output}).once(ctx, env, auditor, nil)
		return err
	}
	var fence reconcile.Fence // nil interfaces without a broker
	var queues audit.Queues
	if conf.Broker != nil {
		b, err := broker.Open(*conf.Broker, conf.Log, registry)
		if err != nil {
			return fmt.Errorf("rebuild sale %d: %w", c.Sale, err)
		}
		defer func() { _ = b.Close() }() // the fence has been answered
		fence, queues = b, b
	}
	auditor := audit.New(audit.Config{DB: db, Redis: redis, Broker: queues, QueuedBound: conf.QueuedBound})
	if _, err := auditor.Sale(ctx, c.Sale); errors.Is(err, audit.ErrUnknownSale) {
		return err
	}
	if err := reconcile.New(reconcile.Config{DB: db, Redis: redis, Fence: fence, Log: conf.Log, Register: registry}).Sale(ctx, c.Sale); err != nil {
		return fmt.Errorf("rebuild sale %d: %w", c.Sale, err)
	}
	_, err = (&Audit{Sale: c.Sale, Output: c.Output}).once(ctx, env, auditor, nil)
	return err
}

// Migrate is the command "migrate".
type Migrate struct{ File }

// Help implements kong's HelpProvider.
func (Migrate) Help() string {
	return `Any number may run at once; run again, it does nothing.

Example:
  backend migrate -config configs/backend.yaml`
}

// Run implements the command.
func (c *Migrate) Run(ctx context.Context, env *Env) error {
	conf, err := env.Config(c.Config)
	if err != nil {
		return err
	}
	db, err := store.OpenToMigrate(conf.MySQL)
	if err != nil {
		return err
	}
	if err := answers(ctx, db); err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // every statement's error was seen
	steps, err := store.Migrate(ctx, db)
	if err != nil {
		return err
	}
	if steps == 0 {
		_, err = fmt.Fprintln(env.Stdout, "the schema is up to date")
	} else {
		_, err = fmt.Fprintf(env.Stdout, "the schema is up to date: %d steps were taken\n", steps)
	}
	return err
}

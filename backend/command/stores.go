package command

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/audit"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/reconcile"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/cli"
)

// stores is what the commands work with that ask no backend.
type stores struct {
	Config
	db       *sql.DB
	redis    *reserve.Store
	broker   *broker.Broker       // nil: the outbox is the queue
	fence    reconcile.Fence      // the broker, or nil
	registry *prometheus.Registry // nobody reads it: the command is over soon
	auditor  *audit.Auditor
}

// open opens MySQL (store.Open, or store.OpenAny for what only reads), Redis and, where it is needed, the broker. Close must be called.
func (f File) open(ctx context.Context, env *Env, openMySQL func(dsn string, maxOpen int) (*sql.DB, error), brokered bool) (s *stores, err error) {
	s = &stores{registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.Config, err = env.Config(f.Config); err != nil {
		return s, err
	}
	if s.db, err = openMySQL(s.MySQL, 1); err != nil {
		return s, err
	}
	if err = answers(ctx, s.db); err != nil {
		return s, err
	}
	if s.redis, err = reserve.Open(s.Redis, 0); err != nil {
		return s, err
	}
	ac := audit.Config{DB: s.db, Redis: s.redis, QueuedBound: s.QueuedBound, Abandoned: s.Abandoned}
	if s.Broker != nil && brokered {
		bc := *s.Broker
		bc.Log, bc.Register = s.Log, s.registry
		if s.broker, err = broker.Open(bc); err != nil {
			return s, err
		}
		ac.Broker, s.fence = s.broker, s.broker
	}
	s.auditor = audit.New(ac)
	return s, nil
}

// close closes what open has opened.
func (s *stores) close() (err error) {
	if s.broker != nil {
		err = s.broker.Close()
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.db != nil {
		err = errors.Join(err, s.db.Close())
	}
	return err
}

// answers reports whether MySQL does.
func answers(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("mysql does not answer (mysql.dsn of the configuration): %w", err)
	}
	return nil
}

// Rebuild is the command "rebuild".
type Rebuild struct {
	Sale int64 `help:"The sale to write anew." placeholder:"ID" xor:"which" required:""`
	SKU  int64 `help:"The SKU to write anew." name:"sku" placeholder:"ID" xor:"which" required:""`
	File
	Output
}

func (c *Rebuild) Run(ctx context.Context, env *Env) (err error) {
	s, err := c.open(ctx, env, store.Open, c.Sale != 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	p := cli.StartProgress(env.Stderr, "rebuild")
	defer p.End()
	audited := &Audit{Sale: c.Sale, SKU: c.SKU, Output: c.Output}
	if _, err := audited.look(ctx, s.auditor, nil, p); errors.Is(err, audit.ErrUnknownSKU) || errors.Is(err, audit.ErrUnknownSale) {
		return err
	}
	p.Say("writing Redis")
	if c.SKU != 0 {
		err = sku.NewCache(sku.Config{DB: s.db, Redis: s.redis.Client(), Log: s.Log, Register: s.registry}).Rebuild(ctx, c.SKU)
		if errors.Is(err, sku.ErrUnknown) {
			err = fmt.Errorf("SKU %d was made for one sale: carts cannot hold it, so Redis has nothing of it; rebuild its sale", c.SKU)
		}
	} else {
		err = reconcile.New(reconcile.Config{DB: s.db, Redis: s.redis, Fence: s.fence, Log: s.Log, Register: s.registry}).Sale(ctx, c.Sale)
	}
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	r, err := audited.look(ctx, s.auditor, nil, p)
	if err != nil {
		return err
	}
	p.End()
	return audited.tell(env, r)
}

// Migrate is the command "migrate".
type Migrate struct{ File }

func (c *Migrate) Run(ctx context.Context, env *Env) (err error) {
	conf, err := env.Config(c.Config)
	if err != nil {
		return err
	}
	db, err := store.OpenToMigrate(conf.MySQL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := answers(ctx, db); err != nil {
		return err
	}
	p := cli.StartProgress(env.Stderr, "migrate")
	steps, err := store.Migrate(ctx, db)
	p.End()
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

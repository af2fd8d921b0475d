// Package command is the operator's command line: sale, coupon, audit, rebuild, migrate, queue, dead-letters and more, as kong commands
// that the binary embeds:
//
//	Sale    operate.Sale    `cmd:"" help:"Create, list and manage sales, through the admin API."`
//	Coupon  operate.Coupon  `cmd:"" help:"Create, list and publish coupon campaigns, through the admin API."`
//	Audit   operate.Audit   `cmd:"" help:"Prove that every unit is accounted for."`
//	Rebuild operate.Rebuild `cmd:"" help:"Write a sale into Redis anew, from MySQL and the outbox."`
//	Migrate operate.Migrate `cmd:"" help:"Bring MySQL's schema up to date."`
//	Queue   operate.Queue   `cmd:"" help:"Show what is queued, and who holds it."`
//
//	DeadLetters operate.DeadLetters `cmd:"" help:"Show what could not be processed, and process it anew."`
//	Orders      operate.Orders      `cmd:"" help:"Find, cancel and export orders."`
//	Bans        operate.Bans        `cmd:"" help:"Who may not buy, in any sale."`
//	Eligible    operate.Eligible    `cmd:"" help:"Who alone may buy in a sale."`
//	Timeline    operate.Timeline    `cmd:"" help:"Why a buyer did not get one: what became of their presses in a sale."`
//	AuditLog    operate.AuditLog    `cmd:"" help:"Who changed what."`
//
// Each is run with a context.Context and an *Env bound. Audit, rebuild and migrate talk to the stores themselves, so that they also
// work while no backend runs; all others to the admin API.
package command

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
)

// Env is what a command is run with.
type Env struct {
	Stdout, Stderr io.Writer
	// Config reads the file that -config names; its errors are usage errors.
	Config func(path string) (Config, error)
}

// File is the flag that every command has.
type File struct {
	Config string `required:"" placeholder:"FILE" help:"The backend's configuration file."`
}

// Config is what the commands need of the backend's configuration.
type Config struct {
	Admin       string // host:port of the admin listener
	Token       string // admin token
	MySQL       string // DSN
	Redis       redis.Config
	Broker      *broker.Config // nil: the outbox is the queue
	QueuedBound time.Duration
	Abandoned   time.Duration // of carts
	Log         *slog.Logger
}

// stores opens MySQL and Redis; done closes them.
func (c Config) stores(ctx context.Context) (db *sql.DB, redis *reserve.Store, done func(), err error) {
	if db, err = store.Open(c.MySQL, 1); err == nil {
		err = answers(ctx, db)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if redis, err = reserve.Open(c.Redis, 0); err != nil {
		_ = db.Close() // nothing was done with it
		return nil, nil, nil, err
	}
	return db, redis, func() {
		redis.Close()
		_ = db.Close() // every statement's error was seen
	}, nil
}

// answers reports whether MySQL does; if not, db is closed.
func answers(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close() // it never opened
		return fmt.Errorf("mysql does not answer (mysql.dsn of the configuration): %w", err)
	}
	return nil
}

// Output is how a command answers.
type Output struct {
	JSON bool `help:"Print JSON, for programs."`
}

// printJSON writes a value, indented.
func printJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// table writes rows of cells under a head, in columns.
func table(w io.Writer, head string, rows []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	for _, r := range rows {
		fmt.Fprintln(t, r)
	}
	return t.Flush()
}

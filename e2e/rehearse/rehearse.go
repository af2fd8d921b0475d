// Package rehearse holds a sale on the real system of this machine before the real one: a crowd as sales have it presses,
// processes and servers are killed meanwhile, and in the end what every shopper was told is held against the stores. The
// report is one HTML file with pictures.
//
// The crowd shares the machine with the system, so its times tell how the system bears the faults, not how fast it is.
package rehearse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// Options are what is rehearsed.
type Options struct {
	Shoppers int           // from 1
	Stock    int           // units, from 1
	Length   time.Duration // of the sale's window, from 10 s
	Faults   int           // kills, from 0
	Seed     uint64        // of everything that is random
	Dir      string        // of the system's data and logs; it is emptied before and after
	Bin      string        // where the binaries backend and gateway are

	Progress func(format string, args ...any) // safe for concurrent use
	Log      io.Writer                        // what installers print
}

const (
	lead         = 5 * time.Second  // from the creation of the sale to its start
	grace        = 30 * time.Second // after the sale, for shoppers that were told nothing final yet
	settleWithin = time.Minute      // after the last shopper and the last deadline to pay
	sampleEvery  = time.Second
)

// Result is what came of it.
type Result struct {
	Options  Options
	Sale     int64
	Began    time.Time // the sale's start
	Tally    oracle.Tally
	Sold     int64         // units that are paid in the end
	Broken   []string      // equations and promises that do not hold
	Audit    string        // what `backend audit` printed
	Balanced bool          // and what it found
	Settled  time.Duration // from the end of the crowd until everything held
	Faults   []Fault
	Units    []units
	Load     load
	crowd    *crowd
}

// Good reports whether every promise was kept and every equation holds.
func (r *Result) Good() bool { return r.Tally.Broken() == 0 && len(r.Broken) == 0 && r.Balanced }

// units is where a sale's units were at a moment.
type units struct {
	At                      time.Duration // since the start
	Sold, Locked, Available int64
}

// Run rehearses. An error says that the rehearsal itself failed; what the system did wrong is in the Result.
func Run(ctx context.Context, o Options) (*Result, error) {
	system := stack.Options{Dir: o.Dir, Bin: o.Bin, Native: true, Clean: true, Report: o.Progress, Log: o.Log}
	if err := stack.Down(ctx, system); err != nil { // of one that was killed
		return nil, err
	}
	var err error
	if system.Ports, err = stack.FreeSystemPorts(); err != nil {
		return nil, err
	}
	s, err := stack.Up(ctx, system)
	defer func() {
		if err := stack.Down(context.WithoutCancel(ctx), system); err != nil {
			o.Progress("the system could not be stopped: %v", err)
		}
	}()
	if err != nil {
		return nil, err
	}
	r := &rehearsal{Options: o, system: s, random: rand.New(rand.NewPCG(o.Seed, 0)), client: world.NewClient(10, 10*time.Second)}
	return r.run(ctx)
}

type rehearsal struct {
	Options
	system *stack.System
	random *rand.Rand // of Run's goroutine
	client *world.Client
}

func (r *rehearsal) run(ctx context.Context) (*Result, error) {
	tokens, err := world.Mint(ctx, r.Bin, r.system.GatewayConfig(), 1, r.Shoppers)
	if err != nil {
		return nil, err
	}
	defer r.client.Close()
	res := &Result{Options: r.Options, Began: time.Now().Add(lead).Truncate(time.Millisecond)}
	payWithin := min(max(r.Length/6, 5*time.Second), time.Minute).Truncate(time.Second)
	made := r.admin(ctx, "POST", "/sales", world.SaleBody("Rehearsal", int64(r.Stock), res.Began, res.Began.Add(r.Length), payWithin))
	if err := made.Is(201); err != nil {
		return nil, fmt.Errorf("make a sale: %w", err)
	}
	res.Sale = made.ID
	res.crowd = newCrowd(r.system.Ports.PublicURL(), res.Sale, res.Began, r.Length, r.Seed)
	r.Progress("%d shoppers come for %d units: sale %d starts in %v and lasts %v", r.Shoppers, r.Stock, res.Sale, lead, r.Length)

	whole, end := context.WithTimeout(ctx, lead+r.Length+grace)
	defer end()
	var beside sync.WaitGroup
	besides, endBesides := context.WithCancel(whole)
	beside.Go(func() { res.Units = r.sample(besides, res.Sale, res.Began) })
	beside.Go(func() { res.Faults = r.kill(ctx, besides, res.Began, res.crowd) })
	beside.Go(func() { r.tell(besides, res.crowd) })
	beside.Go(func() { res.Load, err = r.measure(besides) })
	res.crowd.come(whole, tokens)
	endBesides()
	beside.Wait()
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	r.Progress("the crowd is gone: %s", res.crowd.log.Summary())
	return res, r.judge(ctx, res, payWithin)
}

func (r *rehearsal) admin(ctx context.Context, method, path, body string) world.Answer {
	return r.client.Do(ctx, world.Call{Method: method, URL: r.system.Ports.AdminURL() + "/admin/v1" + path, Token: development.AdminToken, Body: body})
}

// sample asks where the units are until ctx ends; while nothing answers there is no sample.
func (r *rehearsal) sample(ctx context.Context, sale int64, began time.Time) (all []units) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return all
		case <-tick.C:
		}
		var s struct{ Sold, Locked, Available int64 }
		short, cancel := context.WithTimeout(ctx, sampleEvery)
		if a := r.admin(short, "GET", "/sales/"+strconv.FormatInt(sale, 10), ""); a.Status == 200 && json.Unmarshal(a.Body, &s) == nil {
			all = append(all, units{time.Since(began), s.Sold, s.Locked, s.Available})
		}
		cancel()
	}
}

// tell reports progress until ctx ends.
func (r *rehearsal) tell(ctx context.Context, c *crowd) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.Progress("%s", c.summary())
		}
	}
}

// judge waits until everything is settled, and holds what was told against the stores: by the oracle, which asks them itself,
// and by the auditor of the system.
func (r *rehearsal) judge(ctx context.Context, res *Result, payWithin time.Duration) error {
	servers := r.system.Servers
	dsn, err := mysql.ParseDSN(servers.MySQLDSN())
	if err != nil {
		return err
	}
	books, err := world.StoresOf(servers, servers, servers).OpenBooks(dsn.DBName, stack.RedisPrefix)
	if err != nil {
		return err
	}
	defer func() { books.Redis.Close(); _ = books.DB.Close() }()
	log, began := res.crowd.log, time.Now()
	r.Progress("unpaid orders expire and everything settles, at most %v", payWithin+settleWithin)
	for {
		view, err := books.Look(ctx, res.Sale)
		if err == nil {
			res.Broken = append(view.Always(int64(r.Stock), 1), view.Settled(int64(r.Stock), log)...)
			res.Tally, res.Sold = view.Count(int64(r.Stock), log), int64(view.Row.Sold)
			pending := false
			for _, o := range view.Orders {
				pending = pending || o.Status == string(wire.PendingPayment)
			}
			if len(res.Broken) == 0 && !pending {
				break
			}
			if pending {
				err = errors.New("orders wait for their payment")
			}
		}
		if time.Since(began) > payWithin+settleWithin {
			if err != nil {
				res.Broken = append(res.Broken, err.Error())
			}
			break
		}
		if world.Pause(ctx, 200*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	res.Settled = time.Since(began)
	answers := filepath.Join(r.Dir, "answers.jsonl")
	f, err := os.Create(answers)
	if err != nil {
		return err
	}
	if err := errors.Join(log.WriteLines(f, res.Sale), f.Close()); err != nil {
		return err
	}
	res.Audit, err = world.Command(ctx, filepath.Join(r.Bin, "backend"), "audit", "-config", r.system.BackendConfig(), "--sale", strconv.FormatInt(res.Sale, 10), "--answers", answers)
	res.Balanced = err == nil
	if err != nil {
		res.Audit += "\n" + err.Error()
	}
	return nil
}

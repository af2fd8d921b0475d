// Package rehearse holds a sale on the real system of this machine before the real one: a crowd as sales have it presses,
// processes and servers are killed meanwhile, and in the end what every shopper was told is held against the stores. The
// report is one HTML file with pictures.
//
// The crowd shares the machine with the system, so its times tell how the system bears the faults, not how fast it is.
package rehearse

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
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
	r := &rehearsal{Options: o, system: s, random: rand.New(rand.NewPCG(o.Seed, 0)), http: &http.Client{Timeout: 10 * time.Second}}
	return r.run(ctx)
}

type rehearsal struct {
	Options
	system *stack.System
	random *rand.Rand // of Run's goroutine
	http   *http.Client
}

func (r *rehearsal) run(ctx context.Context) (*Result, error) {
	tokens, err := r.mint(ctx)
	if err != nil {
		return nil, err
	}
	res := &Result{Options: r.Options}
	payWithin := min(max(r.Length/6, 5*time.Second), time.Minute).Truncate(time.Second)
	if res.Sale, res.Began, err = r.open(ctx, payWithin); err != nil {
		return nil, err
	}
	res.crowd = newCrowd(r.system.Ports.PublicURL(), res.Sale, res.Began, r.Length, r.Seed)
	r.Progress("%d shoppers come for %d units: sale %d starts in %v and lasts %v", r.Shoppers, r.Stock, res.Sale, lead, r.Length)

	whole, end := context.WithTimeout(ctx, lead+r.Length+grace)
	defer end()
	var beside sync.WaitGroup
	besides, endBesides := context.WithCancel(whole)
	beside.Go(func() { res.Units = r.sample(besides, res.Sale, res.Began) })
	beside.Go(func() { res.Faults = r.kill(whole, res.Began, res.crowd) })
	beside.Go(func() { r.tell(besides, res.crowd) })
	res.crowd.come(whole, tokens)
	endBesides()
	beside.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.Progress("the crowd is gone: %s", res.crowd.log.Summary())
	return res, r.judge(ctx, res, payWithin)
}

// mint makes a token for every shopper, uid 1 to Shoppers, with the gateway's own command.
func (r *rehearsal) mint(ctx context.Context) ([]string, error) {
	const most = 5000
	var tokens []string
	for first := 1; first <= r.Shoppers; first += most {
		last := min(first+most-1, r.Shoppers)
		out, err := r.command(ctx, "gateway", "token", "-config", r.system.GatewayConfig(), "-uid", fmt.Sprintf("%d-%d", first, last))
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, strings.Fields(out)...)
	}
	if len(tokens) != r.Shoppers {
		return nil, fmt.Errorf("gateway token made %d tokens for %d shoppers", len(tokens), r.Shoppers)
	}
	return tokens, nil
}

func (r *rehearsal) command(ctx context.Context, binary string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.Bin, binary), args...)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", binary, args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// open makes the sale, which starts in a moment.
func (r *rehearsal) open(ctx context.Context, payWithin time.Duration) (sale int64, starts time.Time, err error) {
	starts = time.Now().Add(lead).Truncate(time.Millisecond)
	body := fmt.Sprintf(`{"title":"Rehearsal","price":4900,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,"per_user_limit":1,"pay_within_s":%d}`,
		r.Stock, starts.UTC().Format(wire.TimeFormat), starts.Add(r.Length).UTC().Format(wire.TimeFormat), int(payWithin.Seconds()))
	var made struct {
		ID int64 `json:"id"`
	}
	err = r.admin(ctx, http.MethodPost, "/sales", body, &made)
	return made.ID, starts, err
}

func (r *rehearsal) admin(ctx context.Context, method, path, body string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, r.system.Ports.AdminURL()+"/admin/v1"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+development.AdminToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, bytes.TrimSpace(b))
	}
	return json.Unmarshal(b, out)
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
		if err := r.admin(short, http.MethodGet, "/sales/"+strconv.FormatInt(sale, 10), "", &s); err == nil {
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
	books, done, err := r.books()
	if err != nil {
		return err
	}
	defer done()
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
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
	res.Audit, err = r.command(ctx, "backend", "audit", "-config", r.system.BackendConfig(), "--sale", strconv.FormatInt(res.Sale, 10), "--answers", answers)
	res.Balanced = err == nil
	if err != nil {
		res.Audit += "\n" + err.Error()
	}
	return nil
}

// books are the stores, as the oracle asks them.
func (r *rehearsal) books() (b oracle.Books, done func(), err error) {
	c, err := mysql.ParseDSN(r.system.Servers.MySQLDSN())
	if err != nil {
		return b, nil, err
	}
	c.ParseTime = true
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return b, nil, err
	}
	redis, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.system.Servers.RedisAddr()}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		return b, nil, err
	}
	b = oracle.Books{DB: sql.OpenDB(connector), Redis: redis, Prefix: stack.RedisPrefix}
	return b, func() { redis.Close(); _ = b.DB.Close() }, nil
}

package command

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/eligibility"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// Bans is the command "bans".
type Bans struct {
	List   bansList   `cmd:"" help:"Who may not buy, in any sale."`
	Add    bansAdd    `cmd:"" help:"Ban uids. Orders that they have stand."`
	Remove bansChange `cmd:"" help:"Let uids buy again."`
}

// Eligible is the command "eligible".
type Eligible struct {
	List   eligibleList   `cmd:"" help:"Who may buy in a sale that has a list."`
	Set    eligibleSet    `cmd:"" help:"Make these uids the sale's list: only they may buy."`
	Add    eligibleChange `cmd:"" help:"Put uids on a sale's list."`
	Remove eligibleChange `cmd:"" help:"Take uids off a sale's list."`
	Lift   eligibleLift   `cmd:"" help:"End a sale's list: anybody may buy."`
}

// uidList is one of the lists.
type uidList struct {
	*adminapi.Client
	path string
	key  string // Idempotency-Key, or ""
}

const bans = "/bans"

func eligible(sale int64) string { return fmt.Sprintf("/sales/%d/eligibility", sale) }

// read returns the list with all its uids, in order.
func (l uidList) read(ctx context.Context) (list adminapi.List, err error) {
	uids, _, err := collect(ctx, l.Client, l.path, filter(), math.MaxInt, 1000, func(p adminapi.List) []string {
		list = p
		return p.UIDs
	})
	list.UIDs = uids
	return list, err
}

// change adds, removes or sets (member "uids") these uids, in as many requests as it takes. Sum gets what they did.
func (l uidList) change(ctx context.Context, member string, uids []string, sum *eligibility.Changed) error {
	method := http.MethodPost
	if member == "uids" {
		method = http.MethodPut
	}
	for i, chunk := range slices.Collect(slices.Chunk(uids, eligibility.MaxChunk)) {
		key := l.key
		if key != "" {
			key = fmt.Sprintf("%s-%s-%d", l.key, member, i+1)
		}
		done, err := send[eligibility.Changed](ctx, l.Client, request{method, l.path, key, map[string][]string{member: chunk}})
		if err != nil {
			return fmt.Errorf("%w (%d of %d uids were sent before)", err, i*eligibility.MaxChunk, len(uids))
		}
		sum.State = done.State
		sum.Added, sum.Removed = append(sum.Added, done.Added...), append(sum.Removed, done.Removed...)
	}
	return nil
}

func describe(s eligibility.State) string {
	if !s.Active {
		return "there is no list, anybody may buy"
	}
	return fmt.Sprintf("the list has %d uids", s.Size)
}

// list prints a list.
func (a API) list(ctx context.Context, env *Env, path string) error {
	return a.with(env, func(api *adminapi.Client) error {
		l, err := uidList{Client: api, path: path}.read(ctx)
		if err != nil {
			return err
		}
		return a.print(env.Stdout, l, func(w *bytes.Buffer) {
			fmt.Fprintln(env.Stderr, describe(l.State))
			for _, uid := range l.UIDs {
				fmt.Fprintln(w, uid)
			}
		})
	})
}

// change runs what changes a list, and prints the sum of it.
func (a API) change(env *Env, path, key string, f func(uidList, *eligibility.Changed) error) error {
	return a.with(env, func(api *adminapi.Client) error {
		var sum eligibility.Changed
		if err := f(uidList{api, path, key}, &sum); err != nil {
			return err
		}
		return a.print(env.Stdout, sum, func(w *bytes.Buffer) { printChanged(w, sum) })
	})
}

func printChanged(w *bytes.Buffer, c eligibility.Changed) {
	fmt.Fprintf(w, "%d added, %d removed: %s\n", len(c.Added), len(c.Removed), describe(c.State))
}

// named are the uids of a command line.
type named struct {
	UIDs []string `arg:"" optional:"" name:"uid" help:"Uids."`
	File string   `help:"A file with a uid a line; empty lines and those that begin with # are left out, - is standard input." placeholder:"FILE"`
	Key  string   `help:"Idempotency-Key: run again with the same one, nothing is done twice. Of many uids, each request has it with a number."`
	API
}

// uids are those of the command line and of the file, one at least, each once, in order.
func (n named) uids() ([]string, error) {
	list := slices.Clone(n.UIDs)
	for _, uid := range list {
		if !wire.ValidUID(uid) {
			return nil, cli.Usage("uid %q: it is 1 to %d of [A-Za-z0-9._-]", uid, wire.MaxUID)
		}
	}
	if n.File != "" {
		in := io.Reader(os.Stdin)
		if n.File != "-" {
			f, err := os.Open(n.File)
			if err != nil {
				return nil, cli.Usage("--file: %w", err)
			}
			defer f.Close()
			in = f
		}
		lines := bufio.NewScanner(in)
		for i := 1; lines.Scan(); i++ {
			uid := strings.TrimSpace(lines.Text())
			if uid == "" || uid[0] == '#' {
				continue
			}
			if !wire.ValidUID(uid) {
				return nil, cli.Usage("--file %s, line %d: %q is no uid: it is 1 to %d of [A-Za-z0-9._-]", n.File, i, uid, wire.MaxUID)
			}
			list = append(list, uid)
		}
		if err := lines.Err(); err != nil {
			return nil, cli.Usage("--file %s: %w", n.File, err)
		}
	}
	if len(list) == 0 {
		return nil, cli.Usage("give uids, or --file FILE")
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// run adds the uids to a list, or removes them: what the command's name says.
func (n named) run(ctx context.Context, env *Env, k *kong.Context, path string) error {
	uids, err := n.uids()
	if err != nil {
		return err
	}
	return n.change(env, path, n.Key, func(l uidList, sum *eligibility.Changed) error {
		return l.change(ctx, k.Selected().Name, uids, sum)
	})
}

type bansList struct{ API }

func (c *bansList) Run(ctx context.Context, env *Env) error { return c.list(ctx, env, bans) }

type bansChange struct{ named }

func (c *bansChange) Run(ctx context.Context, env *Env, k *kong.Context) error {
	return c.run(ctx, env, k, bans)
}

type bansAdd struct{ bansChange }

type eligibleList struct {
	Sale int64 `arg:"" help:"The sale's id."`
	API
}

func (c *eligibleList) Run(ctx context.Context, env *Env) error {
	return c.list(ctx, env, eligible(c.Sale))
}

// eligibleChange is "eligible add" and "eligible remove".
type eligibleChange struct {
	Sale int64 `arg:"" help:"The sale's id."`
	named
}

func (c *eligibleChange) Run(ctx context.Context, env *Env, k *kong.Context) error {
	return c.run(ctx, env, k, eligible(c.Sale))
}

type eligibleSet struct {
	Sale int64 `arg:"" help:"The sale's id."`
	named
}

func (c *eligibleSet) Run(ctx context.Context, env *Env) error {
	want, err := c.uids()
	if err != nil {
		return err
	}
	return c.change(env, eligible(c.Sale), c.Key, func(l uidList, sum *eligibility.Changed) error {
		have, err := l.read(ctx)
		if err != nil {
			return err
		}
		if !have.Active {
			have.UIDs = want[:min(len(want), eligibility.MaxChunk)]
			if err := l.change(ctx, "uids", have.UIDs, sum); err != nil {
				return err
			}
		}
		sum.State = eligibility.State{Active: true, Size: int64(len(have.UIDs)), Version: max(have.Version, sum.Version)}
		if err := l.change(ctx, "add", less(want, have.UIDs), sum); err != nil {
			return err
		}
		return l.change(ctx, "remove", less(have.UIDs, want), sum)
	})
}

// less is a without what b has; both are sorted.
func less(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(uid string) bool { _, has := slices.BinarySearch(b, uid); return has })
}

type eligibleLift struct {
	Sale int64  `arg:"" help:"The sale's id."`
	Key  string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	API
}

func (c *eligibleLift) Run(ctx context.Context, env *Env) error {
	return ask(ctx, env, c.API, request{http.MethodDelete, eligible(c.Sale), c.Key, nil}, printChanged)
}

package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"floodgate.internal/backend/eligibility"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

// Bans is the command "bans".
type Bans struct {
	List   BansList   `cmd:"" help:"Who may not buy, in any sale."`
	Add    BansAdd    `cmd:"" help:"Ban uids. Orders that they have stand."`
	Remove BansRemove `cmd:"" help:"Let uids buy again."`
}

// Eligible is the command "eligible".
type Eligible struct {
	List   EligibleList   `cmd:"" help:"Who may buy in a sale that has a list."`
	Set    EligibleSet    `cmd:"" help:"Make these uids the sale's list: only they may buy."`
	Add    EligibleAdd    `cmd:"" help:"Put uids on a sale's list."`
	Remove EligibleRemove `cmd:"" help:"Take uids off a sale's list."`
	Lift   EligibleLift   `cmd:"" help:"End a sale's list: anybody may buy."`
}

const bansPath = "/admin/v1/bans"

func eligiblePath(sale int64) string { return fmt.Sprintf("%s/%d/eligibility", salesPath, sale) }

// named are the uids of a command line.
type named struct {
	UIDs []string `arg:"" optional:"" name:"uid" help:"Uids."`
	File string   `help:"A file with a uid a line; empty lines and those that begin with # are left out, - is standard input." placeholder:"FILE"`
	Key  string   `help:"Idempotency-Key: run again with the same one, nothing is done twice. Of many uids, each request has it with a number."`
	Remote
	Output
}

// uids are those of the command line and of the file, each once.
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
	slices.Sort(list)
	return slices.Compact(list), nil
}

// some is uids, of which there must be one at least.
func (n named) some() ([]string, error) {
	list, err := n.uids()
	if err == nil && len(list) == 0 {
		err = cli.Usage("give uids, or --file FILE")
	}
	return list, err
}

// listed is a list as the admin API answers it.
type listed struct {
	Active  bool     `json:"active"`
	Size    int64    `json:"size"`
	Version int64    `json:"version"`
	UIDs    []string `json:"uids"`
	Next    string   `json:"next"`
}

// list reads all of a list.
func (c *client) list(ctx context.Context, path string) (l listed, err error) {
	all := []string{}
	for cursor := ""; ; cursor = "?cursor=" + url.QueryEscape(l.Next) {
		l = listed{}
		if err := c.call(ctx, http.MethodGet, path+cursor, "", nil, &l); err != nil {
			return l, err
		}
		all = append(all, l.UIDs...)
		if l.Next == "" {
			l.UIDs = all
			return l, nil
		}
	}
}

// change sends uids in as many requests as it takes, and sums up what they did.
func (c *client) change(ctx context.Context, path, key, member string, uids []string, sum *eligibility.Changed) error {
	for i, chunk := range slices.Collect(slices.Chunk(uids, eligibility.MaxChunk)) {
		method := http.MethodPost
		if member == "uids" {
			method = http.MethodPut
		}
		if err := c.changeOnce(ctx, method, path, numbered(key, member, i), map[string][]string{member: chunk}, sum); err != nil {
			return fmt.Errorf("%w (%d of %d uids were sent before)", err, i*eligibility.MaxChunk, len(uids))
		}
	}
	return nil
}

func (c *client) changeOnce(ctx context.Context, method, path, key string, body any, sum *eligibility.Changed) error {
	var done eligibility.Changed
	if err := c.call(ctx, method, path, key, body, &done); err != nil {
		return err
	}
	sum.State = done.State
	sum.Added, sum.Removed = append(sum.Added, done.Added...), append(sum.Removed, done.Removed...)
	return nil
}

// numbered is a key for each of several requests.
func numbered(key, member string, i int) string {
	if key == "" {
		return ""
	}
	return key + "-" + member + "-" + strconv.Itoa(i+1)
}

func (o Output) changed(env *Env, c eligibility.Changed) error {
	if o.JSON {
		return printJSON(env.Stdout, c)
	}
	_, err := fmt.Fprintf(env.Stdout, "%d added, %d removed: %s\n", len(c.Added), len(c.Removed), describe(c.Active, c.Size))
	return err
}

func describe(active bool, size int64) string {
	if !active {
		return "there is no list, anybody may buy"
	}
	return fmt.Sprintf("the list has %d uids", size)
}

func (o Output) listed(env *Env, l listed) error {
	if o.JSON {
		return printJSON(env.Stdout, l)
	}
	fmt.Fprintln(env.Stderr, describe(l.Active, l.Size))
	for _, uid := range l.UIDs {
		if _, err := fmt.Fprintln(env.Stdout, uid); err != nil {
			return err
		}
	}
	return nil
}

// run changes a list by one member of the request.
func (n named) run(ctx context.Context, env *Env, path, member string) error {
	uids, err := n.some()
	if err != nil {
		return err
	}
	api, err := n.connect(env)
	if err != nil {
		return err
	}
	var sum eligibility.Changed
	if err := api.change(ctx, path, n.Key, member, uids, &sum); err != nil {
		return err
	}
	return n.changed(env, sum)
}

// BansList is "bans list".
type BansList struct {
	Remote
	Output
}

// Run implements the command.
func (c *BansList) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	l, err := api.list(ctx, bansPath)
	if err != nil {
		return fmt.Errorf("bans list: %w", err)
	}
	return c.listed(env, l)
}

// BansAdd is "bans add".
type BansAdd struct{ named }

// Help implements kong's HelpProvider.
func (BansAdd) Help() string {
	return `A banned uid's new orders are refused everywhere within a second; orders that it has stand.

Examples:
  backend bans add -config configs/backend.yaml 4711 4712
  backend bans add -config configs/backend.yaml --file hijacked.txt`
}

// Run implements the command.
func (c *BansAdd) Run(ctx context.Context, env *Env) error { return c.run(ctx, env, bansPath, "add") }

// BansRemove is "bans remove".
type BansRemove struct{ named }

// Run implements the command.
func (c *BansRemove) Run(ctx context.Context, env *Env) error {
	return c.run(ctx, env, bansPath, "remove")
}

type ofSale struct {
	Sale int64 `arg:"" help:"The sale's id."`
	named
}

// EligibleList is "eligible list".
type EligibleList struct {
	Sale int64 `arg:"" help:"The sale's id."`
	Remote
	Output
}

// Run implements the command.
func (c *EligibleList) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	l, err := api.list(ctx, eligiblePath(c.Sale))
	if err != nil {
		return fmt.Errorf("eligible list: %w", err)
	}
	return c.listed(env, l)
}

// EligibleAdd is "eligible add".
type EligibleAdd struct{ ofSale }

// Run implements the command.
func (c *EligibleAdd) Run(ctx context.Context, env *Env) error {
	return c.run(ctx, env, eligiblePath(c.Sale), "add")
}

// EligibleRemove is "eligible remove".
type EligibleRemove struct{ ofSale }

// Run implements the command.
func (c *EligibleRemove) Run(ctx context.Context, env *Env) error {
	return c.run(ctx, env, eligiblePath(c.Sale), "remove")
}

// EligibleSet is "eligible set".
type EligibleSet struct{ ofSale }

// Help implements kong's HelpProvider.
func (EligibleSet) Help() string {
	return `A list that is there is brought to these uids: first those that are new are added, then the others removed, so that nobody
who is on both is ever refused. A sale's first list grows request by request: set it before the sale starts.

Example:
  backend eligible set -config configs/backend.yaml 7 --file registered.txt`
}

// Run implements the command.
func (c *EligibleSet) Run(ctx context.Context, env *Env) error {
	want, err := c.some()
	if err != nil {
		return err
	}
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	path := eligiblePath(c.Sale)
	have, err := api.list(ctx, path)
	if err != nil {
		return fmt.Errorf("eligible set: %w", err)
	}
	var sum eligibility.Changed
	if !have.Active {
		first := want[:min(len(want), eligibility.MaxChunk)]
		if err := api.change(ctx, path, c.Key, "uids", first, &sum); err != nil {
			return fmt.Errorf("eligible set: %w", err)
		}
		have.UIDs = first
	}
	sum.State = eligibility.State{Active: true, Size: int64(len(have.UIDs)), Version: max(have.Version, sum.Version)}
	for _, step := range []struct {
		member string
		uids   []string
	}{{"add", less(want, have.UIDs)}, {"remove", less(have.UIDs, want)}} {
		if err := api.change(ctx, path, c.Key, step.member, step.uids, &sum); err != nil {
			return fmt.Errorf("eligible set: %w", err)
		}
	}
	return c.changed(env, sum)
}

// less is a without what b has; both are sorted.
func less(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(uid string) bool { _, has := slices.BinarySearch(b, uid); return has })
}

// EligibleLift is "eligible lift".
type EligibleLift struct {
	Sale int64  `arg:"" help:"The sale's id."`
	Key  string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	Remote
	Output
}

// Run implements the command.
func (c *EligibleLift) Run(ctx context.Context, env *Env) error {
	api, err := c.connect(env)
	if err != nil {
		return err
	}
	var sum eligibility.Changed
	if err := api.changeOnce(ctx, http.MethodDelete, eligiblePath(c.Sale), c.Key, nil, &sum); err != nil {
		return fmt.Errorf("eligible lift: %w", err)
	}
	return c.changed(env, sum)
}

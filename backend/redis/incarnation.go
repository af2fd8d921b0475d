package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// An incarnation names one uninterrupted run of Redis's primaries. MySQL has the name of the newest one. The name is part of the
// text of three scripts, sale_reserve.lua, sale_adopt.lua and sku_lock.lua, so each incarnation has its own copies. They are
// loaded into the primaries and nowhere else. Every process calls the copies of the newest incarnation only. The rule is:
//
//	A primary that has the scripts of the newest incarnation has everything that was decided since about each of its
//	sales, or the gate of that sale was closed since.
//
// The rule holds because of how a node comes by a script. Redis does not write scripts to disk and does not replicate them. So a
// node that was started anew has none, and a replica that is promoted has none. Its data may be older than what was decided,
// and the gates in its data may be open. Such a primary is lost. A reconciler brings it back in four steps:
//
//  1. It closes the gates of the lost primary's sales, over the connection on which the node said that it is a primary.
//  2. It begins a new incarnation: it loads the new scripts into every primary, over the connection on which each was asked.
//  3. It asks each primary again what it is. A node that was restarted meanwhile has lost its connection. A node that was
//     demoted says so, or has another replication history. Either ends the attempt.
//  4. It writes the new name to MySQL. Only from then on does anybody call the new scripts.
//
// Primaries that have the old incarnation's scripts are not lost: their data never went back. Their sales stay open throughout.
//
// A node that is no longer a primary keeps its scripts. A new incarnation makes them useless. Two more things protect the time
// before that, and the case where nobody looked and no incarnation began. First, a node that is no primary is made to forget
// its scripts. Second, each primary is also given a witness, a script that names the node's replication history. A promotion
// changes the history. So a primary that has the scripts but was promoted since lacks the witness of its new history, and
// is lost too.
//
// The nodes themselves say which of them are primaries. Where two claim a slot, the one with the higher config epoch has it: the
// other was superseded and does not know yet. A node is no primary once others have claimed all of its slots.

// Incarnation is a run of Redis's primaries, with the scripts that belong to it alone.
type Incarnation struct {
	Name                 string // "": none began yet, and no primary has the scripts
	Reserve, Adopt, Lock lua.Script
}

// Incarnation returns the one in use: the last that Use was called with.
func (c *Client) Incarnation() *Incarnation { return c.incarnation.Load() }

// Use makes this process call the scripts of an incarnation: the newest that MySQL has. In any other, and with "" in all, a
// primary answers with ErrRestarted.
func (c *Client) Use(name string) {
	if i := c.incarnation.Load(); i == nil || i.Name != name {
		c.incarnation.Store(&Incarnation{name, lua.SaleReserveIn(name), lua.SaleAdoptIn(name), lua.SKULockIn(name)})
	}
}

// Nodes are the nodes of Redis, as they were when Hold asked. All that is asked and done goes over the connections that are
// held, so a node that was restarted meanwhile answers nothing more.
type Nodes struct {
	used      *Incarnation
	primaries []*node
	others    []*node // replicas, and primaries that others have superseded
	away      error   // why the rest cannot be asked
}

type node struct {
	addr string
	c    rueidis.DedicatedClient
	end  func()
	standing
	down bool // it says that the cluster is down: it serves no key
}

// standing is what a node is. While it stays the same, the node's data do not go back.
type standing struct {
	primary  bool
	history  string // of replication: a promotion and a start change it
	promoted bool   // since it was started; unknown after an hour without replicas
	epoch    int64  // of its claim on the slots; 0 without a cluster
	slots    slots
}

// Hold asks all nodes at once what they are, and keeps the connections until Release, which must be called.
func (c *Client) Hold(ctx context.Context) *Nodes {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	h := &Nodes{used: c.Incarnation()}
	var nodes []*node
	var errs []error
	var mu sync.Mutex // guards both
	var all sync.WaitGroup
	for addr, client := range c.Client.Nodes() {
		all.Go(func() {
			conn, end := client.Dedicate()
			n := &node{addr: addr, c: conn, end: end}
			err := n.ask(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				end()
				errs = append(errs, err)
				return
			}
			nodes = append(nodes, n)
		})
	}
	all.Wait()
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.addr, b.addr) })
	h.away = errors.Join(errs...)
	h.primaries, h.others = primariesOf(nodes)
	return h
}

// Release gives the connections back.
func (h *Nodes) Release() {
	for _, n := range slices.Concat(h.primaries, h.others) {
		n.end()
	}
}

// Away says why some nodes could not be asked. Nil: all were asked, and at least one is a primary.
func (h *Nodes) Away() error {
	if h.away == nil && len(h.primaries) == 0 {
		return errors.New("redis: no node is a primary")
	}
	return h.away
}

// primariesOf tells primaries from other nodes. Where two claim a slot, the one with the lower epoch loses it. Where the epochs are
// equal both lose it: the nodes are about to settle that.
func primariesOf(nodes []*node) (primaries, others []*node) {
	claims := make([]slots, len(nodes))
	for i, n := range nodes {
		claims[i] = n.slots
	}
	for i, n := range nodes {
		for j, m := range nodes {
			if i != j && n.primary && m.primary && m.epoch >= n.epoch {
				n.slots.remove(claims[j])
			}
		}
		if n.primary && (n.slots != slots{} || claims[i] == slots{}) {
			primaries = append(primaries, n)
		} else {
			others = append(others, n)
		}
	}
	return primaries, others
}

// ask asks a node what it is.
func (n *node) ask(ctx context.Context) error {
	b := n.c.B()
	r := n.c.DoMulti(ctx, b.Info().Section("replication").Build(), b.ClusterNodes().Build(), b.ClusterInfo().Build())
	info, err := r[0].ToString()
	if err != nil {
		return fmt.Errorf("redis %s: INFO replication: %w", n.addr, err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	n.standing = standing{primary: fields["role"] == "master", history: fields["master_replid"], slots: everySlot}
	n.promoted = strings.Trim(fields["master_replid2"], "0") != ""
	table, err := r[1].ToString()
	if _, refused := rueidis.IsRedisErr(err); refused {
		return nil // no cluster
	}
	if err != nil {
		return fmt.Errorf("redis %s: CLUSTER NODES: %w", n.addr, err)
	}
	state, err := r[2].ToString()
	if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
		return fmt.Errorf("redis %s: CLUSTER INFO: %w", n.addr, err)
	}
	n.down = strings.Contains(state, "cluster_state:fail")
	if n.epoch, n.slots, err = claim(table); err != nil {
		return fmt.Errorf("redis %s: CLUSTER NODES: %w", n.addr, err)
	}
	return nil
}

// claim reads a node's own line of the cluster's table: the slots that it claims, and the config epoch of the claim.
func claim(table string) (epoch int64, claimed slots, err error) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.Contains(f[2], "myself") {
			continue
		}
		if epoch, err = strconv.ParseInt(f[6], 10, 64); err != nil {
			return 0, claimed, err
		}
		for _, word := range f[8:] {
			if strings.HasPrefix(word, "[") { // a slot on its way: it is this node's until it has arrived
				continue
			}
			first, last, ok := strings.Cut(word, "-")
			if !ok {
				last = first
			}
			from, err1 := strconv.ParseUint(first, 10, 14)
			to, err2 := strconv.ParseUint(last, 10, 14)
			if err := errors.Join(err1, err2); err != nil {
				return 0, claimed, err
			}
			for ; from <= to; from++ {
				claimed.add(from)
			}
		}
		return epoch, claimed, nil
	}
	return 0, claimed, errors.New("the node is not in its own table")
}

// Lost returns the primaries that lack the scripts of the incarnation in use, or have been promoted since they got them; nil
// where there are none. It makes nodes that are no primaries forget the scripts. An error says which nodes could not be asked; it
// may come beside a Subset.
func (h *Nodes) Lost(ctx context.Context) (*Subset, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	errs := []error{h.Away()}
	for _, n := range h.others {
		has, err := n.has(ctx, h.used.Reserve, h.used.Lock)
		if err == nil && (has[0] || has[1]) {
			err = n.c.Do(ctx, n.c.B().ScriptFlush().Build()).Error()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("redis %s, which is no primary: forget the scripts: %w", n.addr, err))
		}
	}
	s := &Subset{Nodes: h}
	for _, n := range h.primaries {
		witness := lua.Witness(h.used.Name, n.history)
		has, err := n.has(ctx, h.used.Reserve, witness)
		switch {
		case err != nil:
			errs = append(errs, err)
		case has[0] && (has[1] || !n.promoted):
			if !has[1] { // its first replica came, or its last one has been away for an hour: that changes the history, too
				errs = append(errs, n.load(ctx, witness))
			}
		case n.down:
			errs = append(errs, fmt.Errorf("redis %s: it was started anew or promoted, and the cluster is down there", n.addr))
		default:
			s.nodes = append(s.nodes, n)
		}
	}
	if len(s.nodes) == 0 {
		s = nil
	}
	return s, errors.Join(errs...)
}

// Lacking returns the primaries that do not have a script; nil where all do. The error is as Lost's.
func (h *Nodes) Lacking(ctx context.Context, script lua.Script) (*Subset, error) {
	_, lacking, err := h.split(ctx, script)
	if len(lacking) == 0 {
		return nil, err
	}
	return &Subset{h, lacking}, err
}

// AnyHas reports whether some primary has a script. Where none does, the error says why some cannot be asked.
func (h *Nodes) AnyHas(ctx context.Context, script lua.Script) (bool, error) {
	having, _, err := h.split(ctx, script)
	if len(having) > 0 {
		return true, nil
	}
	return false, err
}

func (h *Nodes) split(ctx context.Context, script lua.Script) (having, lacking []*node, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	errs := []error{h.Away()}
	for _, n := range h.primaries {
		has, err := n.has(ctx, script)
		switch {
		case err != nil:
			errs = append(errs, err)
		case has[0]:
			having = append(having, n)
		default:
			lacking = append(lacking, n)
		}
	}
	return having, lacking, errors.Join(errs...)
}

func (n *node) has(ctx context.Context, scripts ...lua.Script) ([]bool, error) {
	shas := make([]string, len(scripts))
	for i, s := range scripts {
		shas[i] = s.SHA
	}
	has, err := n.c.Do(ctx, n.c.B().ScriptExists().Sha1(shas...).Build()).AsBoolSlice()
	if err == nil && len(has) != len(scripts) {
		err = fmt.Errorf("%d answers", len(has))
	}
	if err != nil {
		return nil, fmt.Errorf("redis %s: SCRIPT EXISTS: %w", n.addr, err)
	}
	return has, nil
}

func (n *node) load(ctx context.Context, scripts ...lua.Script) error {
	for _, s := range scripts {
		if err := n.c.Do(ctx, n.c.B().ScriptLoad().Script(s.Source).Build()).Error(); err != nil {
			return fmt.Errorf("redis %s: SCRIPT LOAD: %w", n.addr, err)
		}
	}
	return nil
}

// unchanged asks a node again, and fails unless it is what it was.
func (n *node) unchanged(ctx context.Context, primaries []*node) error {
	now := &node{addr: n.addr, c: n.c}
	if err := now.ask(ctx); err != nil {
		return err
	}
	for _, m := range primaries {
		if m != n && m.epoch >= now.epoch {
			now.slots.remove(m.slots)
		}
	}
	if now.standing != n.standing {
		return fmt.Errorf("redis %s: its role, its history or its slots changed meanwhile", n.addr)
	}
	return nil
}

// Subset is some of the primaries.
type Subset struct {
	*Nodes
	nodes []*node
}

// Begin begins a new incarnation, for which it makes up a name. It loads sale_adopt.lua and then sale_reserve.lua into every
// primary, and sku_lock.lua into those that have it and are not lost, which this Subset is. Nobody calls the scripts before the
// name is in MySQL and the incarnation in use. Only for a reconciler, after it has closed the gate of every live sale of the lost
// primaries. An error: a primary is not what it was.
func (s *Subset) Begin(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	name = uuid.NewString()
	if len(s.primaries) == 0 {
		return "", s.Away()
	}
	for _, n := range s.primaries {
		scripts := []lua.Script{lua.SaleAdoptIn(name), lua.SaleReserveIn(name), lua.Witness(name, n.history)}
		has, err := n.has(ctx, s.used.Lock)
		if err != nil {
			return "", err
		}
		if has[0] && !slices.Contains(s.nodes, n) {
			scripts = append(scripts, lua.SKULockIn(name))
		}
		if err := n.load(ctx, scripts...); err != nil {
			return "", err
		}
	}
	for _, n := range s.primaries {
		if err := n.unchanged(ctx, s.primaries); err != nil {
			return "", err
		}
	}
	return name, nil
}

// Addrs returns the addresses of these nodes.
func (s *Subset) Addrs() []string {
	addrs := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		addrs[i] = n.addr
	}
	return addrs
}

// Unchanged fails unless these nodes are what they were.
func (s *Subset) Unchanged(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for _, n := range s.nodes {
		if err := n.unchanged(ctx, s.primaries); err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether a key's slot is on these nodes.
func (s *Subset) Has(key string) bool { return s.of(key) != nil }

// Conn returns the connection that is held to the node that has a key's slot; nil where none of these has it.
func (s *Subset) Conn(key string) rueidis.CoreClient {
	if n := s.of(key); n != nil {
		return n.c
	}
	return nil
}

func (s *Subset) of(key string) *node {
	for _, n := range s.nodes {
		if n.slots.has(Slot(key)) {
			return n
		}
	}
	return nil
}

// Exists returns those of the keys that are on these nodes and exist.
func (s *Subset) Exists(ctx context.Context, keys []string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands, asked := map[*node]rueidis.Commands{}, map[*node][]string{}
	for _, key := range keys {
		if n := s.of(key); n != nil {
			commands[n], asked[n] = append(commands[n], n.c.B().Exists().Key(key).Build()), append(asked[n], key)
		}
	}
	found := map[string]bool{}
	for n, cmds := range commands {
		for i, r := range n.c.DoMulti(ctx, cmds...) {
			exists, err := r.AsBool()
			if err != nil {
				return nil, fmt.Errorf("redis %s: EXISTS: %w", n.addr, err)
			}
			found[asked[n][i]] = exists
		}
	}
	return found, nil
}

// Unlink removes groups of keys, the keys of a group in one slot.
func (s *Subset) Unlink(ctx context.Context, groups ...[]string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands := map[*node]rueidis.Commands{}
	for _, keys := range groups {
		n := s.of(keys[0])
		if n == nil {
			return fmt.Errorf("%s is on none of these nodes", keys[0])
		}
		commands[n] = append(commands[n], n.c.B().Unlink().Key(keys...).Build())
	}
	for n, cmds := range commands {
		for _, r := range n.c.DoMulti(ctx, cmds...) {
			if err := r.Error(); err != nil {
				return fmt.Errorf("redis %s: UNLINK: %w", n.addr, err)
			}
		}
	}
	return nil
}

// Load loads a script into these nodes, unless one of them is not what it was.
func (s *Subset) Load(ctx context.Context, script lua.Script) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for _, n := range s.nodes {
		if err := n.unchanged(ctx, s.primaries); err != nil {
			return err
		}
		if err := n.load(ctx, script); err != nil {
			return err
		}
	}
	return nil
}

// AllReserve reports whether every primary has the sale_reserve.lua of the incarnation in use. An error says which cannot be asked.
func (c *Client) AllReserve(ctx context.Context) (bool, error) {
	h := c.Hold(ctx)
	defer h.Release()
	lacking, err := h.Lacking(ctx, h.used.Reserve)
	return lacking == nil && err == nil, err
}

// AnyReserves reports whether some primary has the sale_reserve.lua of the incarnation in use.
func (c *Client) AnyReserves(ctx context.Context) (bool, error) {
	h := c.Hold(ctx)
	defer h.Release()
	return h.AnyHas(ctx, h.used.Reserve)
}

// Begin begins a new incarnation, sku_lock.lua included, and uses it without asking MySQL. Only for the sole user of a Redis.
func (c *Client) Begin(ctx context.Context) error {
	h := c.Hold(ctx)
	defer h.Release()
	all := &Subset{h, h.primaries}
	name, err := all.Begin(ctx)
	if err != nil {
		return err
	}
	c.Use(name)
	return all.Load(ctx, lua.SKULockIn(name))
}

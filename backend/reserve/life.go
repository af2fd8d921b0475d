package reserve

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

// A life is a name under which sale_reserve.lua, sale_adopt.lua and sku_lock.lua are loaded into Redis's primaries, and nowhere else. MySQL has
// the newest name, and every process calls the scripts of that one alone. The rule is: a primary that knows the newest life's scripts
// has, for each of its sales, everything that was decided since, or the sale was closed since.
//
// It holds because of how a node gets to know a script. Redis neither writes scripts down nor replicates them. So a node that was
// started anew, or a replica that was promoted, knows none: its data may be older, and its gates open. Such a primary is lost. The
// gates of its sales are closed, over the very connection on which it said that it is a primary. Then a new life begins: its
// scripts are loaded into every primary, over the connections on which each was asked. A node that was restarted meanwhile has
// lost its connection; one that was demoted says so, or has another replication history, when it is asked once more at the end. Only
// then the name goes to MySQL. The sales of primaries that knew the old life are not closed: their data never went back.
//
// A node that is no primary any more keeps the scripts that it knows. The new life makes them useless. Until then, and where no life
// began, because nobody looked, two more things hold. A node that is no primary is made to forget its scripts. And beside the
// scripts a primary is given its witness, which names its replication history. A promotion changes the history. So a primary that
// knows the scripts but has been promoted since is lost as well.
//
// Which nodes are primaries they say themselves. Where two claim a slot, the one with the higher config epoch has it: the other was
// superseded and does not know yet. It is no primary once all of its slots are claimed by others.

// Life is Redis's nodes as they are now, each held by a connection: what is asked and done goes over that, so a node that is
// restarted meanwhile answers nothing more.
type Life struct {
	store     *Store
	believed  *life
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

// Life asks every node, all at once, what it is. End must be called.
func (s *Store) Life(ctx context.Context) *Life {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	l := &Life{store: s, believed: s.life.Load()}
	var nodes []*node
	var errs []error
	var mu sync.Mutex // guards both
	var all sync.WaitGroup
	for addr, client := range s.client.Nodes() {
		all.Go(func() {
			c, end := client.Dedicate()
			n := &node{addr: addr, c: c, end: end}
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
	l.away = errors.Join(errs...)
	l.primaries, l.others = sorted(nodes)
	return l
}

// End lets go.
func (l *Life) End() {
	for _, n := range slices.Concat(l.primaries, l.others) {
		n.end()
	}
}

// Away says why nodes could not be asked, nil where all were.
func (l *Life) Away() error {
	if l.away == nil && len(l.primaries) == 0 {
		return errors.New("redis: no node is a primary")
	}
	return l.away
}

// sorted parts nodes by whether they are primaries. Where two claim a slot, the one with the lower epoch loses it, and both where the
// epochs are equal: the nodes are about to settle that.
func sorted(nodes []*node) (primaries, others []*node) {
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

// claim reads which slots a node says it has, and by which epoch, from its own line of the cluster's table.
func claim(table string) (epoch int64, has slots, err error) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.Contains(f[2], "myself") {
			continue
		}
		if epoch, err = strconv.ParseInt(f[6], 10, 64); err != nil {
			return 0, has, err
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
				return 0, has, err
			}
			for ; from <= to; from++ {
				has[from/64] |= 1 << (from % 64)
			}
		}
		return epoch, has, nil
	}
	return 0, has, errors.New("the node is not in its own table")
}

// Lost returns a Part of Redis for the primaries that do not know the sale_reserve.lua of the life that is believed in, or know it from
// before they were promoted; nil where there are none. Nodes that are no primaries are made to forget it. An error is of nodes that
// cannot be asked, and beside a Part.
func (l *Life) Lost(ctx context.Context) (*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	errs := []error{l.Away()}
	for _, n := range l.others {
		known, err := n.knows(ctx, l.believed.reserve, l.believed.reduce)
		if err == nil && (known[0] || known[1]) {
			err = n.c.Do(ctx, n.c.B().ScriptFlush().Build()).Error()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("redis %s, which is no primary: forget the scripts: %w", n.addr, err))
		}
	}
	p := &Part{Life: l}
	for _, n := range l.primaries {
		witness := lua.Witness(l.believed.name, n.history)
		known, err := n.knows(ctx, l.believed.reserve, witness)
		switch {
		case err != nil:
			errs = append(errs, err)
		case known[0] && (known[1] || !n.promoted):
			if !known[1] { // its first replica came, or its last one has been away for an hour: that changes the history, too
				errs = append(errs, n.load(ctx, witness))
			}
		case n.down:
			errs = append(errs, fmt.Errorf("redis %s: it was started anew or promoted, and the cluster is down there", n.addr))
		default:
			p.nodes = append(p.nodes, n)
		}
	}
	if len(p.nodes) == 0 {
		p = nil
	}
	return p, errors.Join(errs...)
}

// Lacking returns a Part for the primaries that do not know a script; nil where all do. The error is as Lost's.
func (l *Life) Lacking(ctx context.Context, script lua.Script) (*Part, error) {
	_, lacking, err := l.asked(ctx, script)
	if len(lacking) == 0 {
		return nil, err
	}
	return &Part{l, lacking}, err
}

// Some reports whether any primary knows a script. Where none does, the error says why some cannot be asked.
func (l *Life) Some(ctx context.Context, script lua.Script) (bool, error) {
	knowing, _, err := l.asked(ctx, script)
	if len(knowing) > 0 {
		return true, nil
	}
	return false, err
}

func (l *Life) asked(ctx context.Context, script lua.Script) (knowing, lacking []*node, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	errs := []error{l.Away()}
	for _, n := range l.primaries {
		known, err := n.knows(ctx, script)
		switch {
		case err != nil:
			errs = append(errs, err)
		case known[0]:
			knowing = append(knowing, n)
		default:
			lacking = append(lacking, n)
		}
	}
	return knowing, lacking, errors.Join(errs...)
}

func (n *node) knows(ctx context.Context, scripts ...lua.Script) ([]bool, error) {
	shas := make([]string, len(scripts))
	for i, s := range scripts {
		shas[i] = s.SHA
	}
	known, err := n.c.Do(ctx, n.c.B().ScriptExists().Sha1(shas...).Build()).AsBoolSlice()
	if err == nil && len(known) != len(scripts) {
		err = fmt.Errorf("%d answers", len(known))
	}
	if err != nil {
		return nil, fmt.Errorf("redis %s: SCRIPT EXISTS: %w", n.addr, err)
	}
	return known, nil
}

func (n *node) load(ctx context.Context, scripts ...lua.Script) error {
	for _, s := range scripts {
		if err := n.c.Do(ctx, n.c.B().ScriptLoad().Script(s.Source).Build()).Error(); err != nil {
			return fmt.Errorf("redis %s: SCRIPT LOAD: %w", n.addr, err)
		}
	}
	return nil
}

// same asks a node again, and fails unless it is what it was.
func (n *node) same(ctx context.Context, all []*node) error {
	now := &node{addr: n.addr, c: n.c}
	if err := now.ask(ctx); err != nil {
		return err
	}
	for _, m := range all {
		if m != n && m.epoch >= now.epoch {
			now.slots.remove(m.slots)
		}
	}
	if now.standing != n.standing {
		return fmt.Errorf("redis %s: its role, its history or its slots changed meanwhile", n.addr)
	}
	return nil
}

// Arm gives the primaries a life whose name no other has: it loads sale_adopt.lua and then sale_reserve.lua into each, and sku_lock.lua into those
// that are not lost and know it. Only for a reconciler, after it has closed the gate of every live sale of the lost ones.
// Nobody calls the scripts before the life is believed in. An error: a primary is not what it was.
func (l *Life) Arm(ctx context.Context, lost *Part) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	name = uuid.NewString()
	if len(l.primaries) == 0 {
		return "", l.Away()
	}
	for _, n := range l.primaries {
		scripts := []lua.Script{lua.SaleAdoptIn(name), lua.SaleReserveIn(name), lua.Witness(name, n.history)}
		known, err := n.knows(ctx, l.believed.reduce)
		if err != nil {
			return "", err
		}
		if known[0] && !slices.Contains(lost.nodes, n) {
			scripts = append(scripts, lua.SKULockIn(name))
		}
		if err := n.load(ctx, scripts...); err != nil {
			return "", err
		}
	}
	for _, n := range l.primaries {
		if err := n.same(ctx, l.primaries); err != nil {
			return "", err
		}
	}
	return name, nil
}

// Part is some primaries of a Life.
type Part struct {
	*Life
	nodes []*node
}

// Addrs are where they are.
func (p *Part) Addrs() []string {
	addrs := make([]string, len(p.nodes))
	for i, n := range p.nodes {
		addrs[i] = n.addr
	}
	return addrs
}

// Same fails unless these nodes are what they were.
func (p *Part) Same(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for _, n := range p.nodes {
		if err := n.same(ctx, p.primaries); err != nil {
			return err
		}
	}
	return nil
}

// Present returns which of sales are on these nodes and have a state there.
func (p *Part) Present(ctx context.Context, sales []int64) (map[int64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands, asked := map[*node]rueidis.Commands{}, map[*node][]int64{}
	for _, sale := range sales {
		if n := p.of(p.store.state(sale)); n != nil {
			commands[n], asked[n] = append(commands[n], n.c.B().Exists().Key(p.store.state(sale)).Build()), append(asked[n], sale)
		}
	}
	present := map[int64]bool{}
	for n, cmds := range commands {
		for i, r := range n.c.DoMulti(ctx, cmds...) {
			there, err := r.AsBool()
			if err != nil {
				return nil, fmt.Errorf("redis %s: EXISTS: %w", n.addr, err)
			}
			present[asked[n][i]] = there
		}
	}
	return present, nil
}

// Has reports whether a key is on these nodes.
func (p *Part) Has(key string) bool { return p.of(key) != nil }

// HasSale reports whether a sale is on these nodes.
func (p *Part) HasSale(sale int64) bool { return p.Has(p.store.state(sale)) }

func (p *Part) of(key string) *node {
	for _, n := range p.nodes {
		if n.slots.has(Slot(key)) {
			return n
		}
	}
	return nil
}

// Shut is the Store's, over the connection that is held.
func (p *Part) Shut(ctx context.Context, sale, token int64) (present bool, err error) {
	n := p.of(p.store.state(sale))
	if n == nil {
		return false, fmt.Errorf("close sale %d: it is on none of these nodes", sale)
	}
	return p.store.shut(ctx, n.c, sale, token)
}

// Unlink takes keys of one slot each out of Redis, over the connections that are held.
func (p *Part) Unlink(ctx context.Context, keys ...[]string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands := map[*node]rueidis.Commands{}
	for _, k := range keys {
		n := p.of(k[0])
		if n == nil {
			return fmt.Errorf("%s is on none of these nodes", k[0])
		}
		commands[n] = append(commands[n], n.c.B().Unlink().Key(k...).Build())
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

// Teach loads a script into these nodes, unless one of them is not what it was.
func (p *Part) Teach(ctx context.Context, script lua.Script) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for _, n := range p.nodes {
		if err := n.same(ctx, p.primaries); err != nil {
			return err
		}
		if err := n.load(ctx, script); err != nil {
			return err
		}
	}
	return nil
}

// Armed reports whether every primary knows the sale_reserve.lua of the life that is believed in, and can be asked.
func (s *Store) Armed(ctx context.Context) (bool, error) {
	l := s.Life(ctx)
	defer l.End()
	lacking, err := l.Lacking(ctx, l.believed.reserve)
	return lacking == nil && err == nil, err
}

// Reserves reports whether some primary knows the sale_reserve.lua of the life that is believed in.
func (s *Store) Reserves(ctx context.Context) (bool, error) {
	l := s.Life(ctx)
	defer l.End()
	return l.Some(ctx, l.believed.reserve)
}

// Arm gives Redis a new life and believes in it, whatever MySQL has, and loads its sku_lock.lua. Only for the sole user of a store.
func (s *Store) Arm(ctx context.Context) error {
	l := s.Life(ctx)
	defer l.End()
	all := &Part{l, l.primaries}
	name, err := l.Arm(ctx, all)
	if err != nil {
		return err
	}
	s.Believe(name)
	return all.Teach(ctx, lua.SKULockIn(name))
}

// slots is a set of hash slots.
type slots [1 << 14 / 64]uint64

var everySlot = func() (s slots) {
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}()

func (s *slots) has(slot uint16) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

func (s *slots) remove(other slots) {
	for i := range s {
		s[i] &^= other[i]
	}
}

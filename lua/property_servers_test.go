//go:build servers

package lua_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"floodgate.internal/lua"
)

// The property: whatever a few clients do to a sale, in turns or at once, every answer of the scripts and all that they leave
// in Redis is what the model says. Calls at once must be like calls in turns, in some order that keeps to what came after what
// (linearizability: Herlihy and Wing, 1990; the search for that order is porcupine's, exact).

// call is one call of a script, or of what stands for the rest of the world: read (a relay), wipe (Redis is restarted empty),
// flush (Redis forgets its scripts), look (all of the sale, in one moment).
type call struct {
	name string
	args []string
}

func (c call) String() string { return fmt.Sprintf("%s %q", c.name, c.args) }

// program is what some clients do to one sale.
type program struct {
	presses  []press // what orders are asked for: a press is sent once, or again and again, by anybody
	units    []int64 // of operators' changes, by intent
	first    reconciliation
	clients  int
	commands []command
}

// GoString is what rapid prints of a program; the calls that it leads to say all.
func (p program) GoString() string {
	return fmt.Sprintf("%d clients, %d commands, presses %+v", p.clients, len(p.commands), p.presses)
}

// reconciliation is a load with all its steps.
type reconciliation struct {
	orders     []int // presses that are live
	outbox     bool  // so are all whose entries the reconciler knows
	keys       []int // presses whose Idempotency-Keys are known besides
	intents    []int
	spare      int64 // units that no order holds
	place      int64 // the newest in the standby line
	definition []string
	late       int // a press whose order a consumer still holds, and adopts
	steps      int // how many of its calls are sent before the reconciler dies
}

// command is what one client does next; not every field means something to every kind.
type command struct {
	client, turns int    // in turns: how many calls the client sends now, of those that it has to send
	kind          string // of kinds
	press, intent int
	presses       []int
	own           bool  // the press is one whose order this client got
	off           int64 // by which the epoch is wrong
	place         int64 // in the standby line; 0: what this client last saw
	idle          int64 // milliseconds
	definition    []string
	load          reconciliation
}

// roll draws one of some, each as likely as another: rapid's own draws prefer the ends. It shrinks to the first.
func roll[V any](t *rapid.T, label string, some ...V) V {
	n := 0
	for _, bit := range rapid.SliceOfN(rapid.Bool(), 10, 10).Draw(t, label) {
		n *= 2
		if bit {
			n++
		}
	}
	return some[n*len(some)>>10]
}

// rarely is the first of two, but for one time in n.
func rarely[V any](t *rapid.T, label string, n int, usual, other V) V {
	return roll(t, label, append(slices.Repeat([]V{usual}, n-1), other)...)
}

func drawPress(t *rapid.T) press {
	return press{uid: roll(t, "uid", "ann", "bob", "cyd"), quantity: roll[int64](t, "quantity", 1, 1, 1, 2, 3), key: roll(t, "key", "", "", "k", "a b%"), tr: roll(t, "trace", "", "00-abc"), line: rarely(t, "line", 3, "", lua.ForLine),
		most: roll[int64](t, "most", 0, 1, 2)}
}

// drawDefinition is starts, ends, limit, paused, closed, later, version.
func drawDefinition(t *rapid.T) []string {
	return []string{n(rarely(t, "starts", 20, longAgo, farAway)), n(rarely(t, "ends", 20, farAway, longAgo)), n(roll[int64](t, "limit", 1, 2, 3, 4)),
		rarely(t, "paused", 20, "0", "1"), rarely(t, "closed", 20, "0", "1"),
		roll(t, "later", "", "", fmt.Sprintf("%d:2", longAgo), fmt.Sprintf("%d:1 %d:2", longAgo, farAway), fmt.Sprintf("%d:1 %d:4", farAway, farAway)),
		n(rapid.Int64Range(1, 12).Draw(t, "version"))}
}

// kinds are those of a command, each as often as it is to come.
var kinds = slices.Concat(slices.Repeat([]string{"reserve"}, 30), slices.Repeat([]string{"release"}, 12), slices.Repeat([]string{"adopt", "retire", "again", "read", "adjust", "load", "open"}, 4),
	slices.Repeat([]string{"define", "sweep", "ask", "wait", "rest"}, 2), []string{"look", "wipe", "flush"})

// drawProgram draws programs of some thirty commands.
var drawProgram = rapid.Custom(func(t *rapid.T) program {
	var p program
	p.presses = rapid.SliceOfN(rapid.Custom(drawPress), 4, 12).Draw(t, "presses")
	for i := range p.presses {
		p.presses[i].order = fmt.Sprintf("o%02d", i)
	}
	p.units = rapid.SliceOfN(rapid.Int64Range(-3, 4), 3, 3).Draw(t, "units")
	press := rapid.Custom(func(t *rapid.T) int { return roll(t, "press", ids(len(p.presses))...) })
	some := rapid.SliceOfNDistinct(press, 0, 3, rapid.ID)
	load := rapid.Custom(func(t *rapid.T) reconciliation {
		return reconciliation{orders: some.Draw(t, "orders"), outbox: rapid.Bool().Draw(t, "outbox"), keys: some.Draw(t, "keys"), intents: roll(t, "intents", nil, []int{0}, []int{1, 2}),
			spare: roll[int64](t, "spare", 0, 2, 4, 6, 8, 10), place: roll[int64](t, "place", 0, 0, 0, 2), definition: drawDefinition(t), late: press.Draw(t, "late"), steps: rarely(t, "dies", 5, whole, 1+rapid.IntRange(0, whole-2).Draw(t, "at"))}
	})
	p.first = load.Draw(t, "first")
	p.first.steps = whole
	p.clients = rapid.IntRange(2, 8).Draw(t, "clients")
	next := rapid.Custom(func(t *rapid.T) command {
		c := command{client: roll(t, "client", ids(p.clients)...), turns: 1 + rapid.IntRange(0, whole-1).Draw(t, "turns"), kind: roll(t, "kind", kinds...)}
		switch c.kind {
		case "reserve", "adopt", "release":
			c.press, c.own, c.off = press.Draw(t, "press"), rapid.Bool().Draw(t, "own"), rarely(t, "off", 10, 0, roll[int64](t, "by", 1, -1))
		case "retire":
			c.presses = some.Draw(t, "presses")
		case "adjust":
			c.intent = roll(t, "intent", ids(len(p.units))...)
		case "define":
			c.definition = drawDefinition(t)
		case "load", "wipe":
			c.load = load.Draw(t, "load")
		case "ask":
			c.press = press.Draw(t, "press")
		case "wait", "rest":
			c.place = rapid.Int64Range(0, 4).Draw(t, "place")
		case "sweep":
			c.presses, c.idle = some.Draw(t, "keep"), rarely[int64](t, "idle", 4, 0, 3600000)
		}
		return c
	})
	t.Repeat(map[string]func(*rapid.T){"next": func(t *rapid.T) { p.commands = append(p.commands, next.Draw(t, "command")) }})
	return p
})

// ids are 0 to n-1.
func ids(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// scene is one sale on which a program runs.
type scene struct {
	program
	scripts map[string]lua.Script
	inTwo   bool // reserve is two commands, with a gap between: a planted bug
	keys    map[string][]string
	callers []*client
}

// client is one connection, and what it knows of the sale from the answers that it got.
type client struct {
	*scene
	id      int
	conn    rueidis.DedicatedClient
	waiting []call
	last    call // that may be sent again
	token   int64
	epoch   int64
	place   int64          // in the standby line
	entries map[int]string // by press
}

// plan appends the calls of a command.
func (c *client) plan(what command) {
	add := func(name string, args ...string) { c.waiting = append(c.waiting, call{name, args}) }
	i := what.press
	if what.own {
		i = c.mine(i)
	}
	p := c.presses[i]
	switch what.kind {
	case "reserve":
		add("reserve", n(c.epoch+what.off), p.uid, n(p.quantity), p.order, p.key, p.tr, p.line, n(p.most))
	case "ask":
		add("standby", lua.StepLook, p.uid)
	case "wait":
		add("standby", lua.StepWait, n(what.place))
	case "rest":
		add("standby", lua.StepRest, n(cmp.Or(what.place, c.place)))
	case "adopt":
		c.waiting = append(c.waiting, c.adopt(i, c.epoch+what.off))
	case "release":
		add("release", p.order)
	case "retire":
		ids := []string{group, "1-1"} // the one was never there
		for _, i := range what.presses {
			if id := c.entry(c.mine(i)); id != nowhere {
				ids = append(ids, id)
			}
		}
		add("retire", ids...)
	case "adjust":
		add("adjust", fmt.Sprint(what.intent), n(c.units[what.intent]))
	case "define":
		add("define", append([]string{what.definition[6]}, what.definition[:6]...)...)
	case "wipe":
		add("wipe")
		c.reconcile(what.load)
	case "load":
		c.reconcile(what.load)
	case "open":
		add("open", n(c.token))
	case "again":
		if c.last.name != "" {
			c.waiting = append(c.waiting, c.last)
		}
	case "sweep":
		keep := []string{group, n(what.idle)}
		for _, i := range what.presses {
			keep = append(keep, relay(i))
		}
		add("sweep", keep...)
	case "read":
		add("read", relay(c.id))
	default:
		add(what.kind)
	}
}

func (c *client) adopt(press int, epoch int64) call {
	p := c.presses[press]
	return call{"adopt", []string{n(epoch), p.order, p.uid, n(p.quantity), "1", p.key, n(longAgo + int64(press)), p.tr, group}}
}

const group = "orders"

func relay(i int) string { return fmt.Sprint("relay", i) }

// mine is a press whose order this client got, if it got any, and else the press itself.
func (c *client) mine(press int) int {
	if known := slices.Sorted(maps.Keys(c.entries)); len(known) > 0 {
		return known[press%len(known)]
	}
	return press
}

// entry is the entry of a press's order, as far as this client knows.
func (c *client) entry(press int) string {
	if id, ok := c.entries[press]; ok {
		return id
	}
	return nowhere
}

// nowhere is the entry of an order that stands in no outbox, as load has it.
const nowhere = "-"

// whole is how many calls a reconciliation is, the last of them one too many.
const whole = 10

// reconcile plans a load with a token that nobody else uses.
func (c *client) reconcile(r reconciliation) {
	c.token += int64(c.clients) - (c.token-int64(c.id))%int64(c.clients)
	token := n(c.token)
	var orders, keys, intents []string
	taken, units := map[string]int64{}, int64(0)
	known := func(p press) {
		if p.key != "" {
			keys = append(keys, p.uid+":"+p.key, p.order+" "+n(p.quantity))
		}
	}
	live := r.orders
	if r.outbox {
		live = slices.AppendSeq(slices.Clone(live), maps.Keys(c.entries))
		slices.Sort(live)
		live = slices.Compact(live)
	}
	for _, i := range live {
		p := c.presses[i]
		var slots []int64
		for range p.quantity {
			taken[p.uid]++
			slots = append(slots, taken[p.uid])
		}
		units += p.quantity
		orders = append(orders, p.order, p.uid, n(p.quantity), join(slots), c.entry(i), n(longAgo+int64(i)), p.key)
		known(p)
	}
	ended := map[string]int64{}
	for _, i := range r.keys {
		known(c.presses[i])
		ended[c.presses[i].uid]++
	}
	for _, uid := range slices.Sorted(maps.Keys(ended)) {
		keys = append(keys, uid, n(ended[uid]))
	}
	for _, i := range r.intents {
		intents = append(intents, fmt.Sprint(i))
	}
	calls := []call{{"close", []string{token}}, {"load", []string{token, lua.StepBegin}}}
	for _, part := range [][]string{orders[:len(orders)/14*7], orders[len(orders)/14*7:]} {
		calls = append(calls, call{"load", append([]string{token, lua.StepOrders}, part...)})
	}
	calls = append(calls, call{"load", append([]string{token, lua.StepKeys}, keys...)}, call{"load", append([]string{token, lua.StepIntent}, intents...)},
		call{"load", append([]string{token, lua.StepFinish, n(c.epoch + 1), n(r.spare), n(r.spare + units)}, append(r.definition[:7:7], n(r.place))...)}, c.adopt(c.mine(r.late), c.epoch+1), call{"open", []string{token}}, call{"open", []string{token}})
	c.waiting = append(c.waiting, calls[:r.steps]...)
}

// learn remembers what an answer says. A load's steps before the last are not for sending again: a reconciler begins anew.
func (c *client) learn(did call, answer []string) {
	if did.name != "load" || did.args[1] == lua.StepFinish {
		c.last = did
	}
	switch first := lua.Answer(part(answer, 0)); {
	case first == lua.StaleEpoch && len(answer) > 1:
		c.epoch = number(answer[1])
	case did.name == "load" && did.args[1] == lua.StepFinish && first == lua.OK:
		c.epoch = number(did.args[2])
	case first == lua.Lost && len(answer) > 1:
		c.token = max(c.token, number(answer[1]))
	case first == lua.Reserved:
		c.know(did.args[3], part(answer, 4))
	case first == lua.Adopted, first == lua.Present:
		c.know(did.args[1], part(answer, 1))
	}
}

// see remembers where in the outbox orders stand, and who was seen in the standby line.
func (c *client) see(now content) {
	c.place = number(now.State["standby"])
	for entry, fields := range now.Outbox {
		c.know(fields["id"], entry)
	}
}

func (c *client) know(order, entry string) {
	for i, p := range c.presses {
		if p.order == order {
			c.entries[i] = entry
		}
	}
}

// send makes a call on the client's own connection.
func (c *client) send(do call) (answer any, err error) {
	ctx := context.Background()
	k, b := c.keys, c.conn.B()
	switch do.name {
	case "look":
		return c.look()
	case "wipe":
		return words(lua.OK), c.conn.Do(ctx, b.Del().Key(slices.Concat(k["adopt"], k["adjust"], k["release"])...).Build()).Error()
	case "flush":
		return words(lua.OK), c.conn.Do(ctx, b.ScriptFlush().Build()).Error()
	case "read":
		outbox := k["retire"][0]
		r := c.conn.DoMulti(ctx, b.Multi().Build(), b.XgroupCreate().Key(outbox).Group(group).Id("0").Mkstream().Build(),
			b.XgroupCreateconsumer().Key(outbox).Group(group).Consumer(do.args[0]).Build(),
			b.Xreadgroup().Group(group, do.args[0]).Count(1).Streams().Key(outbox).Id(">").Build(), b.Exec().Build())
		all, err := r[4].ToArray()
		if err != nil {
			return nil, err
		}
		streams, err := all[2].AsXRead()
		if rueidis.IsRedisNil(err) {
			return words(), nil
		}
		if err != nil {
			return nil, err
		}
		return words(streams[outbox][0].ID), nil
	}
	s := sale{c: c.conn}
	var stock string
	if c.inTwo && do.name == "reserve" {
		stock, _ = c.conn.Do(ctx, b.Hget().Key(k["open"][0]).Field("stock").Build()).ToString()
	}
	got, err := s.try(c.scripts[do.name], k[do.name], do.args...)
	if err == nil && c.inTwo && got.Answer() == lua.Reserved {
		err = c.conn.Do(ctx, b.Hset().Key(k["open"][0]).FieldValue().FieldValue("stock", n(number(stock)-number(do.args[2]))).Build()).Error()
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		if e.IsNoScript() {
			return words(noScript), c.conn.Do(ctx, b.ScriptLoad().Script(c.scripts[do.name].Source).Build()).Error()
		}
		return words(failed), nil
	}
	return got, err
}

const noScript = "no script"

// look reads all of the sale in one moment.
func (c *client) look() (content, error) {
	k, b := c.keys, c.conn.B()
	outbox := k["retire"][0]
	state, orders, buyers, keys := k["reserve"][0], k["reserve"][1], k["reserve"][2], k["reserve"][3]
	all, err := c.conn.DoMulti(context.Background(), b.Multi().Build(), b.Hgetall().Key(state).Build(), b.Hgetall().Key(orders).Build(),
		b.Hgetall().Key(keys).Build(), b.Hgetall().Key(buyers).Build(), b.Smembers().Key(k["adjust"][1]).Build(),
		b.Xrange().Key(outbox).Start("-").End("+").Build(), b.Xpending().Key(outbox).Group(group).Start("-").End("+").Count(1000).Build(),
		b.XinfoConsumers().Key(outbox).Group(group).Build(), b.Lrange().Key(k["release"][4]).Start(0).Stop(-1).Build(), b.Exec().Build())[10].ToArray()
	if err != nil {
		return content{}, err
	}
	got := content{Buyers: map[string][]string{}, Outbox: map[string]map[string]string{}, Pending: map[string]string{}}
	gone, err := all[8].AsStrSlice()
	if err != nil {
		return got, err
	}
	got.Gone = append(got.Gone, gone...) // nil if there is none
	for i, m := range []*map[string]string{&got.State, &got.Orders, &got.Keys} {
		if *m, err = all[i].AsStrMap(); err != nil {
			return got, err
		}
	}
	held, err := all[3].AsStrMap()
	if err != nil {
		return got, err
	}
	for uid, value := range held {
		got.Buyers[uid] = strings.Split(value, ",")
		slices.Sort(got.Buyers[uid])
	}
	applied, err := all[4].AsStrSlice()
	if err != nil {
		return got, err
	}
	got.Applied = slices.Sorted(slices.Values(applied))
	entries, err := all[5].AsXRange()
	if err != nil {
		return got, err
	}
	for _, x := range entries {
		got.Outbox[x.ID] = x.FieldValues
	}
	if all[6].Error() != nil { // no group
		return got, nil
	}
	pending, err := all[6].ToArray()
	if err != nil {
		return got, err
	}
	for _, p := range pending {
		one, err := p.ToArray()
		if err != nil {
			return got, err
		}
		id, _ := one[0].ToString()
		if got.Pending[id], err = one[1].ToString(); err != nil {
			return got, err
		}
	}
	consumers, err := all[7].ToArray()
	if err != nil {
		return got, err
	}
	for _, m := range consumers {
		one, err := m.AsMap()
		if err != nil {
			return got, err
		}
		name := one["name"]
		text, err := name.ToString()
		if err != nil {
			return got, err
		}
		got.Consumers = append(got.Consumers, text)
	}
	slices.Sort(got.Consumers)
	return got, nil
}

var errBroken = errors.New("a contract is broken")

// judge moves the model on by a call, and says what is wrong with its answer; "" for nothing.
func judge(m *model, did call, answer any) string {
	switch got := answer.(type) {
	case content:
		want := m.content()
		if reflect.DeepEqual(want, got) { // much quicker than to say what differs
			return ""
		}
		return gocmp.Diff(want, got)
	case lua.Reply:
		if did.name == "flush" || slices.Equal(got, words(noScript)) {
			return "" // nothing is done
		}
		if want := m.step(did, got); !slices.Equal(got, want) {
			return fmt.Sprintf("want %q", want)
		}
	}
	return ""
}

// play makes a scene of a program and lets run play it; its keys are gone afterwards.
func play(p program, scripts map[string]lua.Script, run func(*scene) error) error {
	c, err := connect()
	if err != nil {
		return err
	}
	base := "p" + rand.Text() + ":{sale:7}:"
	state, orders, buyers, keys, outbox, applied, ended := base+"state", base+"orders", base+"buyers", base+"idem", base+"outbox", base+"applied", base+"gone"
	s := &scene{program: p, scripts: scripts, keys: map[string][]string{
		"reserve": {state, orders, buyers, keys, outbox}, "adopt": {state, orders, buyers, keys, outbox}, "release": {state, orders, buyers, keys, ended},
		"load": {state, orders, buyers, keys, applied}, "adjust": {state, applied}, "define": {state}, "standby": {state, buyers}, "close": {state}, "open": {state},
		"retire": {outbox}, "sweep": {outbox}}}
	for _, script := range scripts { // what an earlier program left is no part of this one
		if err := c.Do(context.Background(), c.B().ScriptLoad().Script(script.Source).Build()).Error(); err != nil {
			return err
		}
	}
	for i := range p.clients {
		conn, end := c.Dedicate()
		defer end()
		s.callers = append(s.callers, &client{scene: s, id: i, conn: conn, epoch: 1, entries: map[int]string{}})
	}
	s.callers[0].epoch = 0
	s.callers[0].reconcile(p.first)
	err = run(s)
	_, gone := s.callers[0].send(call{name: "wipe"})
	return errors.Join(err, gone)
}

// next sends the client's next call; one that Redis does not know the script of stays the next.
func (c *client) next() (did call, answer any, err error) {
	did = c.waiting[0]
	if answer, err = c.send(did); err != nil {
		return did, nil, fmt.Errorf("client %d, %v: %w", c.id, did, err)
	}
	switch got := answer.(type) {
	case content:
		c.see(got)
	case lua.Reply:
		if slices.Equal(got, words(noScript)) {
			return did, answer, nil
		}
		c.learn(did, got)
	}
	c.waiting = c.waiting[1:]
	return did, answer, nil
}

// inTurns plays a program call by call, and looks at all of the sale after each.
func (s *scene) inTurns(seen *tally) error {
	m := newModel()
	var trace strings.Builder
	turn := func(c *client) error {
		did, answer, err := c.next()
		if err != nil {
			return err
		}
		seen.count(did, answer)
		fmt.Fprintf(&trace, "client %d: %v -> %q\n", c.id, did, answer)
		wrong := judge(m, did, answer)
		if wrong == "" {
			wrong = m.broken()
		}
		if wrong == "" {
			now, err := c.look()
			if err != nil {
				return err
			}
			if wrong = judge(m, call{name: "look"}, now); wrong != "" {
				wrong = "Redis holds (-want, +got):\n" + wrong
			}
			c.see(now)
		}
		if wrong != "" {
			return fmt.Errorf("%w by the last of these calls:\n%s%s", errBroken, trace.String(), wrong)
		}
		return nil
	}
	turns := func(c *client, most int) error {
		for ; most > 0 && len(c.waiting) > 0; most-- {
			if err := turn(c); err != nil {
				return err
			}
		}
		return nil
	}
	if err := turns(s.callers[0], math.MaxInt); err != nil {
		return err
	}
	for _, what := range s.commands {
		c := s.callers[what.client]
		c.plan(what)
		if err := turns(c, what.turns); err != nil {
			return err
		}
	}
	for _, c := range s.callers {
		if err := turns(c, math.MaxInt); err != nil {
			return err
		}
	}
	return nil
}

// atOnce plays a program with every client going as fast as it can, and then looks at all of the sale: there must be an
// order of the calls, in which each comes after those that were answered before it was sent, that the model explains.
func (s *scene) atOnce(seen *tally) error {
	var clock atomic.Int64
	history := make([][]porcupine.Operation, s.program.clients)
	send := func(c *client) error {
		for len(c.waiting) > 0 {
			sent := clock.Add(1)
			did, answer, err := c.next()
			if err != nil {
				return err
			}
			answered := clock.Add(1)
			history[c.id] = append(history[c.id], porcupine.Operation{ClientId: c.id, Input: did, Output: answer, Call: sent, Return: answered})
			seen.count(did, answer)
			if answered > sent+1 {
				seen.overlapping.Add(1)
			}
		}
		return nil
	}
	if err := send(s.callers[0]); err != nil {
		return err
	}
	begin := make(chan struct{})
	errs := make([]error, s.program.clients)
	var crowd sync.WaitGroup
	for _, c := range s.callers {
		crowd.Go(func() {
			<-begin
			for _, what := range s.commands {
				if what.client == c.id && errs[c.id] == nil {
					c.plan(what)
					errs[c.id] = send(c)
				}
			}
		})
	}
	close(begin)
	crowd.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	last := s.callers[0]
	last.plan(command{kind: "look"})
	if err := send(last); err != nil {
		return err
	}
	all := slices.Concat(history...)
	if porcupine.CheckOperations(contract, all) {
		return nil
	}
	return unexplained(all)
}

// contract is the model, for porcupine.
var contract = porcupine.Model{
	Init: func() any { return newModel() },
	Step: func(state, did, answer any) (bool, any) {
		m := state.(*model).clone()
		return judge(m, did.(call), answer) == "", m
	},
	Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
}

// tally counts calls. It is safe for concurrent use.
type tally struct {
	calls, overlapping atomic.Int64 // overlapping: other clients' calls were sent or answered before they were answered
	mu                 sync.Mutex   // guards answers
	answers            map[string]int
}

func newTally() *tally { return &tally{answers: map[string]int{}} }

func (y *tally) count(did call, answer any) {
	what := did.name
	if got, ok := answer.(lua.Reply); ok && number(part(got, 0)) == 0 {
		what += " " + part(got, 0)
	}
	y.calls.Add(1)
	y.mu.Lock()
	defer y.mu.Unlock()
	y.answers[what]++
}

func (y *tally) String() string {
	return fmt.Sprintf("%d calls, %d of them overlapping; %v", y.calls.Load(), y.overlapping.Load(), y.answers)
}

// genuine are the scripts of a sale and its outbox by the last word of their names, and all others by their names.
func genuine() map[string]lua.Script {
	named := map[string]lua.Script{}
	for file, s := range scripts {
		name := strings.TrimSuffix(file, ".lua")
		for _, subject := range []string{"sale_", "outbox_"} {
			name = strings.TrimPrefix(name, subject)
		}
		named[name] = s
	}
	return named
}

// unexplained tells a history by the longest part that the model explains, and what the model says to the calls that could come next.
func unexplained(all []porcupine.Operation) error {
	_, info := porcupine.CheckOperationsVerbose(contract, all, 0)
	var text strings.Builder
	m := newModel()
	done := map[int64]bool{}
	var longest []porcupine.Operation
	for _, part := range info.PartialLinearizationsOperations()[0] {
		if len(part) > len(longest) {
			longest = part
		}
	}
	for _, o := range longest {
		judge(m, o.Input.(call), o.Output)
		done[o.Call] = true
		fmt.Fprintf(&text, "client %d, %d to %d: %v -> %q\n", o.ClientId, o.Call, o.Return, o.Input, o.Output)
	}
	fmt.Fprintf(&text, "so far it can be explained; of these, none can be next:\n")
	soonest := int64(math.MaxInt64)
	for _, o := range all {
		if !done[o.Call] {
			soonest = min(soonest, o.Return)
		}
	}
	for _, o := range all {
		if !done[o.Call] && o.Call < soonest {
			fmt.Fprintf(&text, "client %d, %d to %d: %v -> %q: %s\n", o.ClientId, o.Call, o.Return, o.Input, o.Output, judge(m.clone(), o.Input.(call), o.Output))
		}
	}
	return fmt.Errorf("%w, for no order of the calls explains their answers:\n%s", errBroken, text.String())
}

// property plays as many hundreds of programs; as many as -rapid.checks says are a hundred. A way that does not always do the
// same gets tries to fail again, when rapid looks for the smallest program that does.
func property(t *testing.T, hundreds, tries int, scripts map[string]lua.Script, way func(*scene, *tally) error) {
	t.Helper()
	seen, played, failed := newTally(), 0, false
	for range hundreds {
		rapid.Check(t, func(t *rapid.T) {
			program := drawProgram.Draw(t, "program")
			for try := 1; try == 1 || failed && try <= tries; try++ {
				played++
				if err := play(program, scripts, func(s *scene) error { return way(s, seen) }); err != nil {
					failed = true
					t.Log(err)
					t.Fatal(errBroken) // always the same words, or rapid does not go on to a smaller program
				}
			}
		})
	}
	t.Logf("%d programs: %v", played, seen)
}

func TestEveryCallKeepsItsContract(t *testing.T) { property(t, 2, 1, genuine(), (*scene).inTurns) }

func TestCallsAtOnceAreLikeCallsInTurns(t *testing.T) { property(t, 3, 30, genuine(), (*scene).atOnce) }

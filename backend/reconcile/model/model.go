// Package model explores the order protocol exhaustively at a small size: one unit, two orders, up to three reconcilers, and
// every interleaving. Relays sleep or die. Messages are repeated or lost. The broker is wiped. Redis is emptied, rolled back, or
// brings back what it lost while it wrote it. A replica that lags is promoted, and the old primary still answers. MySQL fails over to an
// older copy. Orders are cancelled. Reconcilers stop or wake anywhere.
//
// The rules are the protocol of docs/reconciling.md. Change them first when you change the scripts, the consumer or the
// reconciler, and see what breaks.
//
// The technique is explicit-state model checking by breadth-first search, as in Holzmann's SPIN and Lamport's TLC. A broken
// equation is reported with a shortest trace.
package model

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"strings"
)

// Promise says when a 202 is sent.
type Promise uint8

// The modes. In all but AfterConfirm and AfterReplicas a 202 is sent when the reservation is on Redis's disk.
const (
	AfterFsync Promise = iota
	// AfterConfirm: a 202 is sent when the broker has confirmed the order as well. Only this survives a Redis that comes back older.
	AfterConfirm
	// AfterReplicas: a 202 is sent when the replica has acknowledged the order as well. This survives its promotion, which is the
	// one fault of this mode.
	AfterReplicas
	// Offers: one of the orders is an offer to the standby line. It is promised only once MySQL has it. Until then any number of
	// processes ask Redis for it again and again, some of them late.
	Offers
	// Torn: Redis may die while it writes an order. It is a mode of its own, for in every mode it would be 112 million states.
	Torn
	// Deferred: a consumer may acknowledge any message once MySQL has its order as deferred. In the other modes it holds the message.
	Deferred
	// Forgets: MySQL may fail over to a copy that lags. It is a mode of its own for the number of its states.
	Forgets
)

func (p Promise) String() string {
	return [...]string{"fsync", "confirm", "replicas", "offers", "torn", "deferred", "forgets"}[p]
}

// Bug is a planted mistake.
type Bug string

// The planted mistakes, each of which the exploration must find; None is the protocol as designed.
const (
	None                Bug = ""
	RetireEarly         Bug = "retire the outbox entry when it is published"
	ReleaseUnkeyed      Bug = "release without looking whether the order holds anything"
	ReleaseIgnoresGate  Bug = "release while the gate is closed"
	UnionWithEnded      Bug = "reconcile with orders of the outbox that ended in MySQL"
	NoEpochCheck        Bug = "no epoch in reserve and insert"
	AdoptWithoutOutbox  Bug = "adopt without an outbox entry"
	AckBeforeCommit     Bug = "acknowledge before the commit"
	NoRedisToken        Bug = "reconcilers do not look at the gate's token"
	NoMySQLToken        Bug = "reconcilers do not look at MySQL's token"
	NoAdoptPhase        Bug = "open the gate before older orders are adopted"
	RepublishNothing    Bug = "the relay never publishes an entry again"
	NoReleaseAgain      Bug = "acknowledge an order that ended without giving back what it may hold again"
	PromiseUnheld       Bug = "promise at the broker's confirm without looking whether Redis still holds the order"
	ReserveBeforeShut   Bug = "let a restarted Redis reserve before the gate is closed"
	AdoptBeforeShut     Bug = "let a restarted Redis adopt before the gate is closed"
	AdoptIntoAnyEpoch   Bug = "adopt into a newer epoch than the one that was read before MySQL was asked for the order"
	ReplicasHaveScripts Bug = "let a promoted replica have the scripts of the incarnation"
	UnionWithOrphans    Bug = "reconcile with entries of the outbox whose orders Redis itself does not hold"
	ReadBeforeRaise     Bug = "read the orders before the epoch is raised"
	IntentsDoneByLoad   Bug = "mark the releases done that are open when the reservations are written"
	OpenOverDeferred    Bug = "answer a fence though an order ahead of it is deferred"
	RetireDeferred      Bug = "retire the outbox entry of an order that is deferred"
	PromiseUnreplicated Bug = "promise before the replica has acknowledged the order"
	FewerThanAll        Bug = "promise when another replica than the promoted one has acknowledged the order"
	WaitElsewhere       Bug = "look for the order on one primary and wait for the replica of another"
	WaitUnheld          Bug = "wait for the replica without looking whether the primary holds the order"
	DropForgotten       Bug = "reconcile without the orders that Redis holds and MySQL has forgotten"
	FailoverMissed      Bug = "serve from a MySQL that took over without comparing it with Redis"
	ComparedOnce        Bug = "compare only a MySQL that is another"
	EndsForgotten       Bug = "leave orders live in an older MySQL that Redis has released"
	ServeBeforeEnds     Bug = "serve from an older MySQL before orders that Redis has released have ended there again"
	TokenOfOlder        Bug = "close the gate with the older MySQL's next token"
	EpochOfOlder        Bug = "raise the older MySQL's epoch from where it stands"
)

// Bugs lists the planted mistakes.
var Bugs = []Bug{RetireEarly, ReleaseUnkeyed, ReleaseIgnoresGate, UnionWithEnded, NoEpochCheck, AdoptWithoutOutbox,
	AckBeforeCommit, NoRedisToken, NoMySQLToken, NoAdoptPhase, RepublishNothing, NoReleaseAgain, PromiseUnheld, ReserveBeforeShut, AdoptBeforeShut, AdoptIntoAnyEpoch,
	ReplicasHaveScripts, UnionWithOrphans, ReadBeforeRaise, IntentsDoneByLoad, OpenOverDeferred, RetireDeferred,
	PromiseUnreplicated, FewerThanAll, WaitElsewhere, WaitUnheld,
	DropForgotten, FailoverMissed, ComparedOnce, EndsForgotten, ServeBeforeEnds, TokenOfOlder, EpochOfOlder}

const (
	units     = 1
	numOrders = 2
	maxEpochs = 8
	maxRecs   = 3
)

type (
	orders  uint8  // a set: bit o
	entries uint16 // a set of (order, epoch): bit o*maxEpochs+epoch
)

func (s orders) has(o int) bool       { return s>>o&1 == 1 }
func (s orders) with(o int) orders    { return s | 1<<o }
func (s orders) without(o int) orders { return s &^ (1 << o) }
func (s orders) len() int             { return bits.OnesCount8(uint8(s)) }

func bit(o int, epoch uint8) entries { return 1 << (o*maxEpochs + int(epoch)) }

// ids is the set of orders that some entry names.
func (e entries) ids() (s orders) {
	for o := range numOrders {
		if e&ofOrder(o) != 0 {
			s = s.with(o)
		}
	}
	return s
}

func ofOrder(o int) entries { return entries(1<<maxEpochs-1) << (o * maxEpochs) }

// each calls f for every entry.
func (e entries) each(f func(o int, epoch uint8, x entries)) {
	for ; e != 0; e &= e - 1 {
		i := bits.TrailingZeros16(uint16(e))
		f(i/maxEpochs, uint8(i%maxEpochs), 1<<i)
	}
}

type status uint8

const (
	absent status = iota
	live
	ended
	rejected
)

// rows is MySQL's orders table.
type rows [numOrders]status

func (m rows) are(want status) (s orders) {
	for o, st := range m {
		if st == want {
			s = s.with(o)
		}
	}
	return s
}

func (m rows) ids() orders { return m.are(live) | m.are(ended) | m.are(rejected) }

type gate uint8

const (
	shut gate = iota
	adopting
	open
)

type phase uint8

const (
	idle phase = iota // no reconciler in this place
	closing
	reviving
	draining
	readingOutbox
	raising
	readingRows
	writing
	opening
)

// reconciler is one run of the procedure; one that stops for ever is one that is never scheduled again.
type reconciler struct {
	phase  phase
	token  uint8
	revive bool   // it began because Redis did not have the scripts
	outbox orders // O as it read it
	rows   rows   // M as it read it
	epoch  uint8  // that it raised to
}

type reconcilers [maxRecs]reconciler

// sort puts them in the order of their tokens, for states that differ in places alone are the same.
func (r *reconcilers) sort() {
	for i := 1; i < len(r); i++ {
		for j := i; j > 0 && r[j].token < r[j-1].token; j-- {
			r[j], r[j-1] = r[j-1], r[j]
		}
	}
}

// data are what a server of Redis has of the sale.
type data struct {
	// It has the incarnation's sale_reserve.lua and sale_adopt.lua: it was not restarted since they were loaded, and is no
	// replica that was promoted. An incarnation that begins because another primary was lost changes nothing here, for its
	// scripts are loaded into this primary, too.
	scripts   bool
	present   bool
	gate      gate
	gateToken uint8
	epoch     uint8
	stock     int8
	held      orders  // R
	outbox    entries // O
}

// reserves reports whether sale_reserve.lua would decide a call. Then what Redis holds must be right. Redis may come back from a
// restart with an open gate and older data.
func (d data) reserves() bool { return d.scripts && d.present && d.gate == open }

type role uint8

const (
	none    role = iota // the mode has no second server
	follows             // it is the replica. What it has is what the primary had at some time
	old                 // it was the primary, and still answers those who have not heard of the promotion
)

// second is the server of Redis that is not the primary.
type second struct {
	role role
	data data
}

// mysql is what a MySQL has.
type mysql struct {
	dbEpoch, dbToken uint8
	rows             rows    // M
	deferred         entries // messages of a closed sale that are acknowledged and wait to be adopted
	intents          orders
}

type state struct {
	data    // of the primary
	second  second
	keyed   orders  // of offers: those that were ever reserved, as their keys in Redis show
	torn    entries // half written in its append-only file: the next restart brings them back, but only into the outbox
	orphans orders  // that came back so
	gone    orders  // that were released, as a list in Redis shows
	// on the way
	calls    entries // reserve calls that left an api process, with the epoch it knew
	relay    entries // in the hands of a relay
	spent    entries // published once: RepublishNothing keeps a relay from reading them again
	broker   entries
	asleep   entries // of older epochs, with a consumer that has not found them in MySQL and is about to adopt them
	answers  entries // the broker has confirmed them to an api process, which has not answered yet
	looked   entries // an api process has seen them in the primary, and waits for the replica of that
	first    entries // as the press made them: what was not adopted
	promised orders  // a 202 was sent
	excused  orders  // not covered by the promise: destroyed in the only place where they were
	mysql
	copied mysql   // what its replica has, which stopped to follow
	lags   bool    // there is such a replica
	other  bool    // the replica has taken over and was not compared with Redis yet: it serves nobody
	late   entries // that were settled in the MySQL that is gone: their consumers may acknowledge and retire them even now
	recs   reconcilers
	// faults left
	redisLosses, brokerLosses, mysqlLosses, cancels, asks uint8
}

// strays are the orders that Redis holds, but that are neither in its outbox nor live in MySQL, and that no intent is to release. MySQL has
// forgotten them, or only that they are to be released.
func (s state) strays() orders { return s.held &^ s.outbox.ids() &^ s.rows.are(live) &^ s.intents }

// step names a transition. It becomes text only in a trace.
type step struct {
	rule  string
	order int8
	epoch int8
}

func (s step) String() string {
	if s.order < 0 && s.epoch < 0 {
		return s.rule
	}
	if s.order < 0 {
		return fmt.Sprintf("%s (token %d)", s.rule, s.epoch)
	}
	name := string(rune('a' + s.order))
	if s.epoch < 0 {
		return s.rule + " " + name
	}
	return fmt.Sprintf("%s %s of epoch %d", s.rule, name, s.epoch)
}

// Result of an exploration.
type Result struct {
	States int
	Broken string   // the equation that does not hold; "" if all do
	Trace  []string // a shortest way there
}

func (r Result) String() string {
	if r.Broken == "" {
		return fmt.Sprintf("%d states, every equation holds", r.States)
	}
	return fmt.Sprintf("%d states, broken: %s, after: %s", r.States, r.Broken, strings.Join(r.Trace, " > "))
}

type explorer struct {
	mode Promise
	bug  Bug
	emit func(next state, s step, fault bool)
}

// Explore visits every reachable state, nearest first, and stops at the first that breaks an equation. Of a visited state it keeps
// a hash of 64 bits, seeded anew in every run. Two states collide with a chance of n²/2⁶⁵, one in a million with five million
// states (Wolper and Leroy, "Reliable hashing without collision detection", 1993).
func Explore(mode Promise, bug Bug) Result {
	type node struct {
		parent int32
		step   step
	}
	start := state{data: data{scripts: true, present: true, gate: open, epoch: 1, stock: units}, mysql: mysql{dbEpoch: 1}, redisLosses: 1, brokerLosses: 1, cancels: 1, asks: 1}
	switch mode {
	case AfterReplicas:
		start.second, start.brokerLosses = start.replica(), 0
	case Forgets:
		start.redisLosses, start.brokerLosses, start.mysqlLosses = 0, 0, 1
	}
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{maphash.Comparable(seed, start): {}}
	nodes := []node{{parent: -1}}
	x := explorer{mode: mode, bug: bug}
	i := int32(0) // of the node whose state is s
	for level := []state{start}; len(level) > 0; {
		var next []state
		for _, s := range level {
			settled := true // nothing but a fault or new work can happen
			x.emit = func(t state, st step, fault bool) {
				t.recs.sort()
				t.second.forget(t.redisLosses > 0)
				if !fault && t != s {
					settled = false
				}
				hash := maphash.Comparable(seed, t)
				if _, ok := seen[hash]; !ok {
					seen[hash] = struct{}{}
					next = append(next, t)
					nodes = append(nodes, node{i, st})
				}
			}
			x.rules(s)
			if broken := broken(s, settled); broken != "" {
				var trace []string
				for n := i; n > 0; n = nodes[n].parent {
					trace = append([]string{nodes[n].step.String()}, trace...)
				}
				return Result{int(i) + 1, broken, trace}
			}
			i++
		}
		level = next
	}
	return Result{States: len(nodes)}
}

// broken returns the equation that s violates.
func broken(s state, settled bool) string {
	liveRows := s.rows.are(live)
	if liveRows.len() > units {
		return "|L| > T"
	}
	if s.rows.are(rejected)&s.promised&^s.excused != 0 {
		return "a promised order was rejected"
	}
	if s.reserves() && !s.other {
		late := orders(0) // that were retired for a MySQL that is gone: the next look finds them
		if s.late != 0 {
			late = s.strays()
		}
		want := liveRows | s.outbox.ids()&^s.rows.ids()&^(s.orphans&^s.held)
		switch {
		case s.stock < 0:
			return "S < 0"
		case int(s.stock)+s.held.len() != units:
			return "S + |R| != T"
		case want&^s.held != 0:
			return "R misses an order of L or of O \\ M"
		case s.held&^(want|s.intents|s.outbox.ids()|late) != 0: // an ended order may come back until its entry is retired
			return "R keeps an order that is neither in L nor in O \\ M: a stranded unit"
		}
	}
	if settled {
		switch {
		case s.promised&^s.excused&^s.rows.ids() != 0:
			return "a promised order was lost"
		case s.outbox != 0 || s.intents != 0 || !s.reserves() || s.other:
			return "stuck before everything is settled"
		case s.held != liveRows:
			return "R != L at the end"
		}
	}
	return ""
}

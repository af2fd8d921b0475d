package model

// rules emits every state that can follow s. It marks faults and new work from outside: where only those lead on, the system
// has come to rest.
func (x explorer) rules(s state) {
	x.press(s)
	x.relays(s)
	x.answers(s)
	x.replication(s)
	if !s.other {
		x.consumers(s)
		x.releases(s)
	}
	x.late(s)
	x.reconcilers(s)
	x.faults(s)
}

// press: an api process calls sale_reserve.lua. The call arrives, perhaps much later.
func (x explorer) press(s state) {
	known := s.rows.ids() | s.held | s.promised | (s.outbox | s.torn | s.calls | s.relay | s.broker | s.asleep | s.deferred).ids()
	if s.second.role == old {
		known |= s.second.data.held
	}
	if x.mode == Offers && s.rows[watched] == absent && !s.calls.ids().has(watched) {
		known = known.without(watched) // the offer is made again until MySQL has it
	}
	for o := range numOrders {
		if known.has(o) {
			continue
		}
		epoch := s.dbEpoch
		if s.present {
			epoch = s.epoch
		}
		t := s
		t.calls |= bit(o, epoch)
		x.emit(t, step{"press", int8(o), int8(epoch)}, true)
	}
	s.calls.each(func(o int, epoch uint8, c entries) {
		t := s
		t.calls &^= c
		if s.reserves() && (epoch == s.epoch || x.bug == NoEpochCheck) && s.stock > 0 && !(s.held | s.keyed).has(o) {
			t.stock--
			t.held = t.held.with(o)
			t.outbox |= bit(o, s.epoch)
			switch {
			case x.mode == Offers && o == watched:
				t.keyed = t.keyed.with(o)
			case x.mode != AfterConfirm && x.mode != AfterReplicas:
				t.promised = t.promised.with(o)
			case o == watched:
				t.first |= bit(o, s.epoch)
			}
			x.emit(t, step{"reserve", int8(o), int8(epoch)}, false)
			return
		}
		x.emit(t, step{"refuse", int8(o), int8(epoch)}, false)
	})
}

// relays read entries, may sleep with them in hand, publish them, and read what is unretired again.
func (x explorer) relays(s state) {
	s.outbox.each(func(o int, epoch uint8, e entries) {
		if s.relay&e != 0 || x.bug == RepublishNothing && s.spent&e != 0 {
			return
		}
		t := s
		t.relay |= e
		x.emit(t, step{"relay reads", int8(o), int8(epoch)}, false)
	})
	s.relay.each(func(o int, epoch uint8, e entries) {
		t := s
		t.relay &^= e
		t.broker |= e
		if x.bug == RepublishNothing {
			t.spent |= e
		}
		if x.mode == AfterConfirm && o == watched && !s.promised.has(o) {
			t.answers |= e
		}
		if x.bug == RetireEarly {
			t.outbox &^= e
		}
		x.emit(t, step{"publish", int8(o), int8(epoch)}, false)
	})
}

// watched is the order whose answer is followed after a confirm or a replica's acknowledgement. The orders are interchangeable, and following both would take
// ten times the states. In Offers it is the offer.
const watched = 0

// answers: an api process got the confirm, perhaps long ago. It sends the 202 if Redis still holds the order in the epoch that
// was published, so it was not lost in between, or if MySQL has it. It asks MySQL about an adopted entry, too, for another
// process may have rejected the order meanwhile.
func (x explorer) answers(s state) {
	s.answers.each(func(o int, epoch uint8, e entries) {
		t := s
		t.answers &^= e
		keeps := s.present && s.held.has(o) && s.epoch == epoch && (s.first&e != 0 || s.rows[o] != rejected)
		if keeps || s.rows[o] == live || s.rows[o] == ended || x.bug == PromiseUnheld {
			t.promised, t.answers = t.promised.with(o), t.answers&^ofOrder(o)
		}
		x.emit(t, step{"answer", int8(o), int8(epoch)}, false)
	})
}

// consumers settle messages, acknowledge them, and retire what is committed.
func (x explorer) consumers(s state) {
	x.deliveries(s)
	x.deferrals(s)
	if s.present {
		s.outbox.each(func(o int, epoch uint8, e entries) {
			if s.rows[o] != absent {
				t := x.settled(s, o)
				t.outbox &^= e
				x.emit(t, step{"retire", int8(o), int8(epoch)}, false)
			}
		})
	}
}

// deliveries: a consumer settles a message, or defers it: one of an older epoch, or one that came back too often.
func (x explorer) deliveries(s state) {
	s.broker.each(func(o int, epoch uint8, e entries) {
		if s.rows[o] != absent {
			t := x.settled(s, o)
			t.broker &^= e
			x.emit(t, step{"acknowledge", int8(o), int8(epoch)}, false)
			return
		}
		if x.bug == AckBeforeCommit {
			t := s
			t.broker &^= e
			t.outbox &^= ofOrder(o)
			x.emit(t, step{"consumer dies after the ack of", int8(o), int8(epoch)}, true)
		}
		if x.mode == Deferred { // at any time: the gate may open between its answer and MySQL's
			t := s
			t.asleep &^= e
			t.broker &^= e
			t.deferred |= e
			if x.bug == RetireDeferred {
				t.outbox &^= e
			}
			x.emit(t, step{"defer", int8(o), int8(epoch)}, false)
		}
		x.settle(s, o, epoch, e)
	})
}

// settle: a consumer inserts an order of the current epoch that MySQL does not have. One of an older epoch it is going to adopt.
func (x explorer) settle(s state, o int, epoch uint8, e entries) {
	t := s
	switch {
	case epoch != s.dbEpoch && x.bug != NoEpochCheck:
		if s.asleep&e == 0 {
			t.asleep |= e
			x.emit(t, step{"consumer does not find in MySQL", int8(o), int8(epoch)}, false)
		}
	case s.rows.are(live).len() < units:
		t.rows[o] = live
		x.emit(t, step{"insert", int8(o), int8(epoch)}, false)
	default:
		x.reject(t, o, step{"reject", int8(o), int8(epoch)})
	}
}

// deferrals: deferred orders are settled like messages. Those of older epochs, deferred or not, are adopted.
func (x explorer) deferrals(s state) {
	s.deferred.each(func(o int, epoch uint8, e entries) {
		if s.rows[o] != absent {
			t := x.settled(s, o)
			t.deferred &^= e
			x.emit(t, step{"drop, deferred,", int8(o), int8(epoch)}, false)
			return
		}
		x.settle(s, o, epoch, e)
	})
	s.asleep.each(func(o int, epoch uint8, e entries) {
		for _, from := range []*entries{&s.broker, &s.deferred} {
			if *from&e == 0 && (from == &s.deferred || s.deferred&e != 0) {
				continue
			}
			was := *from
			*from &^= e
			next := s
			*from = was
			x.adopt(s, next, o, epoch, e)
		}
	})
}

// settled is what a consumer does with an order that is in MySQL. A consumer that slept may have adopted it after it ended, so
// what it holds is released again.
func (x explorer) settled(s state, o int) state {
	if x.bug != NoReleaseAgain && s.rows[o] != live && s.held.has(o) {
		s.intents = s.intents.with(o)
	}
	return s
}

// adopt: a consumer that did not find an order of an older epoch in MySQL, perhaps long ago, adopts it. In t its message is
// acknowledged.
func (x explorer) adopt(s, t state, o int, epoch uint8, e entries) {
	t.asleep &^= e
	if epoch == s.dbEpoch {
		t = s
		t.asleep &^= e
		x.emit(t, step{"consumer finds the epoch is the present one,", int8(o), int8(epoch)}, false)
		return
	}
	if !s.scripts && x.bug != AdoptBeforeShut || !s.present || s.gate == shut || s.epoch != s.dbEpoch {
		return // hold it
	}
	if !s.held.has(o) && s.stock <= 0 {
		if s.rows[o] == absent {
			x.reject(t, o, step{"reject, nothing to adopt it with,", int8(o), int8(epoch)})
		} else {
			x.emit(t, step{"reject finds a row of", int8(o), int8(epoch)}, false)
		}
		return
	}
	if !s.held.has(o) {
		t.stock--
		t.held = t.held.with(o)
		t.orphans = t.orphans.without(o)
	}
	if x.bug != AdoptWithoutOutbox {
		t.outbox = t.outbox&^ofOrder(o) | bit(o, s.epoch)
	}
	x.emit(t, step{"adopt", int8(o), int8(epoch)}, false)
}

func (x explorer) reject(t state, o int, s step) {
	t.rows[o] = rejected
	t.intents = t.intents.with(o)
	x.emit(t, s, false)
}

// releases: an order is cancelled with an intent. The intent runs, perhaps twice, and is done.
func (x explorer) releases(s state) {
	if s.cancels > 0 {
		for o := range numOrders {
			if s.rows[o] == live {
				t := s
				t.rows[o] = ended
				t.intents = t.intents.with(o)
				t.cancels--
				x.emit(t, step{"cancel", int8(o), -1}, true)
			}
		}
	}
	for o := range numOrders {
		if !s.intents.has(o) {
			continue
		}
		if !s.present || s.gate != open {
			if x.bug != ReleaseIgnoresGate {
				continue
			}
			if !s.present {
				t := s
				t.intents = t.intents.without(o)
				x.emit(t, step{"release is lost of", int8(o), -1}, false)
				continue
			}
		}
		t := s
		if s.held.has(o) || x.bug == ReleaseUnkeyed {
			t.held = t.held.without(o)
			t.stock++
			if x.mode == Forgets {
				t.gone = t.gone.with(o)
			}
			x.emit(t, step{"release", int8(o), -1}, false)
			if x.bug == ReleaseUnkeyed {
				t.intents = t.intents.without(o)
				x.emit(t, step{"release and done", int8(o), -1}, false)
			}
			continue
		}
		t.intents = t.intents.without(o)
		x.emit(t, step{"release done of", int8(o), -1}, false)
	}
}

// reconcilers: any number at once, each step conditional on the token.
func (x explorer) reconcilers(s state) {
	free, active, revives := -1, false, false
	for i, r := range s.recs {
		if r.phase == idle {
			free = i
		} else {
			active = true
			revives = revives || r.revive
		}
	}
	if s.other {
		x.takeOver(s, free)
		return
	}
	must := !s.reserves() && !active || !s.scripts && !revives
	if x.bug != ComparedOnce && x.bug != FailoverMissed && !active && s.late != 0 && s.strays() != 0 {
		must = true // compared with MySQL once more
	}
	if free >= 0 && (must || s.asks > 0) {
		t := s
		t.dbToken = x.token(s) + 1
		t.recs[free] = reconciler{phase: closing, token: t.dbToken, revive: !s.scripts}
		if !must {
			t.asks--
		}
		x.emit(t, step{"a reconciler starts", -1, int8(t.dbToken)}, !must)
	}
	for i, r := range s.recs {
		if r.phase != idle {
			x.reconcile(s, i, r)
		}
	}
}

// turn is the reconciler in place i, which takes its next step.
type turn struct {
	explorer
	s state
	i int
	r reconciler
}

func (u turn) to(t state, next reconciler, rule string) {
	t.recs[u.i] = next
	u.emit(t, step{rule, -1, int8(u.r.token)}, false)
}

func (u turn) giveUp() { u.to(u.s, reconciler{}, "the reconciler gives up") }

func (x explorer) reconcile(s state, i int, r reconciler) {
	u, next := turn{x, s, i, r}, r
	mine := s.present && s.gateToken == r.token && s.gate == shut
	switch r.phase {
	case closing:
		u.close()
	case reviving:
		t := s
		t.scripts = true
		next.phase, next.revive = draining, false
		u.to(t, next, "the scripts are loaded")
	case draining:
		if !mine {
			u.giveUp()
			return
		}
		next.phase = readingOutbox // whether it is drained or not: what is left is adopted
		u.to(s, next, "the queue is drained, or waited for no longer")
	case readingOutbox:
		if !mine {
			u.giveUp()
			return
		}
		next.phase, next.outbox = raising, s.outbox.ids()
		if x.bug != UnionWithOrphans {
			next.outbox &= s.held
		}
		if x.bug == ReadBeforeRaise {
			next.rows = s.rows
		}
		u.to(s, next, "O is read")
	case raising:
		u.raise()
	case readingRows: // at one moment, any time later. It does not ask whether the token is the newest: the gate decides
		next.phase, next.rows = writing, s.rows
		u.to(s, next, "M is read")
	case writing:
		if !mine && !(x.bug == NoRedisToken && s.present) {
			u.giveUp()
			return
		}
		u.write()
	case opening:
		u.open()
	}
}

func (u turn) close() {
	t, next := u.s, u.r
	if u.r.revive && u.bug == ReserveBeforeShut {
		t.scripts, next.revive = true, false
		u.to(t, next, "the scripts are loaded")
		return
	}
	if t.present && u.r.token <= t.gateToken && u.bug != NoRedisToken {
		t.scripts = t.scripts || u.r.revive // one that began later has closed it
		u.to(t, reconciler{}, "the reconciler gives up")
		return
	}
	if !t.present {
		t.present, t.epoch, t.stock = true, 0, 0
	}
	t.gate, t.gateToken = shut, u.r.token
	next.phase = draining
	if u.r.revive {
		next.phase = reviving
	}
	u.to(t, next, "the gate is closed")
}

func (u turn) raise() {
	t, next := u.s, u.r
	if t.dbToken != u.r.token && u.bug != NoMySQLToken {
		u.giveUp()
		return
	}
	t.dbEpoch++
	if u.bug != EpochOfOlder {
		t.dbEpoch = max(t.dbEpoch, t.epoch+1)
	}
	if t.dbEpoch >= maxEpochs {
		panic("BUG: more epochs than a set of entries can name")
	}
	if u.bug != AdoptIntoAnyEpoch {
		t.asleep = 0 // they read the epoch before they looked for the order: their calls are refused, and they look again
	}
	next.phase, next.epoch = readingRows, t.dbEpoch
	if u.bug == ReadBeforeRaise {
		next.phase = writing
	}
	u.to(t, next, "the epoch is raised")
}

func (u turn) write() {
	t, r := u.s, u.r
	forgotten := t.held &^ r.outbox &^ r.rows.ids()
	if u.bug != DropForgotten && forgotten != 0 { // a step of its own, before the reservations are removed
		for o := range numOrders {
			if forgotten.has(o) {
				t.outbox |= bit(o, r.epoch)
			}
		}
		r.outbox |= forgotten
		u.to(t, r, "what MySQL has forgotten is in the outbox again")
		return
	}
	pending := r.outbox &^ r.rows.ids()
	if u.bug == UnionWithEnded {
		pending = r.outbox
	}
	t.held = r.rows.are(live) | pending
	t.stock = int8(units - t.held.len())
	if u.mode == Offers {
		t.keyed = (r.rows.are(live) | r.rows.are(ended) | pending) & (1 << watched)
	}
	t.epoch = r.epoch
	t.gate = adopting
	if u.bug == IntentsDoneByLoad {
		t.intents = 0
	}
	if u.bug == NoAdoptPhase {
		t.gate = open
	}
	u.to(t, reconciler{phase: opening, token: r.token}, "R and S are written") // it needs no more of what it read
}

func (u turn) open() {
	t := u.s
	if !(t.present && t.gateToken == u.r.token && t.gate == adopting) {
		u.giveUp()
		return
	}
	before := t.broker | t.deferred
	if u.bug == OpenOverDeferred {
		before = t.broker
	}
	if before.ids()&^t.rows.ids() != 0 {
		return
	}
	t.gate = open
	u.to(t, reconciler{}, "the gate is opened")
}

// token is the one after which the next is counted: no lower than the one that closed the gate.
func (x explorer) token(s state) uint8 {
	if x.bug == TokenOfOlder {
		return s.dbToken
	}
	return max(s.dbToken, s.gateToken)
}

// takeOver compares a MySQL that took over with Redis. Where it has all that Redis knows of, it serves. Else the gate is closed
// first, and orders that Redis has released have ended again.
func (x explorer) takeOver(s state, free int) {
	behind := s.dbToken < s.gateToken || s.dbEpoch < s.epoch || s.strays() != 0 || x.endAgain(s).rows != s.rows
	if s.present && s.gate == open && !behind || !s.present {
		t := s
		t.other = false
		x.emit(t, step{"MySQL serves, for it is not behind", -1, -1}, false)
		return
	}
	if free < 0 {
		return // the exploration bounds reconcilers; one of them gives up
	}
	t := s
	t.dbToken = x.token(s) + 1
	if x.bug != EpochOfOlder {
		t.dbEpoch = max(t.dbEpoch, t.epoch)
	}
	t.other = false
	r := reconciler{phase: closing, token: t.dbToken, revive: !s.scripts}
	if x.bug == ServeBeforeEnds {
		t.recs[free] = r
		x.emit(t, step{"MySQL serves before the gate is closed", -1, int8(r.token)}, false)
		return
	}
	turn{x, x.endAgain(t), free, r}.close()
}

// endAgain ends orders that MySQL has as live and Redis does not hold, and those that Redis has released and MySQL does not have. It
// has forgotten how they ended. A Redis that was restarted itself may have forgotten, too: of that only the list of the released counts.
func (x explorer) endAgain(s state) state {
	if x.bug == EndsForgotten {
		return s
	}
	for o := range numOrders {
		if s.held.has(o) {
			continue
		}
		if s.rows[o] == live && (s.scripts || s.gone.has(o)) || s.rows[o] == absent && s.gone.has(o) {
			s.rows[o] = ended
		}
	}
	return s
}

// late: a consumer settled an order in the MySQL that is gone, and acknowledges and retires it only now.
func (x explorer) late(s state) {
	(s.late & s.outbox).each(func(o int, epoch uint8, e entries) {
		t := s
		t.outbox &^= e
		x.emit(t, step{"retire late", int8(o), int8(epoch)}, false)
	})
	(s.late & s.broker).each(func(o int, epoch uint8, e entries) {
		t := s
		t.broker &^= e
		x.emit(t, step{"acknowledge late", int8(o), int8(epoch)}, false)
	})
}

// failovers: a replica of MySQL stops to follow. Later it takes over, with what it has.
func (x explorer) failovers(s state) {
	if s.mysqlLosses == 0 {
		return
	}
	if !s.lags {
		t := s
		t.copied, t.lags = s.mysql, true
		x.emit(t, step{"A REPLICA OF MYSQL LAGS", -1, -1}, true)
		return
	}
	if s.copied == s.mysql || !s.scripts {
		return
	}
	t := s
	t.mysql, t.copied, t.lags = s.copied, mysql{}, false
	t.other = x.bug != FailoverMissed
	(s.outbox | s.broker).each(func(o int, _ uint8, e entries) {
		if s.rows[o] != absent {
			t.late |= e
		}
	})
	t.asleep = 0 // MySQL's answer was lost, or the epoch is raised before it serves
	// One that was cancelled, and that a load left out since, is like an orphan: MySQL has forgotten the order and its end, and Redis
	// has only its entry.
	cancelled := s.rows.are(ended) &^ t.rows.ids() &^ (s.held | s.gone)
	t.orphans |= cancelled
	t.excused |= cancelled
	t.mysqlLosses--
	x.emit(t, step{"MYSQL FAILS OVER", -1, -1}, true)
}

// faults: Redis is restarted, emptied, or comes back older than it was; the broker is wiped; MySQL forgets; a relay dies.
func (x explorer) faults(s state) {
	x.failovers(s)
	if s.redisLosses > 0 && s.present && x.mode != AfterReplicas && x.mode != Forgets { // what MySQL has forgotten only Redis has
		t := s.restarted()
		t.redisLosses--
		x.emit(t, step{"REDIS IS RESTARTED", -1, -1}, true)
		t = s.restarted()
		t.data, t.keyed, t.torn = data{}, 0, 0
		t.redisLosses--
		t.excused |= s.promised &^ (s.broker | s.deferred).ids() &^ s.rows.ids()
		x.emit(t, step{"REDIS IS EMPTIED", -1, -1}, true)
		if x.mode == AfterConfirm {
			x.rollbacks(s)
		}
	}
	x.tears(s)
	if s.brokerLosses > 0 && s.broker != 0 {
		t := s
		t.broker = 0
		t.brokerLosses--
		t.excused |= s.promised &^ (s.outbox | s.deferred).ids() &^ s.rows.ids() &^ s.held
		x.emit(t, step{"THE BROKER IS WIPED", -1, -1}, true)
	}
	if s.relay != 0 {
		t := s
		t.relay = 0
		x.emit(t, step{"the relay dies", -1, -1}, true)
	}
}

// restarted is Redis without scripts. Who held a connection has lost it: a reconciler that was about to load them, and who waits
// for the replica.
func (s state) restarted() state {
	s.scripts, s.looked = false, 0
	for i, r := range s.recs {
		if r.revive {
			s.recs[i].revive = false
			if r.phase == reviving {
				s.recs[i] = reconciler{}
			}
		}
	}
	return s
}

// tears: Redis dies while it writes what sale_reserve.lua did. It is started without that. Started once more, it has the entry in
// the outbox, but no reservation: what followed in the file has written the reservations anew, or will. The model leaves out a
// disk that is destroyed just then while the broker already has what came back: that would be adopted like a promised order.
func (x explorer) tears(s state) {
	if x.mode == Torn && s.redisLosses > 0 && s.reserves() && s.stock > 0 {
		s.calls.each(func(o int, epoch uint8, c entries) {
			if epoch != s.epoch || s.held.has(o) {
				return
			}
			t := s.restarted()
			t.calls &^= c
			t.torn |= bit(o, s.epoch)
			t.redisLosses--
			x.emit(t, step{"REDIS DIES IN THE MIDDLE OF WRITING", int8(o), int8(epoch)}, true)
		})
	}
	if s.torn != 0 && s.present {
		t := s.restarted()
		t.outbox |= s.torn
		t.orphans |= s.torn.ids()
		t.torn = 0
		x.emit(t, step{"REDIS IS RESTARTED, and has back what was torn", -1, -1}, true)
	}
}

// rollbacks: a stale replica is promoted, or the last writes were not synced. Some reservations are gone, and one that was released
// may be back. The gate is as it was, or open as it once was. The scripts are not there.
func (x explorer) rollbacks(s state) {
	for drop := orders(0); drop < 1<<numOrders; drop++ {
		if drop&^s.held != 0 {
			continue
		}
		for back := -1; back < numOrders; back++ {
			held, outbox := s.held&^drop, s.outbox
			for o := range numOrders {
				if drop.has(o) {
					outbox &^= ofOrder(o)
				}
			}
			if back >= 0 {
				if s.rows[back] != ended || s.held.has(back) || int(s.stock)+drop.len() <= 0 {
					continue
				}
				held = held.with(back)
				outbox |= bit(back, s.epoch)
			}
			if held == s.held && outbox == s.outbox {
				continue
			}
			t := s.restarted()
			t.scripts = x.bug == ReplicasHaveScripts && s.scripts
			t.held, t.outbox = held, outbox
			t.stock = int8(units - held.len())
			t.redisLosses--
			t.excused |= s.promised &^ (outbox | s.broker | s.deferred).ids() &^ s.rows.ids()
			x.emit(t, step{"REDIS IS ROLLED BACK", -1, -1}, true)
			t.gate, t.gateToken = open, 0
			x.emit(t, step{"REDIS IS ROLLED BACK, before the reconcilers,", -1, -1}, true)
		}
	}
}

package model

// replica is a second server that has all that the primary has, but its scripts.
func (s state) replica() second {
	d := s.data
	d.scripts = false
	return second{follows, d}
}

// forget drops what no step looks at any more: what a replica has that is not promoted, and what only a primary that decides calls
// needs.
func (r *second) forget(mayBePromoted bool) {
	switch {
	case r.role == follows && !mayBePromoted:
		r.data = data{}
	case r.role == old && !r.data.reserves():
		r.data = data{held: r.data.held, outbox: r.data.outbox}
	}
}

// replication: the replica gets what the primary has, perhaps much later. It is promoted with what it has then. The old primary
// still answers who has not heard of the promotion, until it follows the promoted one and drops its own data. One that is dead is one
// that is never asked. Left out are releases and reconcilers that ask the old one: docs/redis.md.
func (x explorer) replication(s state) {
	if x.mode != AfterReplicas {
		return
	}
	t := s
	t.second = s.replica()
	x.emit(t.acknowledged(s.looked), step{"the replica has all", -1, -1}, false)
	x.looks(s)
	if s.second.role == old {
		x.oldPrimary(s)
		return
	}
	if s.redisLosses == 0 {
		return
	}
	t = s.restarted()
	t.redisLosses--
	t.data, t.second = s.second.data, second{old, s.data}
	t.scripts = x.bug == ReplicasHaveScripts && s.scripts
	if x.bug == WaitElsewhere {
		t.looked = s.looked
	}
	x.emit(t, step{"THE REPLICA IS PROMOTED", -1, -1}, true)
}

// looks: an api process sees that the primary holds the order in the epoch of its outbox entry. It then waits for the replica over
// the same connection. Who pressed does so, and who repeats that press, at any time.
func (x explorer) looks(s state) {
	s.outbox.each(func(o int, epoch uint8, e entries) {
		if o != watched || s.promised.has(o) || s.looked&e != 0 || !s.present || epoch != s.epoch || !s.held.has(o) {
			return
		}
		t := s
		t.looked |= e
		if x.bug == PromiseUnreplicated {
			t = t.acknowledged(e)
		}
		x.emit(t, step{"look", int8(o), int8(epoch)}, false)
	})
}

// acknowledged: the replica has got all that the primary had when who waits looked. They send the 202. Of an adopted order MySQL is
// asked first, for another process may have rejected it.
func (s state) acknowledged(waiting entries) state {
	waiting.each(func(o int, epoch uint8, e entries) {
		if s.first&e != 0 || s.rows[o] != rejected {
			s.promised = s.promised.with(o)
		}
	})
	s.looked &^= waiting
	return s
}

// oldPrimary: it decides calls, and relays read its outbox. Nobody follows it, so nobody acknowledges what it decides.
func (x explorer) oldPrimary(s state) {
	was := s.second.data
	s.calls.each(func(o int, epoch uint8, c entries) {
		if !was.reserves() || epoch != was.epoch || was.stock <= 0 || was.held.has(o) {
			return
		}
		t := s
		t.calls &^= c
		d := &t.second.data
		d.stock--
		d.held = d.held.with(o)
		d.outbox |= c
		if o == watched {
			t.first |= c
		}
		switch {
		case o != watched:
		case x.bug == FewerThanAll:
			t = t.acknowledged(c)
		case x.bug == WaitUnheld:
			t.looked |= c
		}
		x.emit(t, step{"the old primary reserves", int8(o), int8(epoch)}, false)
	})
	was.outbox.each(func(o int, epoch uint8, e entries) {
		if s.relay&e != 0 || s.rows[o] != absent {
			return
		}
		t := s
		t.relay |= e
		x.emit(t, step{"relay reads in the old primary", int8(o), int8(epoch)}, false)
	})
}

// Package lua holds every script that runs inside Redis. The head of each .lua file is its contract: keys, arguments, answers, and
// what makes it idempotent. All keys of one call share a hash tag, {sale:ID}, {sku:ID} or {lock:NAME}, so each script also
// runs on a Redis Cluster. docs/redis.md has the keys.
package lua

import (
	"crypto/sha1"
	"encoding/hex"
	"strconv"
)

// Script is the text of a script and the name by which EVALSHA calls it.
type Script struct {
	Source string
	SHA    string // lower-case hex
	// InIncarnation says that the script belongs to an incarnation: only a reconciler loads it, and EVAL never sends it.
	InIncarnation bool
}

func script(source string) Script {
	sum := sha1.Sum([]byte(source))
	return Script{Source: source, SHA: hex.EncodeToString(sum[:])}
}

// inIncarnation is the script as an incarnation of Redis has it: another text, and so another SHA.
//
// Only a reconciler may load it, into primaries alone, after it has closed the gates of those without the scripts of the
// incarnation before. Redis does not replicate scripts, and keeps them when a primary becomes a replica. So a primary that
// answers NOSCRIPT was started anew or promoted: its data may be older, and its gates open. A node that was a primary once
// may have the scripts of an earlier incarnation, but not of this one.
func inIncarnation(source, name string) Script {
	s := script(source + "-- incarnation " + name + "\n")
	s.InIncarnation = true
	return s
}

// Witness does nothing. A primary that has it got an incarnation's scripts in this replication history, and was not promoted since.
func Witness(incarnation, history string) Script {
	return inIncarnation("-- in the history "+history+"\n", incarnation)
}

// Answer is what a script decided. The comment of each script lists its answers.
type Answer string

// Reply is all that a script returned: its Answer, and what follows from it.
type Reply []string

// Answer is the first member.
func (r Reply) Answer() Answer { return Answer(r[0]) }

// Text is the member i; what is not there is "".
func (r Reply) Text(i int) string {
	if i >= len(r) {
		return ""
	}
	return r[i]
}

// Int is the member i as a number; what is not there, or is no number, is 0.
func (r Reply) Int(i int) int64 {
	n, _ := strconv.ParseInt(r.Text(i), 10, 64)
	return n
}

// Answers that scripts about different things give.
const (
	OK         Answer = "ok"
	Done       Answer = "done"
	Lost       Answer = "lost"
	Kept       Answer = "kept"
	Held       Answer = "held"
	NotEnough  Answer = "not_enough"
	GateClosed Answer = "gate_closed"
	NotLoaded  Answer = "not_loaded"
	Applied    Answer = "applied"
	Present    Answer = "present"
)

// Gates, as the state of a sale or a SKU has them.
const (
	GateOpen  = "open"   // to reserve, release and adopt
	GateAdopt = "adopt"  // to adopt only
	GateShut  = "closed" // to all three
)

// Steps that SaleLoad and SKULoad share.
const (
	StepOrders = "orders"
	StepFinish = "finish"
)

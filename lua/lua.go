// Package lua holds every script that runs inside Redis. Each file's head is its contract: keys, arguments, answers, and
// what makes it idempotent. All keys of one call share a hash tag, {sale:ID}, {sku:ID} or {lock:NAME}, so each script runs
// on a Redis Cluster.
package lua

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// Script is the text of a script and the name by which EVALSHA calls it.
type Script struct {
	Source string
	SHA    string // lower-case hex
	// Life: it is loaded by a reconciler alone, and never sent whole: see ReserveIn.
	Life bool
}

func script(source string) Script {
	sum := sha1.Sum([]byte(source))
	return Script{Source: source, SHA: hex.EncodeToString(sum[:])}
}

//go:embed reserve.lua
var reserve string

// Reserve decides one order. It is called as the ReserveIn of a life of Redis.
var Reserve = script(reserve)

// ReserveIn is Reserve under the name of a life of Redis. It must be loaded by nobody but a reconciler, into primaries alone, after it
// has closed the gates of those that do not know the life before. A primary that does not know it (NOSCRIPT) was started anew or
// promoted, with data that may be older, and gates that are open. Redis does not replicate scripts, and keeps them when a
// primary becomes a replica; so a node that was the primary once may know the script of an earlier life, and not this one.
func ReserveIn(life string) Script { return inLife(reserve, life) }

// Witness does nothing. A primary that knows it was given a life's scripts in this replication history, and was not promoted since.
func Witness(life, history string) Script { return inLife("-- in the history "+history+"\n", life) }

func inLife(source, life string) Script {
	s := script(source + "-- life " + life + "\n")
	s.Life = true
	return s
}

//go:embed release.lua
var release string

// Release gives the units of an order that ended back, once.
var Release = script(release)

//go:embed close.lua
var closeGate string

// Close closes a sale's gate for a reconciler.
var Close = script(closeGate)

//go:embed load.lua
var load string

// Load writes a sale behind its closed gate.
var Load = script(load)

//go:embed open.lua
var open string

// Open opens a reconciled sale's gate.
var Open = script(open)

//go:embed adopt.lua
var adopt string

// Adopt takes an order of an older epoch over into the present one. It is called as the AdoptIn of a life of Redis.
var Adopt = script(adopt)

// AdoptIn is Adopt under the name of a life of Redis, loaded as ReserveIn is: data that is older may have no unit for an order
// that was promised.
func AdoptIn(life string) Script { return inLife(adopt, life) }

//go:embed retire.lua
var retire string

// Retire takes settled orders out of the outbox.
var Retire = script(retire)

//go:embed sweep.lua
var sweep string

// Sweep forgets consumers of an outbox that are gone and hold nothing.
var Sweep = script(sweep)

//go:embed stray.lua
var stray string

// Stray finds entries of an outbox that nobody holds.
var Stray = script(stray)

//go:embed adjust.lua
var adjust string

// Adjust applies an operator's change of the stock, once.
var Adjust = script(adjust)

//go:embed define.lua
var define string

// Define applies a newer definition of a sale.
var Define = script(define)

//go:embed lock.lua
var lock string

// Lock takes a lock or another hold of it.
var Lock = script(lock)

//go:embed renew.lua
var renew string

// Renew makes the lease of a lock begin anew.
var Renew = script(renew)

//go:embed unlock.lua
var unlock string

// Unlock gives a hold of a lock back.
var Unlock = script(unlock)

//go:embed group.lua
var group string

// Group makes the consumer group of an outbox, where there is anything of its sale.
var Group = script(group)

//go:embed forget.lua
var forget string

// Forget takes an archived sale's keys out.
var Forget = script(forget)

//go:embed standby.lua
var standby string

// Standby is the standby line's word in a sale's state.
var Standby = script(standby)

//go:embed reduce.lua
var reduce string

// Reduce locks units of a SKU for an order of a cart. It is called as the ReduceIn of a life of Redis.
var Reduce = script(reduce)

// ReduceIn is Reduce under the name of a life of Redis, as ReserveIn is Reserve. It must be loaded only into a primary that knows
// that of the life before, or whose SKUs were forgotten.
func ReduceIn(life string) Script { return inLife(reduce, life) }

//go:embed sku_unlock.lua
var skuUnlock string

// UnlockSKU ends the lock of an order of a cart: its units are sold, or available again.
var UnlockSKU = script(skuUnlock)

//go:embed sku_adjust.lua
var skuAdjust string

// AdjustSKU applies an operator's change of a SKU's available units, once.
var AdjustSKU = script(skuAdjust)

//go:embed sku_load.lua
var skuLoad string

// LoadSKU brings a SKU into Redis, once.
var LoadSKU = script(skuLoad)

// What scripts answer; each script's head says which of these it gives, and what follows.
const (
	Reserved       = "reserved"
	Repeated       = "repeated"
	KeyReused      = "key_reused"
	AlreadyOrdered = "already_ordered"
	SoldOut        = "sold_out"
	NotEnough      = "not_enough"
	TooMany        = "too_many"
	NotStarted     = "not_started"
	Ended          = "ended"
	Paused         = "paused"
	GateClosed     = "gate_closed"
	StaleEpoch     = "stale_epoch"
	NotLoaded      = "not_loaded"
	Released       = "released"
	Done           = "done"
	Closed         = "closed"
	Lost           = "lost"
	OK             = "ok"
	Opened         = "opened"
	Adopted        = "adopted"
	Present        = "present"
	Limit          = "limit"
	Applied        = "applied"
	Defined        = "defined"
	Older          = "older"
	Reduced        = "reduced"
	AlreadyApplied = "already_applied"
	Unlocked       = "unlocked"
	Claimed        = "claimed"
	Granted        = "granted"
	Held           = "held"
	Renewed        = "renewed"
	NotOwner       = "not_owner"
	Freed          = "freed"
	Kept           = "kept"
	Made           = "made"
	Forgotten      = "forgotten"
	Queued         = "queued"
	Available      = "available"
	Joinable       = "joinable"
)

// A gate, as the state hash has it.
const (
	GateOpen   = "open"   // to reserve, release and adopt
	GateAdopt  = "adopt"  // to adopt only
	GateShut   = "closed" // to all three
	StepBegin  = "begin"  // the steps of Load
	StepOrders = "orders"
	StepKeys   = "keys"
	StepIntent = "applied"
	StepFinish = "finish"
	StepClaim  = "claim" // the steps of LoadSKU, beside orders and finish
	StepDrop   = "drop"
)

// The steps of Standby, and what a call of Reserve on behalf of the line says.
const (
	StepLook = "look"
	StepWait = "wait"
	StepRest = "rest"
	ForLine  = "line"
)

// What UnlockSKU makes of units.
const (
	ToSold = "sold"
	ToBack = "back"
)

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

//go:embed sale_reserve.lua
var saleReserve string

// SaleReserve decides one order. It is called as the ReserveIn of a life of Redis.
var SaleReserve = script(saleReserve)

// SaleReserveIn is Reserve under the name of a life of Redis. It must be loaded by nobody but a reconciler, into primaries alone, after it
// has closed the gates of those that do not know the life before. A primary that does not know it (NOSCRIPT) was started anew or
// promoted, with data that may be older, and gates that are open. Redis does not replicate scripts, and keeps them when a
// primary becomes a replica; so a node that was the primary once may know the script of an earlier life, and not this one.
func SaleReserveIn(life string) Script { return inLife(saleReserve, life) }

// Witness does nothing. A primary that knows it was given a life's scripts in this replication history, and was not promoted since.
func Witness(life, history string) Script { return inLife("-- in the history "+history+"\n", life) }

func inLife(source, life string) Script {
	s := script(source + "-- life " + life + "\n")
	s.Life = true
	return s
}

//go:embed sale_release.lua
var saleRelease string

// SaleRelease gives the units of an order that ended back, once.
var SaleRelease = script(saleRelease)

//go:embed sale_close.lua
var saleClose string

// SaleClose closes a sale's gate for a reconciler.
var SaleClose = script(saleClose)

//go:embed sale_load.lua
var saleLoad string

// SaleLoad writes a sale behind its closed gate.
var SaleLoad = script(saleLoad)

//go:embed sale_open.lua
var saleOpen string

// SaleOpen opens a reconciled sale's gate.
var SaleOpen = script(saleOpen)

//go:embed sale_beat.lua
var saleBeat string

// SaleBeat shows that the reconciler of a sale is at work.
var SaleBeat = script(saleBeat)

//go:embed sale_adopt.lua
var saleAdopt string

// SaleAdopt takes an order of an older epoch over into the present one. It is called as the AdoptIn of a life of Redis.
var SaleAdopt = script(saleAdopt)

// SaleAdoptIn is Adopt under the name of a life of Redis, loaded as ReserveIn is: data that is older may have no unit for an order
// that was promised.
func SaleAdoptIn(life string) Script { return inLife(saleAdopt, life) }

//go:embed outbox_retire.lua
var outboxRetire string

// OutboxRetire takes settled orders out of the outbox.
var OutboxRetire = script(outboxRetire)

//go:embed outbox_sweep.lua
var outboxSweep string

// OutboxSweep forgets consumers of an outbox that are gone and hold nothing.
var OutboxSweep = script(outboxSweep)

//go:embed outbox_skipped.lua
var outboxSkipped string

// OutboxSkipped finds entries of an outbox that nobody holds.
var OutboxSkipped = script(outboxSkipped)

//go:embed sale_adjust.lua
var saleAdjust string

// SaleAdjust applies an operator's change of the stock, once.
var SaleAdjust = script(saleAdjust)

//go:embed sale_define.lua
var saleDefine string

// SaleDefine applies a newer definition of a sale.
var SaleDefine = script(saleDefine)

//go:embed lock_take.lua
var lockTake string

// LockTake takes a lock or another hold of it.
var LockTake = script(lockTake)

//go:embed lock_renew.lua
var lockRenew string

// LockRenew makes the lease of a lock begin anew.
var LockRenew = script(lockRenew)

//go:embed lock_release.lua
var lockRelease string

// LockRelease gives a hold of a lock back.
var LockRelease = script(lockRelease)

//go:embed outbox_group.lua
var outboxGroup string

// OutboxGroup makes the consumer group of an outbox, where there is anything of its sale.
var OutboxGroup = script(outboxGroup)

//go:embed sale_forget.lua
var saleForget string

// SaleForget takes an archived sale's keys out.
var SaleForget = script(saleForget)

//go:embed sale_standby.lua
var saleStandby string

// SaleStandby is the standby line's word in a sale's state.
var SaleStandby = script(saleStandby)

//go:embed sku_lock.lua
var skuLock string

// SKULock locks units of a SKU for an order of a cart. It is called as the ReduceIn of a life of Redis.
var SKULock = script(skuLock)

// SKULockIn is Reduce under the name of a life of Redis, as ReserveIn is Reserve. It must be loaded only into a primary that knows
// that of the life before, or whose SKUs were forgotten.
func SKULockIn(life string) Script { return inLife(skuLock, life) }

//go:embed sku_unlock.lua
var skuUnlock string

// SKUUnlock ends the lock of an order of a cart: its units are sold, or available again.
var SKUUnlock = script(skuUnlock)

//go:embed sku_adjust.lua
var skuAdjust string

// SKUAdjust applies an operator's change of a SKU's available units, once.
var SKUAdjust = script(skuAdjust)

//go:embed sku_load.lua
var skuLoad string

// SKULoad brings a SKU into Redis, once.
var SKULoad = script(skuLoad)

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
	Beating        = "beating"
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

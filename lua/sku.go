package lua

import _ "embed"

//go:embed sku_lock.lua
var skuLock string

// SKULock locks units of a SKU for an order of a cart. It is called as the SKULockIn of an incarnation.
//
// Answers: Reduced, AlreadyApplied, NotEnough, NotLoaded.
var SKULock = script(skuLock)

// SKULockIn is SKULock in an incarnation. It may be loaded only into a primary that has the SKULockIn of the incarnation
// before, or whose SKUs were removed.
func SKULockIn(incarnation string) Script { return inIncarnation(skuLock, incarnation) }

const (
	Reduced        Answer = "reduced"
	AlreadyApplied Answer = "already_applied"
)

//go:embed sku_unlock.lua
var skuUnlock string

// SKUUnlock ends the lock of an order of a cart: its units are sold (ToSold), or available again (ToBack).
//
// Answers: Unlocked, Done, GateClosed, NotLoaded.
var SKUUnlock = script(skuUnlock)

const (
	Unlocked Answer = "unlocked"

	ToSold = "sold"
	ToBack = "back"
)

//go:embed sku_adjust.lua
var skuAdjust string

// SKUAdjust applies an operator's change of a SKU's available units, once.
//
// Answers: Applied, Done, GateClosed, NotLoaded.
var SKUAdjust = script(skuAdjust)

//go:embed sku_load.lua
var skuLoad string

// SKULoad writes a SKU into Redis, in steps: StepClaim, StepOrders, StepFinish or StepDrop.
//
// Answers: Present, GateClosed, Claimed, OK, Lost.
var SKULoad = script(skuLoad)

const (
	Claimed Answer = "claimed"

	StepClaim = "claim"
	StepDrop  = "drop"
)

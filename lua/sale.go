package lua

import _ "embed"

//go:embed sale_reserve.lua
var saleReserve string

// SaleReserve decides one order. It is called as the SaleReserveIn of an incarnation.
//
// Answers: Reserved, Repeated, KeyReused, AlreadyOrdered, SoldOut, NotEnough, TooMany, NotStarted, Ended, Paused, GateClosed,
// StaleEpoch, NotLoaded.
var SaleReserve = script(saleReserve)

// SaleReserveIn is SaleReserve in an incarnation.
func SaleReserveIn(incarnation string) Script { return inIncarnation(saleReserve, incarnation) }

const (
	Reserved       Answer = "reserved"
	Repeated       Answer = "repeated"
	KeyReused      Answer = "key_reused"
	AlreadyOrdered Answer = "already_ordered"
	SoldOut        Answer = "sold_out"
	TooMany        Answer = "too_many"
	NotStarted     Answer = "not_started"
	Ended          Answer = "ended"
	Paused         Answer = "paused"
	StaleEpoch     Answer = "stale_epoch"

	ForLine = "line" // the argument of a call on behalf of the standby line
)

//go:embed sale_release.lua
var saleRelease string

// SaleRelease gives the units of an order that ended back, once.
//
// Answers: Released, Done, GateClosed, NotLoaded.
var SaleRelease = script(saleRelease)

const Released Answer = "released"

//go:embed sale_close.lua
var saleClose string

// SaleClose closes a sale's gate for a reconciler.
//
// Answers: Closed, Lost.
var SaleClose = script(saleClose)

const Closed Answer = "closed"

//go:embed sale_load.lua
var saleLoad string

// SaleLoad writes a sale behind its closed gate, in steps: StepBegin, StepOrders, StepKeys, StepIntent, StepFinish.
//
// Answers: OK, Lost.
var SaleLoad = script(saleLoad)

const (
	StepBegin  = "begin"
	StepKeys   = "keys"
	StepIntent = "applied"
)

//go:embed sale_open.lua
var saleOpen string

// SaleOpen opens the gate of a reconciled sale.
//
// Answers: Opened, Lost.
var SaleOpen = script(saleOpen)

const Opened Answer = "opened"

//go:embed sale_beat.lua
var saleBeat string

// SaleBeat shows that the reconciler of a sale is at work.
//
// Answers: Beating, Lost.
var SaleBeat = script(saleBeat)

const Beating Answer = "beating"

//go:embed sale_held.lua
var saleHeld string

// SaleHeld says which orders a sale holds, and writes after them.
//
// Answers: Held, NotLoaded.
var SaleHeld = script(saleHeld)

//go:embed sale_refill.lua
var saleRefill string

// SaleRefill adds orders that MySQL has forgotten to the outbox again.
//
// Answers: OK, Lost.
var SaleRefill = script(saleRefill)

//go:embed sale_adopt.lua
var saleAdopt string

// SaleAdopt re-queues an order of an older epoch in the current one. It is called as the SaleAdoptIn of an incarnation.
//
// Answers: Adopted, Present, SoldOut, Limit, KeyReused, GateClosed, StaleEpoch.
var SaleAdopt = script(saleAdopt)

// SaleAdoptIn is SaleAdopt in an incarnation: data that is older may have no unit for an order that was promised.
func SaleAdoptIn(incarnation string) Script { return inIncarnation(saleAdopt, incarnation) }

const (
	Adopted Answer = "adopted"
	Limit   Answer = "limit"
)

//go:embed sale_adjust.lua
var saleAdjust string

// SaleAdjust applies an operator's change of a sale's stock, once.
//
// Answers: Applied, Done, NotEnough, GateClosed, NotLoaded.
var SaleAdjust = script(saleAdjust)

//go:embed sale_define.lua
var saleDefine string

// SaleDefine applies a newer definition of a sale.
//
// Answers: Defined, Older, NotLoaded.
var SaleDefine = script(saleDefine)

const (
	Defined Answer = "defined"
	Older   Answer = "older"
)

//go:embed sale_forget.lua
var saleForget string

// SaleForget removes the keys of an archived sale.
//
// Answers: Forgotten, Lost, Queued.
var SaleForget = script(saleForget)

const (
	Forgotten Answer = "forgotten"
	Queued    Answer = "queued"
)

//go:embed sale_standby.lua
var saleStandby string

// SaleStandby is the standby line's part in a sale's state, in steps: StepLook, StepWait, StepRest.
//
// Answers: Joinable, Available, AlreadyOrdered, NotStarted, Ended, Paused, GateClosed, Done, Kept, NotLoaded.
var SaleStandby = script(saleStandby)

const (
	Joinable  Answer = "joinable"
	Available Answer = "available"

	StepLook = "look"
	StepWait = "wait"
	StepRest = "rest"
)

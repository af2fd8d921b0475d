package lua

import _ "embed"

//go:embed lock_take.lua
var lockTake string

// LockTake takes a lock, or one more hold of it.
//
// Answers: Granted, Held.
var LockTake = script(lockTake)

const (
	Granted Answer = "granted"
)

//go:embed lock_renew.lua
var lockRenew string

// LockRenew starts the lease of a lock again.
//
// Answers: Renewed, NotOwner.
var LockRenew = script(lockRenew)

const (
	Renewed  Answer = "renewed"
	NotOwner Answer = "not_owner"
)

//go:embed lock_release.lua
var lockRelease string

// LockRelease gives one hold of a lock back.
//
// Answers: Freed, Kept, NotOwner.
var LockRelease = script(lockRelease)

const Freed Answer = "freed"

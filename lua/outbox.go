package lua

import _ "embed"

//go:embed outbox_group.lua
var outboxGroup string

// OutboxGroup creates the consumer group of an outbox, if Redis has anything of its sale.
//
// Answers: Made, Done, NotLoaded.
var OutboxGroup = script(outboxGroup)

const Made Answer = "made"

//go:embed outbox_retire.lua
var outboxRetire string

// OutboxRetire removes the entries of settled orders. It answers how many there were.
var OutboxRetire = script(outboxRetire)

//go:embed outbox_sweep.lua
var outboxSweep string

// OutboxSweep removes idle consumers that hold nothing. It answers how many.
var OutboxSweep = script(outboxSweep)

//go:embed outbox_skipped.lua
var outboxSkipped string

// OutboxSkipped finds entries that the group has read past and no consumer holds. It answers where to continue, and their ids.
var OutboxSkipped = script(outboxSkipped)

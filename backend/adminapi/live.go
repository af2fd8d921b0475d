package adminapi

import (
	"floodgate.internal/shared/wire"
)

// LiveBegin is the first event of GET /live: what this backend has seen since it was started, at most a quarter of an hour.
type LiveBegin struct {
	Backend string      `json:"backend"`  // its host
	EveryMS int64       `json:"every_ms"` // between two points
	History []LivePoint `json:"history"`  // the oldest first
	Last    *Live       `json:"last"`     // null: there was no sample yet
}

// LivePoint is a point of the charts.
type LivePoint struct {
	At          wire.Time          `json:"at"`
	Presses     map[string]float64 `json:"presses"`       // a second, by answer
	Depth       int64              `json:"depth"`         // orders on their way; -1: not known
	OldestAgeMS int64              `json:"oldest_age_ms"` // of the oldest; -1: not known
	Sales       []SalePoint        `json:"sales"`         // the newest that are not closed
}

// SalePoint is where a sale's units were.
type SalePoint struct {
	ID     int64 `json:"id"`
	Sold   int64 `json:"sold"`
	Locked int64 `json:"locked"`
	Queued int64 `json:"queued"`
}

// Live is what is now: an event of GET /live.
type Live struct {
	At       wire.Time          `json:"at"`
	Presses  map[string]float64 `json:"presses"`  // a second, by answer, of all gateways
	Refusals map[string]float64 `json:"refusals"` // a second, by rule, of all gateways
	Gateways []LiveGateway      `json:"gateways"`
	UIDs     []wire.TopClient   `json:"uids"`
	Networks []wire.TopClient   `json:"networks"`
	Queue    *Queue             `json:"queue"`  // null: it could not be read
	Sales    []Sale             `json:"sales"`  // the newest 50
	Errors   []string           `json:"errors"` // what could not be read
}

// LiveGateway is how one gateway is.
type LiveGateway struct {
	Name           string             `json:"name"`
	Version        string             `json:"version"`
	Generation     int64              `json:"generation"`
	Hash           string             `json:"hash"`
	StartedAt      wire.Time          `json:"started_at"`
	ReloadedAt     wire.Time          `json:"reloaded_at"`
	SilentMS       int64              `json:"silent_ms"`   // since its last report
	FeedAgeMS      int64              `json:"feed_age_ms"` // at that report; -1: it never received the feed
	Connections    int64              `json:"connections"`
	MaxConnections int64              `json:"max_connections"`
	Presses        map[string]float64 `json:"presses"` // a second, by answer; null: not known yet, or it is silent
}

// Replay is the body of POST /dead-letters/replay.
type Replay struct {
	SaleID *int64 `json:"sale_id"` // absent: of every sale, and of none
	Limit  *int64 `json:"limit"`   // dead letters, at most
}

// ReplayDone is what POST /dead-letters/replay did, the oldest dead letter first.
type ReplayDone struct {
	Replayed []ReplayedLetter `json:"replayed"`
	Stopped  *ReplayedLetter  `json:"stopped"` // the one it stopped at, which stays open; null: none failed
	Left     int64            `json:"left"`    // that are still open, of those that were meant
}

// ReplayedLetter is what became of one dead letter.
type ReplayedLetter struct {
	ID      int64  `json:"id"`
	OrderID string `json:"order_id"`
	Result  string `json:"result"`
	Detail  string `json:"detail"`
}

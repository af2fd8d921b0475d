package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"floodgate.internal/shared/wire"
)

// line is what a replay needs of a line of the access log.
type line struct {
	Time    time.Time `json:"time"`
	Msg     string    `json:"msg"`
	Method  string    `json:"method"`
	Path    string    `json:"path"`
	UID     string    `json:"uid"`
	Addr    string    `json:"addr"` // a keyed hash
	Network string    `json:"network"`
	Rule    string    `json:"rule"`
	Took    float64   `json:"took"`  // seconds
	Known   bool      `json:"known"` // it drew on ip_users
	Every   *int      `json:"every"`
	Gap     bool      `json:"gap"`
}

// LogSeen is what was read.
type LogSeen struct {
	Lines      int `json:"lines"`
	Requests   int `json:"requests"`
	Other      int `json:"other"`      // other messages of the gateway
	Unreadable int `json:"unreadable"` // no JSON, too long, cut, or not like a request
	// Gaps is how often the gateway dropped lines, for log.access_max.
	Gaps int `json:"gaps"`
}

// maxLine bounds a line, in bytes.
const maxLine = 64 << 10

// maxTook bounds how long a request may have taken.
const maxTook = time.Hour

type lines struct {
	r    *bufio.Reader
	seen LogSeen
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, maxLine)} }

// next is the next request, or io.EOF.
func (l *lines) next() (*request, error) {
	for {
		text, err := l.r.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = l.r.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the log after %d lines: %w", l.seen.Lines, err)
		}
		if len(text) == 0 && err != nil {
			return nil, err
		}
		l.seen.Lines++
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			continue
		}
		var in line
		switch bad := json.Unmarshal(text, &in); {
		case long, bad != nil:
			l.seen.Unreadable++
			continue
		case in.Msg != "request":
			l.seen.Other++
			continue
		}
		took := time.Duration(in.Took * float64(time.Second))
		if in.Time.IsZero() || in.Method == "" || took < 0 || took > maxTook || in.UID != "" && !wire.ValidUID(in.UID) {
			l.seen.Unreadable++
			continue
		}
		if err := complete(in.Every, l.seen.Lines); err != nil {
			return nil, err
		}
		l.seen.Requests++
		if in.Gap {
			l.seen.Gaps++
		}
		return &request{line: in, arrived: in.Time.Add(-took), place: l.seen.Lines}, nil
	}
}

// complete refuses a sample. Most of a user's requests are missing from it, so that no bucket would be as full as it was.
func complete(every *int, at int) error {
	const way = "a replay needs a log of all requests: set log.access_every: 1, and log.access_max to more than come in a second"
	switch {
	case every == nil:
		return fmt.Errorf("line %d does not say whether it is one of a sample: %s", at, way)
	case *every == 0:
		return fmt.Errorf("line %d: the log has failed and refused requests alone (log.access_every: 0): %s", at, way)
	case *every != 1:
		return fmt.Errorf("line %d: the log is a sample, of one request in %d (log.access_every): %s", at, *every, way)
	}
	return nil
}

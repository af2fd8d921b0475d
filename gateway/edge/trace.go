package edge

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"

	"floodgate.internal/shared/wire"
)

// traceparent is the W3C trace context (https://www.w3.org/TR/trace-context/) of what is sent to a backend: the trace and the
// flags that the client named, once and well formed, else a new trace, which is sampled if the request is logged; and a parent-id of
// our own. It is made when it is first asked for, so that a refusal by the gateway's own rules makes none, and has its room in the
// exchange.
func (x *exchange) traceparent() []byte {
	if len(x.trace) > 0 {
		return x.trace
	}
	flags := "00"
	x.trace = append(x.traceRoom[:0], "00-"...)
	if given := x.givenTrace(); given != "" {
		x.trace, flags = append(x.trace, wire.TraceID([]byte(given))...), given[53:]
	} else {
		if x.logged() {
			flags = "01"
		}
		x.trace = appendHex(appendHex(x.trace))
	}
	x.trace = append(append(appendHex(append(x.trace, '-')), '-'), flags...)
	return x.trace
}

// givenTrace is the client's traceparent, "" for none: one that is not well formed, or comes twice, is none.
func (x *exchange) givenTrace() string {
	if given := x.ctx.Request.Header.PeekAll("traceparent"); len(given) == 1 {
		return wire.Traceparent(given[0])
	}
	return ""
}

// appendHex appends 16 random digits, which are not all zeros.
func appendHex(b []byte) []byte {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], 1+rand.Uint64N(math.MaxUint64))
	return hex.AppendEncode(b, n[:])
}

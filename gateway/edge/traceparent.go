package edge

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"

	"floodgate.internal/shared/wire"
)

// traceparent is the W3C trace context (https://www.w3.org/TR/trace-context/) that a backend is sent: the client's trace
// id, or a new one, with a parent id of the gateway's own. It is made on first use, so that a refusal makes none. Whether the trace is
// sampled the gateway decides, where it traces. Otherwise that is as the client says, or, for a new trace, if the request is logged.
func (x *exchange) traceparent() []byte {
	if len(x.trace) > 0 {
		return x.trace
	}
	if x.isTraced() {
		x.trace = append(x.traceRoom[:0], x.requestSpan().Traceparent()...)
		return x.trace
	}
	flags := "00"
	x.trace = append(x.traceRoom[:0], "00-"...)
	if given := x.givenTrace(); given != "" {
		x.trace = append(x.trace, wire.TraceID([]byte(given))...)
		if x.s.Tracer == nil {
			flags = given[53:]
		}
	} else {
		if x.s.Tracer == nil && x.isSampled() {
			flags = "01"
		}
		x.trace = appendHex(appendHex(x.trace))
	}
	x.trace = append(append(appendHex(append(x.trace, '-')), '-'), flags...)
	return x.trace
}

// givenTrace is the client's traceparent; "" if there is none, more than one, or one that is malformed.
func (x *exchange) givenTrace() string {
	if given := x.ctx.Request.Header.PeekAll("traceparent"); len(given) == 1 {
		return wire.Traceparent(given[0])
	}
	return ""
}

// appendHex appends 16 random hexadecimal digits, which are not all zeros.
func appendHex(b []byte) []byte {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], 1+rand.Uint64N(math.MaxUint64))
	return hex.AppendEncode(b, n[:])
}

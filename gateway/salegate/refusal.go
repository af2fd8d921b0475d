package salegate

import (
	"strings"

	"floodgate.internal/shared/problem"
)

// Refusal is a problem whose bytes are made in advance, all but the request id. Answering with it allocates nothing.
type Refusal struct {
	Status int
	Code   problem.Code

	before, after string // the body around the request id
}

const placeholder = "REQUEST-ID-GOES-HERE"

// Prepare makes the bytes of p. Retry-After is a header, and not among them.
func Prepare(p *problem.Problem) *Refusal {
	body := string(p.JSON(placeholder))
	before, after, ok := strings.Cut(body, placeholder)
	if !ok {
		panic("BUG: a problem without its request id: " + body)
	}
	return &Refusal{Status: p.Status, Code: p.Code, before: before, after: after}
}

// Len is the length of the body with the request id.
func (r *Refusal) Len(requestID []byte) int { return len(r.before) + len(requestID) + len(r.after) }

// AppendBody appends the body with the request id to dst.
func (r *Refusal) AppendBody(dst, requestID []byte) []byte {
	dst = append(dst, r.before...)
	dst = append(dst, requestID...)
	return append(dst, r.after...)
}

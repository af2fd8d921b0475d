package salegate

import (
	"strings"
	"time"

	"floodgate.internal/shared/problem"
)

// Refusal is a problem whose bytes were made in advance; only the request id is still missing.
type Refusal struct {
	Status int
	Code   problem.Code
	// RetryAfter goes into the Retry-After field; 0 for none.
	RetryAfter time.Duration

	before, after string // the body around the request id
}

const hole = "REQUEST-ID-GOES-HERE"

// Prepare makes p's bytes.
func Prepare(p *problem.Problem) *Refusal {
	body := string(p.JSON(hole))
	before, after, ok := strings.Cut(body, hole)
	if !ok {
		panic("BUG: a problem without its request id: " + body)
	}
	return &Refusal{Status: p.Status, Code: p.Code, RetryAfter: p.RetryAfter, before: before, after: after}
}

// AppendBody appends the body with the request id to dst.
func (r *Refusal) AppendBody(dst []byte, requestID string) []byte {
	dst = append(dst, r.before...)
	dst = append(dst, requestID...)
	return append(dst, r.after...)
}

// in is r with another Retry-After.
func (r *Refusal) in(d time.Duration) *Refusal {
	c := *r
	c.RetryAfter = d
	return &c
}

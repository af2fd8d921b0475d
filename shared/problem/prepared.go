package problem

import "strings"

// Prepared is a problem whose bytes are made in advance, all but the request id. Answering with it allocates nothing.
type Prepared struct {
	Status int
	Code   Code

	before, after string // the body around the request id
}

const placeholder = "REQUEST-ID-GOES-HERE"

// Prepare makes the bytes of p. Retry-After is a header, and not among them.
func Prepare(p *Problem) *Prepared {
	body := string(p.JSON(placeholder))
	before, after, ok := strings.Cut(body, placeholder)
	if !ok {
		panic("BUG: a problem without its request id: " + body)
	}
	return &Prepared{Status: p.Status, Code: p.Code, before: before, after: after}
}

// Len is the length of the body with the request id.
func (p *Prepared) Len(requestID []byte) int { return len(p.before) + len(requestID) + len(p.after) }

// AppendBody appends the body with the request id to dst.
func (p *Prepared) AppendBody(dst, requestID []byte) []byte {
	dst = append(dst, p.before...)
	dst = append(dst, requestID...)
	return append(dst, p.after...)
}

package edge

import (
	"bytes"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// isJSON reports whether a body is empty or declared as JSON, or answers 415.
func (x *exchange) isJSON(body []byte) bool {
	if len(body) == 0 {
		return true
	}
	media, _, _ := bytes.Cut(x.ctx.Request.Header.ContentType(), []byte(";"))
	if bytes.EqualFold(bytes.TrimSpace(media), []byte("application/json")) {
		return true
	}
	x.reject(ruleBody, problem.New(problem.UnsupportedMediaType, "the body must be application/json"))
	return false
}

// decode reads a JSON body into v, or answers 415 or 400.
func (x *exchange) decode(v any) bool {
	body := x.ctx.Request.Body()
	if !x.isJSON(body) {
		return false
	}
	if err := wire.DecodeStrict(body, v); err != nil {
		x.badBody(err)
		return false
	}
	return true
}

// noBody reports whether the body is empty or {}, or answers 415 or 400.
func (x *exchange) noBody() bool {
	return len(x.ctx.Request.Body()) == 0 || x.decode(&struct{}{})
}

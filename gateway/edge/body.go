package edge

import (
	"bytes"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// isJSON reports whether a body is empty or declared as JSON, or answers 415.
func (x *exchange) isJSON(body []byte) bool {
	if len(body) == 0 || jsonMedia(x.ctx.Request.Header.ContentType()) {
		return true
	}
	x.reject(ruleBody, problem.New(problem.UnsupportedMediaType, "the body must be application/json"))
	return false
}

// jsonMedia reports whether a Content-Type is JSON's.
func jsonMedia(contentType []byte) bool {
	media, _, _ := bytes.Cut(contentType, []byte(";"))
	return bytes.EqualFold(bytes.TrimSpace(media), []byte("application/json"))
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

package edge

import (
	"fmt"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// maxDeliveries bounds the deliveries at the backends at once, so that a flood of forged ones takes no shopper's place.
// One more is OVERLOADED, and providers deliver again.
const maxDeliveries = 64

// webhook is POST /v1/payments/webhook/{provider}. The provider signs the very bytes of the body and the backend verifies
// them, so the body and one header are sent on unchanged.
func (x *exchange) webhook() {
	if !x.admitAddress() {
		return
	}
	body := x.ctx.Request.Body()
	if len(body) > wire.MaxWebhook {
		x.reject(ruleBody, problem.New(problem.PayloadTooLarge, fmt.Sprintf("%d bytes, at most %d are taken", len(body), wire.MaxWebhook)))
		return
	}
	if !x.isJSON(body) {
		return
	}
	signature := x.ctx.Request.Header.Peek(wire.PaymentSignature)
	if len(signature) > wire.MaxSignature {
		x.badField(wire.PaymentSignature, fmt.Sprintf("%d bytes, at most %d are taken", len(signature), wire.MaxSignature))
		return
	}
	for _, c := range signature {
		if c < ' ' || c > '~' {
			x.badField(wire.PaymentSignature, "it must be ASCII")
			return
		}
	}
	defer x.s.deliveries.Add(-1)
	if x.s.deliveries.Add(1) > maxDeliveries {
		x.rejectPrepared(ruleInFlight, tooManyDelivered, time.Second+jitter(time.Second))
		return
	}
	if !x.room(0) {
		return
	}
	r := x.request()
	r.PaymentSignature, r.Body = string(signature), body
	x.forward(r)
}

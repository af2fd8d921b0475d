package edge

import (
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/gateway/upstream"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// webhooksOnce bounds the deliveries at the backends at once, so that a flood of forged ones takes no shopper's place there;
// one more is OVERLOADED, and providers deliver again.
const webhooksOnce = 64

// webhook is POST /v1/payments/webhook/{provider}. No user is looked for and no sale: the provider signs, the backend
// verifies, over the very bytes that came. So of the request its body and one header go on, untouched, and whoever sends it
// has a bucket of their own, an address each, that shoppers do not draw on.
func (x *exchange) webhook(provider string) {
	if !x.admit(ruleWebhook, x.takeAddress(x.s.webhooks, x.set.Webhook)) {
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
		x.reject(ruleBody, problem.Invalid(wire.PaymentSignature, fmt.Sprintf("%d bytes, at most %d are taken", len(signature), wire.MaxSignature)))
		return
	}
	for _, c := range signature {
		if c < ' ' || c > '~' {
			x.reject(ruleBody, problem.Invalid(wire.PaymentSignature, "it must be ASCII"))
			return
		}
	}
	defer x.s.delivering.Add(-1)
	if x.s.delivering.Add(1) > webhooksOnce {
		x.prepared(ruleInFlight, deliveriesFull, time.Second+jitter(time.Second))
		return
	}
	if !x.room(upstream.Settle, 0) {
		return
	}
	x.forward(&upstream.Request{Method: fasthttp.MethodPost, Target: wire.WebhookPath + provider, PaymentSignature: string(signature), Body: body})
}

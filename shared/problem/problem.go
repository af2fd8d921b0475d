// Package problem is the table of everything that can be refused: RFC 9457 problem details with a stable code.
package problem

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/wire"
)

// ContentType of a problem.
const ContentType = "application/problem+json"

// Code is the stable, machine-readable name of a refusal.
type Code string

// The codes, as the contract lists them.
const (
	Unauthenticated      Code = "UNAUTHENTICATED"
	Forbidden            Code = "FORBIDDEN"
	SaleNotFound         Code = "SALE_NOT_FOUND"
	OrderNotFound        Code = "ORDER_NOT_FOUND"
	NotFound             Code = "NOT_FOUND"
	SaleNotStarted       Code = "SALE_NOT_STARTED"
	SaleEnded            Code = "SALE_ENDED"
	SoldOut              Code = "SOLD_OUT"
	AlreadyOrdered       Code = "ALREADY_ORDERED"
	TooManyOrders        Code = "TOO_MANY_ORDERS"
	RateLimited          Code = "RATE_LIMITED"
	Overloaded           Code = "OVERLOADED"
	OutcomeUnknown       Code = "OUTCOME_UNKNOWN"
	IdempotencyKeyReused Code = "IDEMPOTENCY_KEY_REUSED"
	InsufficientStock    Code = "INSUFFICIENT_STOCK"
	BadRequest           Code = "BAD_REQUEST"
	PayloadTooLarge      Code = "PAYLOAD_TOO_LARGE"
	MethodNotAllowed     Code = "METHOD_NOT_ALLOWED"
	UnsupportedMediaType Code = "UNSUPPORTED_MEDIA_TYPE"
	OrderStateConflict   Code = "ORDER_STATE_CONFLICT"
	SaleStateConflict    Code = "SALE_STATE_CONFLICT"
	PreconditionFailed   Code = "PRECONDITION_FAILED"
	PaymentMismatch      Code = "PAYMENT_MISMATCH"
	UnitsAvailable       Code = "UNITS_AVAILABLE"
	StandbyFull          Code = "STANDBY_FULL"
	NotInLine            Code = "NOT_IN_LINE"
	Internal             Code = "INTERNAL"
)

type kind struct {
	status int
	title  string
}

var kinds = map[Code]kind{
	Unauthenticated:      {401, "Sign in first"},
	Forbidden:            {403, "Not allowed"},
	SaleNotFound:         {404, "No such sale"},
	OrderNotFound:        {404, "No such order"},
	NotFound:             {404, "No such page"},
	SaleNotStarted:       {403, "The sale has not started"},
	SaleEnded:            {403, "The sale has ended"},
	SoldOut:              {409, "Sold out"},
	AlreadyOrdered:       {409, "You already have an order"},
	TooManyOrders:        {409, "You have made too many orders in this sale"},
	RateLimited:          {429, "Too many requests"},
	Overloaded:           {503, "Busy, nothing was done"},
	OutcomeUnknown:       {503, "The outcome is not known yet"},
	IdempotencyKeyReused: {422, "This Idempotency-Key was used with another body"},
	InsufficientStock:    {409, "Not enough stock"},
	BadRequest:           {400, "Bad request"},
	PayloadTooLarge:      {413, "The body is too large"},
	MethodNotAllowed:     {405, "Method not allowed"},
	UnsupportedMediaType: {415, "Send application/json"},
	OrderStateConflict:   {409, "The order's state does not allow this"},
	SaleStateConflict:    {409, "The sale's state does not allow this"},
	PreconditionFailed:   {412, "It has changed since you read it"},
	PaymentMismatch:      {422, "The payment is not what the order costs"},
	UnitsAvailable:       {409, "There is no need to wait"},
	StandbyFull:          {409, "The standby line is full"},
	NotInLine:            {404, "You are not in the standby line"},
	Internal:             {500, "Something broke on our side"},
}

// Codes returns every code with its usual status, for documents and tests.
func Codes() map[Code]int {
	m := make(map[Code]int, len(kinds))
	for c, k := range kinds {
		m[c] = k.status
	}
	return m
}

// Problem is one refusal. It is an error; the edge writes it as application/problem+json.
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      Code   `json:"code"`
	RequestID string `json:"request_id"`

	Field    string     `json:"field,omitempty"`     // the member, parameter or header that is wrong
	OrderID  string     `json:"order_id,omitempty"`  // ALREADY_ORDERED: the order there is
	StartsAt *wire.Time `json:"starts_at,omitempty"` // SALE_NOT_STARTED
	// SOLD_OUT, while a tranche is still to come.
	NextReleaseAt *wire.Time `json:"next_release_at,omitempty"`

	// Rule names what refused, more closely than Code, for those between a backend and the client: see package timeline.
	Rule string `json:"-"`

	// RetryAfter becomes the Retry-After header, in whole seconds, rounded up; 0 for none.
	RetryAfter time.Duration `json:"-"`
}

// New makes a problem with the code's usual status. It panics on a code that is not in the table.
func New(code Code, detail string) *Problem {
	k, ok := kinds[code]
	if !ok {
		panic("BUG: problem code " + string(code) + " is not in the table")
	}
	return &Problem{Type: typeOf(code), Title: k.title, Status: k.status, Detail: detail, Code: code}
}

// Invalid makes a BAD_REQUEST that names the field.
func Invalid(field, detail string) *Problem {
	p := New(BadRequest, field+": "+detail)
	p.Field = field
	return p
}

func typeOf(code Code) string {
	return "urn:floodgate:problem:" + strings.ReplaceAll(strings.ToLower(string(code)), "_", "-")
}

// Error implements error.
func (p *Problem) Error() string { return string(p.Code) + ": " + p.Detail }

// JSON returns the body. requestID is put in.
func (p *Problem) JSON(requestID string) []byte {
	q := *p
	q.RequestID = requestID
	b, err := json.Marshal(&q, jsontext.AllowInvalidUTF8(true)) // what a client sent may be cut or broken: U+FFFD stands for it
	if err != nil {
		panic("BUG: a problem that does not marshal: " + err.Error())
	}
	return b
}

// WriteTo makes p the whole response: status, headers and body. Nothing of a problem is ever cacheable.
func (p *Problem) WriteTo(ctx *fasthttp.RequestCtx, requestID string) {
	h := &ctx.Response.Header
	ctx.Response.SetStatusCode(p.Status)
	h.SetContentType(ContentType)
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	if p.Status == 401 {
		scheme := "Bearer" // but for a webhook, which is signed
		if p.Field == wire.PaymentSignature {
			scheme = wire.PaymentSignature
		}
		h.Set("WWW-Authenticate", scheme+` realm="floodgate"`)
	}
	ctx.Response.SetBodyRaw(p.JSON(requestID))
}

package world

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/shared/wire"
)

// Client sends requests as shoppers and operators do. It follows no redirect.
type Client struct {
	// Seen is called with each answer that came; nil for nothing.
	Seen func(*http.Request, Call, Answer)

	http http.Client
}

// NewClient returns a client of at most so many connections to one host. It waits no longer than within for an answer.
func NewClient(conns int, within time.Duration) *Client {
	return &Client{http: http.Client{
		Timeout:       within,
		Transport:     &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns, IdleConnTimeout: 10 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call is one request. URL is absolute.
type Call struct {
	Method, URL string
	Token       string // bearer; "" for none
	Key         string // Idempotency-Key; "" for none
	Body        string // JSON, unless Header says otherwise
	Header      map[string]string
	Quiet       bool // one of thousands: for Client.Seen, which may skip it
}

// Answer is what came back. Status 0: nothing did, and Err says why.
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Err     error
	Code    string           // of a problem
	OrderID string           // that it names
	ID      int64            // of what was made
	State   string           // of a sale
	Order   wire.OrderStatus // the status of an order
}

func (a Answer) String() string {
	if a.Status == 0 {
		return "no answer: " + a.Err.Error()
	}
	return fmt.Sprintf("%d %s", a.Status, a.Body)
}

// Is returns an error unless the answer has this status and its body holds every one of the texts.
func (a Answer) Is(status int, texts ...string) error {
	for _, text := range texts {
		if !strings.Contains(string(a.Body), text) {
			return fmt.Errorf("got %s, want %q in it", a, text)
		}
	}
	if a.Status != status {
		return fmt.Errorf("got %s, want %d", a, status)
	}
	return nil
}

// AskAgain reports whether who got this is to ask again; else asking again would say the same.
func (a Answer) AskAgain() bool { return oracle.AskAgain(a.Status) }

// RetryAfter is how long the answer says to wait, or usually where it does not say.
func (a Answer) RetryAfter(usually time.Duration) time.Duration {
	if s, err := strconv.Atoi(a.Header.Get("Retry-After")); err == nil {
		return time.Duration(s) * time.Second
	}
	return usually
}

// Decode reads the body into v, or fails the test.
func (a Answer) Decode(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(a.Body, v); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
}

// To is the answer as it is logged for the oracle: who asked for an order, with which Idempotency-Key.
func (a Answer) To(uid, key string) oracle.Answer {
	return oracle.Answer{UID: uid, Key: key, Status: a.Status, Code: a.Code, OrderID: a.OrderID}
}

// Do sends a request. Half an answer is none.
func (c *Client) Do(ctx context.Context, call Call) Answer {
	req, err := http.NewRequestWithContext(ctx, call.Method, call.URL, strings.NewReader(call.Body))
	if err != nil {
		return Answer{Err: err}
	}
	if call.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if call.Token != "" {
		req.Header.Set("Authorization", "Bearer "+call.Token)
	}
	if call.Key != "" {
		// Under its usual spelling net/http would send the request again by itself when the connection breaks, and nobody would learn
		// that the first had an outcome that is not known.
		req.Header["idempotency-key"] = []string{call.Key}
	}
	for k, v := range call.Header {
		req.Header.Set(k, v)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Answer{Err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return Answer{Err: err}
	}
	a := Answer{Status: res.StatusCode, Header: res.Header, Body: b}
	if strings.Contains(res.Header.Get("Content-Type"), "json") {
		var v struct {
			Code    string `json:"code"`
			OrderID string `json:"order_id"`
			ID      int64  `json:"id"`
			State   string `json:"state"`
			Status  any    `json:"status"` // of an order a string, of a problem a number
		}
		_ = json.Unmarshal(b, &v) // what is not an object has none of these
		a.Code, a.OrderID, a.ID, a.State = v.Code, v.OrderID, v.ID, v.State
		status, _ := v.Status.(string)
		a.Order = wire.OrderStatus(status)
	}
	if c.Seen != nil {
		c.Seen(req, call, a)
	}
	return a
}

// SaleBody is what makes a sale of one unit a user at most.
func SaleBody(title string, stock int64, starts, ends time.Time, payWithin time.Duration) string {
	return fmt.Sprintf(`{"kind":"goods","title":%q,"price":4900,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,"per_user_limit":1,"pay_within_s":%d}`,
		title, stock, starts.UTC().Format(wire.TimeFormat), ends.UTC().Format(wire.TimeFormat), int(payWithin.Seconds()))
}

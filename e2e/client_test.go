//go:build servers

package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// call is one request; url is absolute.
type call struct {
	method, url string
	token       string // bearer; "" for none
	key         string // Idempotency-Key
	body        string
	header      map[string]string
	quiet       bool // one of thousands: only some answers of a kind are held against the contract
}

// answer is what came back. status 0: nothing did, and err says why.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	code    string // of a problem
	orderID string
	err     error
}

func (a answer) String() string {
	if a.status == 0 {
		return "no answer: " + a.err.Error()
	}
	return fmt.Sprintf("%d %s", a.status, a.body)
}

// decode reads the body into v.
func (a answer) decode(w *world, v any) {
	w.t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		w.t.Fatalf("%s: %v", a, err)
	}
}

// do sends a request and holds the answer against the contract.
func (w *world) do(ctx context.Context, c call) answer {
	var body io.Reader
	if c.body != "" {
		body = strings.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, c.url, body)
	if err != nil {
		return answer{err: err}
	}
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.key != "" {
		req.Header.Set("Idempotency-Key", c.key)
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	res, err := w.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{err: err}
	}
	a := answer{status: res.StatusCode, header: res.Header, body: b}
	if strings.Contains(res.Header.Get("Content-Type"), "json") {
		var v struct {
			Code    string `json:"code"`
			OrderID string `json:"order_id"`
		}
		_ = json.Unmarshal(b, &v) // what is not an object has neither
		a.code, a.orderID = v.Code, v.OrderID
	}
	w.contract.hold(w, req, a, c.quiet)
	return a
}

// public is a call to the gateway; admin one to the backend's admin listener.
func (w *world) public(method, path, token, body string) answer {
	w.t.Helper()
	return w.do(w.ctx, call{method: method, url: w.ports.PublicURL() + path, token: token, body: body})
}

func (w *world) admin(method, path, body string) answer {
	w.t.Helper()
	return w.do(w.ctx, call{method: method, url: w.ports.AdminURL() + path, token: development.AdminToken, body: body})
}

// want fails the test unless the answer has this status and code ("" for an answer that is no problem).
func (w *world) want(a answer, status int, code string) answer {
	w.t.Helper()
	if a.status != status || a.code != code {
		w.t.Fatalf("got %s, want %d %s", a, status, code)
	}
	return a
}

// newSale makes a sale by the admin API.
func (w *world) newSale(title string, stock int, starts time.Time, payWithin int) int64 {
	w.t.Helper()
	a := w.want(w.admin("POST", "/admin/v1/sales", fmt.Sprintf(
		`{"kind":"goods","title":%q,"price":4900,"currency":"EUR","stock":%d,"starts_at":%q,"ends_at":%q,"per_user_limit":1,"pay_within_s":%d}`,
		title, stock, starts.UTC().Format(wire.TimeFormat), starts.Add(time.Hour).UTC().Format(wire.TimeFormat), payWithin)), 201, "")
	var sale struct {
		ID int64 `json:"id"`
	}
	a.decode(w, &sale)
	return sale.ID
}

// begin moves the start of a sale that has not started to now: what is to be seen before it takes the time it takes.
func (w *world) begin(sale int64) {
	w.t.Helper()
	w.want(w.do(w.ctx, call{method: "PATCH", url: fmt.Sprintf("%s/admin/v1/sales/%d", w.ports.AdminURL(), sale), token: development.AdminToken,
		header: map[string]string{"If-Match": "*"}, body: fmt.Sprintf(`{"starts_at":%q}`, time.Now().UTC().Format(wire.TimeFormat))}), 200, "")
	w.state(sale, wire.Open)
}

// state waits until the gateway says that the sale is in this state.
func (w *world) state(sale int64, want wire.SaleState) {
	w.t.Helper()
	w.until(fmt.Sprintf("sale %d is %s at the gateway", sale, want), patience, func() (bool, string) {
		a := w.public("GET", fmt.Sprintf("/v1/sales/%d", sale), "", "")
		var s wire.Sale
		if a.status != 200 {
			return false, a.String()
		}
		a.decode(w, &s)
		return s.State == want, a.String()
	})
}

// order waits until an order is in this status.
func (w *world) order(id, token string, want wire.OrderStatus) wire.Order {
	w.t.Helper()
	var o wire.Order
	w.until(fmt.Sprintf("order %s is %s", id, want), patience, func() (bool, string) {
		a := w.public("GET", "/v1/orders/"+id+"?wait_ms=2000", token, "")
		if a.status != 200 {
			return false, a.String()
		}
		a.decode(w, &o)
		return o.Status == want, a.String()
	})
	return o
}

// tokens mints a token for each uid of from to to, with the gateway's own command.
func (w *world) tokens(from, to int) []string {
	w.t.Helper()
	cmd := exec.CommandContext(w.ctx, filepath.Join(machine.bin, "gateway"), "token", "-config", filepath.Join(w.dir, "gateway.yaml"),
		"-uid", fmt.Sprintf("%d-%d", from, to))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, stderr.Bytes())
	}
	list := strings.Fields(string(out))
	if len(list) != to-from+1 {
		w.t.Fatalf("gateway token -uid %d-%d: got %d tokens", from, to, len(list))
	}
	return list
}

// jwt signs any claims with HS256; header fields are given as they are.
func jwt(header, claims, secret string) string {
	enc := base64.RawURLEncoding
	text := enc.EncodeToString([]byte(header)) + "." + enc.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + enc.EncodeToString(mac.Sum(nil))
}

// badTokens are tokens that name uid and must all be refused.
func badTokens(uid string) map[string]string {
	now := time.Now().Unix()
	head := `{"alg":"HS256","typ":"JWT","kid":"` + development.LoginKeyID + `"}`
	claims := func(sub string, exp int64) string {
		return `{"sub":` + sub + `,"iat":` + strconv.FormatInt(now-3600, 10) + `,"exp":` + strconv.FormatInt(exp, 10) + `}`
	}
	good := claims(strconv.Quote(uid), now+3600)
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT","kid":"`+development.LoginKeyID+`"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(good)) + "."
	return map[string]string{
		"garbage":          "garbage",
		"forged":           jwt(head, good, "another-secret-that-is-also-32-bytes-long"),
		"alg none":         none,
		"unknown kid":      jwt(`{"alg":"HS256","typ":"JWT","kid":"other"}`, good, development.LoginSecret),
		"no kid":           jwt(`{"alg":"HS256","typ":"JWT"}`, good, development.LoginSecret),
		"other alg":        jwt(`{"alg":"HS512","typ":"JWT","kid":"`+development.LoginKeyID+`"}`, good, development.LoginSecret),
		"expired":          jwt(head, claims(strconv.Quote(uid), now-600), development.LoginSecret),
		"sub is a number":  jwt(head, claims(`1`, now+3600), development.LoginSecret),
		"sub is empty":     jwt(head, claims(`""`, now+3600), development.LoginSecret),
		"sub with a slash": jwt(head, claims(`"a/b"`, now+3600), development.LoginSecret),
		"sub too long":     jwt(head, claims(strconv.Quote(strings.Repeat("a", 65)), now+3600), development.LoginSecret),
	}
}

//go:build servers

package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// do sends a request.
func (w *system) do(ctx context.Context, c world.Call) world.Answer { return w.Client.Do(ctx, c) }

// press asks for one unit, as one of thousands.
func (w *system) press(ctx context.Context, sale int64, token, key string) world.Answer {
	return w.do(ctx, world.Call{Method: "POST", URL: fmt.Sprintf("%s/v1/sales/%d/orders", w.Ports.PublicURL(), sale), Token: token, Key: key,
		Body: `{"quantity":1}`, Quiet: true})
}

// tokens mints a token for each uid of from to to.
func (w *system) tokens(from, to int) []string {
	w.t.Helper()
	list, err := w.Mint(w.ctx, from, to)
	w.must(err)
	return list
}

// public is a call to the gateway; admin one to the backend's admin listener.
func (w *system) public(method, path, token, body string) world.Answer {
	w.t.Helper()
	return w.do(w.ctx, world.Call{Method: method, URL: w.Ports.PublicURL() + path, Token: token, Body: body})
}

func (w *system) admin(method, path, body string) world.Answer {
	w.t.Helper()
	return w.do(w.ctx, world.Call{Method: method, URL: w.Ports.AdminURL() + path, Token: development.AdminToken, Body: body})
}

// want fails the test unless the answer has this status and code ("" for an answer that is no problem).
func (w *system) want(a world.Answer, status int, code string) world.Answer {
	w.t.Helper()
	if a.Status != status || a.Code != code {
		w.t.Fatalf("got %s, want %d %s", a, status, code)
	}
	return a
}

// newSale makes a sale by the admin API.
func (w *system) newSale(title string, stock int64, starts time.Time, payWithin int) int64 {
	w.t.Helper()
	return w.want(w.admin("POST", "/admin/v1/sales", world.SaleBody(title, stock, starts, starts.Add(time.Hour), time.Duration(payWithin)*time.Second)), 201, "").ID
}

// begin moves the start of a sale that has not started to now: what is to be seen before it takes the time it takes.
func (w *system) begin(sale int64) {
	w.t.Helper()
	w.want(w.do(w.ctx, world.Call{Method: "PATCH", URL: fmt.Sprintf("%s/admin/v1/sales/%d", w.Ports.AdminURL(), sale), Token: development.AdminToken,
		Header: map[string]string{"If-Match": "*"}, Body: fmt.Sprintf(`{"starts_at":%q}`, time.Now().UTC().Format(wire.TimeFormat))}), 200, "")
	w.state(sale, wire.Open)
}

// state waits until the gateway says that the sale is in this state.
func (w *system) state(sale int64, want wire.SaleState) {
	w.t.Helper()
	w.until(fmt.Sprintf("sale %d is %s at the gateway", sale, want), patience, func() (bool, string) {
		a := w.public("GET", fmt.Sprintf("/v1/sales/%d", sale), "", "")
		var s wire.Sale
		if a.Status != 200 {
			return false, a.String()
		}
		a.Decode(w.t, &s)
		return s.State == want, a.String()
	})
}

// order waits until an order is in this status.
func (w *system) order(id, token string, want wire.OrderStatus) wire.Order {
	w.t.Helper()
	var o wire.Order
	w.until(fmt.Sprintf("order %s is %s", id, want), patience, func() (bool, string) {
		a := w.public("GET", "/v1/orders/"+id+"?wait_ms=2000", token, "")
		if a.Status != 200 {
			return false, a.String()
		}
		a.Decode(w.t, &o)
		return o.Status == want, a.String()
	})
	return o
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

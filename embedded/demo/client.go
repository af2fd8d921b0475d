package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// answer is what a shopper reads of a response: the order or the acceptance or the sale, or the problem.
type answer struct {
	status     int
	retryAfter time.Duration
	body       []byte
	problem    problem.Problem // of a status from 400
}

func (a answer) read(into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("%d %.200s: %w", a.status, a.body, err)
	}
	return nil
}

// client is the shoppers' way to the gateway: real HTTP, kept connections.
type client struct {
	http *http.Client
	base string // http://host:port
}

// maxConns bounds the shoppers' connections, and with them the file descriptors of this process: two for each, and two
// for each of the gateway's connections to the backend. Whoever finds all of them busy waits.
const maxConns = 500

func newClient(addr string) *client {
	return &client{base: "http://" + addr, http: &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{MaxConnsPerHost: maxConns, MaxIdleConnsPerHost: maxConns, MaxIdleConns: maxConns, DisableCompression: true},
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// do sends one request; token "" sends none, key "" no Idempotency-Key.
func (c *client) do(ctx context.Context, method, path, token, key string) (answer, error) {
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("")
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return answer{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		req.Header["idempotency-key"] = []string{key} // spelt so that net/http does not send it again by itself
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode}
	if a.body, err = io.ReadAll(io.LimitReader(res.Body, 1<<20)); err != nil {
		return a, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		a.retryAfter = time.Duration(s) * time.Second
	}
	if a.status >= 400 {
		if err := a.read(&a.problem); err != nil {
			return a, err
		}
	}
	return a, nil
}

func (c *client) sale(ctx context.Context, id int64) (s wire.Sale, err error) {
	a, err := c.do(ctx, http.MethodGet, "/v1/sales/"+strconv.FormatInt(id, 10), "", "")
	if err != nil {
		return s, err
	}
	if a.status != http.StatusOK {
		return s, &a.problem
	}
	return s, a.read(&s)
}

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Remote is where the admin API is.
type Remote struct {
	File
	Admin string `help:"host:port of the admin listener, where it is not the configuration's listen.admin." placeholder:"HOST:PORT"`
}

type client struct {
	base, token string
	http        *http.Client
}

// connect does not connect yet: an unreachable listener shows with the first request.
func (r Remote) connect(env *Env) (*client, error) {
	c, err := env.Config(r.Config)
	if err != nil {
		return nil, err
	}
	address := r.Admin
	if address == "" {
		address = c.Admin
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, cli.Usage("admin listener %q: the form is host:port", address)
	}
	if port == "0" {
		return nil, cli.Usage("listen.admin %q lets the system choose the port: say with --admin which one the backend logged", address)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return &client{base: "http://" + net.JoinHostPort(host, port), token: c.Token, http: &http.Client{Timeout: 40 * time.Second}}, nil
}

// call sends one request and reads the answer into into. A refusal is an error; one of the request itself, a usage error.
func (c *client) call(ctx context.Context, method, path, key string, body, into any) error {
	resp, err := c.send(ctx, method, path, key, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%s %s: the answer of %s: %w", method, path, c.base, err)
	}
	return nil
}

// send is call with an answer that is still to be read, and closed.
func (c *client) send(ctx context.Context, method, path, key string, body any) (*http.Response, error) {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(payload))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no backend answers at %s (its role api must run): %w", c.base, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		var p problem.Problem
		if strings.HasPrefix(resp.Header.Get("Content-Type"), problem.ContentType) && json.Unmarshal(answer, &p) == nil {
			err := fmt.Errorf("%s (%s, request %s)", p.Detail, p.Code, p.RequestID)
			switch p.Code {
			case problem.BadRequest:
				return nil, &cli.UsageError{Err: err}
			case problem.Unauthenticated:
				return nil, fmt.Errorf("%w: the configuration's admin_token is not that of the backend at %s", err, c.base)
			}
			return nil, err
		}
		return nil, fmt.Errorf("%s %s: the backend at %s answered %s", method, path, c.base, resp.Status)
	}
	return resp, nil
}

// now asks the backend what time it is: relative times count from its clock, not from this machine's.
func (c *client) now(ctx context.Context) (time.Time, error) {
	var health struct {
		Now wire.Time `json:"now"`
	}
	if err := c.call(ctx, http.MethodGet, "/-/healthy", "", nil, &health); err != nil {
		return time.Time{}, err
	}
	if health.Now.IsZero() {
		return time.Time{}, errors.New("the backend does not say what time it is")
	}
	return health.Now.Time, nil
}

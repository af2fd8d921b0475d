package adminapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/shared/problem"
)

// maxAnswer bounds an answer that is read whole, in bytes.
const maxAnswer = 64 << 20

// Client calls the admin API. It is safe for concurrent use.
type Client struct {
	Base  string // http://host:port
	Token string // the admin token
	HTTP  *http.Client
}

// Refusal is a problem that the API answered. It unwraps to the *problem.Problem.
type Refusal struct{ *problem.Problem }

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (%s, request %s)", r.Detail, r.Code, r.RequestID)
}

// Unwrap returns the problem.
func (r *Refusal) Unwrap() error { return r.Problem }

// Call sends in as JSON, unless it is nil, and reads the answer into out, unless that is nil. Key is the Idempotency-Key; ""
// is none. A problem is a *Refusal.
func (c *Client) Call(ctx context.Context, method, path, key string, in, out any) error {
	resp, err := c.send(ctx, c.HTTP, method, path, key, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && out != nil {
		err = json.Unmarshal(body, out)
	}
	if err != nil {
		return fmt.Errorf("%s %s: the answer of %s: %w", method, path, c.Base, err)
	}
	return nil
}

// Copy streams the answer of a GET. It has no time-out of its own. An answer that breaks off is an error.
func (c *Client) Copy(ctx context.Context, path string, to io.Writer) error {
	resp, err := c.send(ctx, &http.Client{Transport: c.HTTP.Transport}, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(to, resp.Body); err != nil {
		return fmt.Errorf("GET %s: it broke off: %w", path, err)
	}
	return nil
}

// send returns an answer of 2xx, whose body the caller closes.
func (c *Client) send(ctx context.Context, by *http.Client, method, path, key string, in any) (*http.Response, error) {
	var payload []byte
	if in != nil {
		var err error
		if payload, err = json.Marshal(in); err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, bytes.NewReader(payload))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := by.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no backend answers at %s (its role api must run): %w", c.Base, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	p := new(problem.Problem)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), problem.ContentType) && json.Unmarshal(body, p) == nil {
		return nil, &Refusal{p}
	}
	return nil, fmt.Errorf("%s %s: the backend at %s answered %s", method, path, c.Base, resp.Status)
}

// Now is the backend's time, which is Redis's.
func (c *Client) Now(ctx context.Context) (time.Time, error) {
	var h Health
	if err := c.Call(ctx, http.MethodGet, "/-/healthy", "", nil, &h); err != nil {
		return time.Time{}, err
	}
	if h.Now.IsZero() {
		return time.Time{}, errors.New("the backend does not say what time it is")
	}
	return h.Now.Time, nil
}

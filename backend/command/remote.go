package command

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/problem"
)

// Remote is the flags that say where the admin API is.
type Remote struct {
	File
	Admin string `help:"host:port of the admin listener, where it is not the configuration's listen.admin." placeholder:"HOST:PORT"`
	Token string `env:"FLOODGATE_OPERATOR_TOKEN" help:"An operator's token, instead of the configuration's admin_token. Best given in the environment: others see a command line." placeholder:"TOKEN"`
}

// API is the flags of a command that the admin API answers.
type API struct {
	Remote
	Output
}

// patience bounds one request, also of an archive, which waits for the queue.
const patience = 40 * time.Second

// with runs f with a client. An unreachable listener shows with its first request. What the API refuses as a bad request is
// a usage error.
func (r Remote) with(env *Env, f func(*adminapi.Client) error) error {
	conf, err := env.Config(r.Config)
	if err != nil {
		return err
	}
	address := r.Admin
	if address == "" {
		address = conf.Admin
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return cli.Usage("admin listener %q: the form is host:port", address)
	}
	if port == "0" {
		return cli.Usage("listen.admin %q lets the system choose the port: say with --admin which one the backend logged", address)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	token := cmp.Or(r.Token, conf.Token)
	if token == "" {
		return cli.Usage("no token: the configuration has no admin_token; put an operator's token into FLOODGATE_OPERATOR_TOKEN")
	}
	c := &adminapi.Client{Base: "http://" + net.JoinHostPort(host, port), Token: token, HTTP: &http.Client{Timeout: patience}}
	err = f(c)
	var refused *adminapi.Refusal
	switch {
	case !errors.As(err, &refused):
		return err
	case refused.Code == problem.BadRequest:
		return &cli.UsageError{Err: err}
	case refused.Code == problem.Unauthenticated && r.Token != "":
		return fmt.Errorf("%w: no operator of the backend at %s has the token of FLOODGATE_OPERATOR_TOKEN", err, c.Base)
	case refused.Code == problem.Unauthenticated:
		return fmt.Errorf("%w: the configuration's admin_token is not that of the backend at %s", err, c.Base)
	default:
		return err
	}
}

// request is one request to the admin API.
type request struct {
	method, path string // the path after adminapi.Prefix
	key          string // Idempotency-Key, or ""
	body         any    // nil for none
}

func get(format string, args ...any) request {
	return request{method: http.MethodGet, path: fmt.Sprintf(format, args...)}
}

func post(key string, body any, format string, args ...any) request {
	return request{method: http.MethodPost, path: fmt.Sprintf(format, args...), key: key, body: body}
}

// send returns the answer to one request.
func send[T any](ctx context.Context, c *adminapi.Client, r request) (answer T, err error) {
	err = c.Call(ctx, r.method, adminapi.Prefix+r.path, r.key, r.body, &answer)
	return answer, err
}

// ask sends one request and prints the answer: as JSON, or as text does.
func ask[T any](ctx context.Context, env *Env, a API, r request, text func(*bytes.Buffer, T)) error {
	return a.with(env, func(c *adminapi.Client) error { return tell(ctx, env, c, a.Output, r, text) })
}

// tell is ask, with the client that a command has already.
func tell[T any](ctx context.Context, env *Env, c *adminapi.Client, o Output, r request, text func(*bytes.Buffer, T)) error {
	p := cli.StartProgress(env.Stderr, "waiting for the backend")
	answer, err := send[T](ctx, c, r)
	p.End()
	if err != nil {
		return err
	}
	return o.print(env.Stdout, answer, func(w *bytes.Buffer) { text(w, answer) })
}

// filter is a query of those parameters that have a value.
func filter(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// collect reads a list page by page, each of at most most items, until there are limit of them. More says that there may be
// others; a page may be empty, and not the last one.
func collect[P interface{ Cursor() string }, T any](ctx context.Context, c *adminapi.Client, path string, query url.Values, limit, most int, items func(P) []T) (all []T, more bool, err error) {
	if limit < 1 {
		return nil, false, cli.Usage("--limit %d: must be positive", limit)
	}
	all = []T{}
	for more = true; more && len(all) < limit; {
		query.Set("limit", strconv.Itoa(min(most, limit-len(all))))
		page, err := send[P](ctx, c, get("%s?%s", path, query.Encode()))
		if err != nil {
			return nil, false, err
		}
		all = append(all, items(page)...)
		query.Set("cursor", page.Cursor())
		more = page.Cursor() != ""
	}
	return all, more, nil
}

package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// request is one request to a route, its body read.
type request struct {
	*http.Request
	id    string            // X-Request-Id of the answer
	by    operator.Operator // who sent it; nobody where the route takes anybody
	body  []byte
	whole context.Context // of the request, without the time-out of an answer in one piece
}

// answer is what a route answers. Value is written as JSON; what has an id and a version gives Location (with 201) and
// ETag.
type answer struct {
	status int
	value  any
	raw    []byte // instead of value: JSON that was answered before
	// stream writes the body instead, in pieces, each with a deadline of its own.
	stream func(ctx context.Context, w http.ResponseWriter) error
	header map[string]string // what there is beside
}

// path serves one path: operator, method, role, body, then the route's function; every refusal is a problem.
func (a *Admin) path(path string, m methods) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		r := &request{Request: hr, id: uuid.Must(uuid.NewV7()).String()}
		w.Header().Set("X-Request-Id", r.id)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		status := a.serve(w, r, m)
		if status == aborted {
			a.requests.WithLabelValues(path, "aborted").Inc()
			panic(http.ErrAbortHandler) // the client sees that it has not got all
		}
		a.requests.WithLabelValues(path, strconv.Itoa(status)).Inc()
	})
}

// aborted is the status of a streamed answer that broke off.
const aborted = -1

func (a *Admin) serve(w http.ResponseWriter, r *request, m methods) (status int) {
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("admin request panicked", "request_id", r.id, "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			status = write(w, r, problem.New(problem.Internal, "see the backend's log under this request_id"))
		}
	}()
	ans, err := a.dispatch(w, r, m)
	if err != nil {
		return write(w, r, a.refusal(r, err))
	}
	if ans.stream != nil {
		return a.stream(w, r, ans)
	}
	body := ans.raw
	if body == nil {
		if body, err = json.Marshal(ans.value); err != nil {
			panic("BUG: an answer that does not marshal: " + err.Error())
		}
	}
	var about struct {
		ID      int64 `json:"id"`
		Version int64 `json:"version"`
	}
	if err := json.Unmarshal(body, &about); err == nil && about.Version > 0 {
		w.Header().Set("ETag", etag(about.Version))
		if ans.status == http.StatusCreated {
			w.Header().Set("Location", r.URL.Path+"/"+strconv.FormatInt(about.ID, 10))
		}
	}
	if ans.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(2)))
	}
	for name, value := range ans.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(ans.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(append(body, '\n')) // a client that left needs no answer
	}
	return ans.status
}

func (a *Admin) stream(w http.ResponseWriter, r *request, ans *answer) int {
	for name, value := range ans.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(ans.status)
	if r.Method == http.MethodHead {
		return ans.status
	}
	if err := ans.stream(r.whole, w); err != nil {
		a.Log.Warn("admin: an answer broke off", "request_id", r.id, "path", r.URL.Path, "error", err)
		return aborted
	}
	return ans.status
}

func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

func (a *Admin) dispatch(w http.ResponseWriter, r *request, m methods) (*answer, error) {
	rt, err := a.find(w, r, m)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, problem.New(problem.PayloadTooLarge, fmt.Sprintf("the body has more than %d bytes", maxBody))
	case err != nil:
		return nil, problem.New(problem.BadRequest, "the body did not arrive: send it again")
	}
	if len(body) > 0 {
		if t := r.Header.Get("Content-Type"); t != "" {
			if media, _, err := mime.ParseMediaType(t); err != nil || media != "application/json" {
				return nil, problem.New(problem.UnsupportedMediaType, fmt.Sprintf("Content-Type: %q: send application/json", t))
			}
		}
	}
	r.body = body
	timeout := answerTimeout
	if slices.Contains([]string{"archive", "audit", "preflight", "rebuild"}, path.Base(r.URL.Path)) {
		timeout = longTimeout
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout + 5*time.Second)) // not every writer has one
	}
	r.whole = r.Context()
	ctx, cancel := context.WithTimeout(r.whole, timeout)
	defer cancel()
	r.Request = r.WithContext(ctx)
	return rt.handle(a, r)
}

// plain serves what answers by itself, behind the same checks.
func (a *Admin) plain(rt *route, h http.Handler) http.Handler {
	m := methods{rt.method: rt}
	if rt.post {
		m[http.MethodPost] = rt
	}
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		r := &request{Request: hr, id: uuid.Must(uuid.NewV7()).String()}
		w.Header().Set("X-Request-Id", r.id)
		w.Header().Set("Cache-Control", "no-store")
		if _, err := a.find(w, r, m); err != nil {
			a.requests.WithLabelValues(rt.label(), strconv.Itoa(write(w, r, a.refusal(r, err)))).Inc()
			return
		}
		hr.Body = http.MaxBytesReader(w, hr.Body, maxBody)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longTimeout)) // a profile takes its time
		h.ServeHTTP(w, hr)
		a.requests.WithLabelValues(rt.label(), "200").Inc()
	})
}

func write(w http.ResponseWriter, r *request, p *problem.Problem) int {
	operator.Describe(w.Header(), p)
	body := p.JSON(r.id)
	w.Header().Set("Content-Type", problem.ContentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that left needs no answer
	}
	return p.Status
}

// pathID is the {id} of the path; a word that is no id is nothing that exists.
func (r *request) pathID(code problem.Code, what string) (int64, error) {
	id, ok := wire.ParseID(r.PathValue("id"))
	if !ok {
		return 0, problem.New(code, fmt.Sprintf("%s %q: an id is a positive integer", what, r.PathValue("id")))
	}
	return id, nil
}

// decode reads the body into the struct that into points to. The error names the member, its value and what it should be.
func (r *request) decode(into any) error {
	trimmed := bytes.TrimLeft(r.body, " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '{' {
		return problem.New(problem.BadRequest, "the body must be a JSON object")
	}
	if err := wire.DecodeStrict(r.body, into); err != nil {
		field, reason, ok := strings.Cut(err.Error(), ": ")
		if !ok {
			return problem.New(problem.BadRequest, "the body: "+err.Error())
		}
		name := field[strings.LastIndexByte(field, '/')+1:]
		want, known := wanted[name]
		switch {
		case strings.HasSuffix(reason, "unknown member"):
			return problem.Invalid(field, "unknown member: check the spelling, or leave it out")
		case strings.HasSuffix(reason, "duplicate member") || !known:
			return problem.Invalid(field, reason)
		default:
			return problem.Invalid(field, fmt.Sprintf("%s does not fit: give %s", member(r.body, field), want))
		}
	}
	return nulls(r.body, "")
}

// nulls refuses null anywhere: it would read as if the member were absent.
func nulls(value jsontext.Value, at string) error {
	switch value.Kind() {
	case 'n':
		return problem.Invalid(at, "null is no value: leave it out")
	case '{':
		var m map[string]jsontext.Value
		if err := json.Unmarshal(value, &m); err != nil {
			return problem.New(problem.BadRequest, "the body: "+err.Error())
		}
		for name, v := range m {
			if err := nulls(v, strings.TrimPrefix(at+"/"+name, "/")); err != nil {
				return err
			}
		}
	case '[':
		var list []jsontext.Value
		if err := json.Unmarshal(value, &list); err != nil {
			return problem.New(problem.BadRequest, "the body: "+err.Error())
		}
		for i, v := range list {
			if err := nulls(v, at+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// member is the text of one value in a body, cut short.
func member(body jsontext.Value, pointer string) string {
	value := body
	for _, name := range strings.Split(pointer, "/") {
		var m map[string]jsontext.Value
		var list []jsontext.Value
		if json.Unmarshal(value, &m) == nil {
			value = m[name]
		} else if i, err := strconv.Atoi(name); err == nil && json.Unmarshal(value, &list) == nil && i < len(list) {
			value = list[i]
		}
	}
	return short(string(value))
}

func short(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// noBody accepts an empty body or {}.
func (r *request) noBody() error {
	if len(bytes.TrimSpace(r.body)) == 0 {
		return nil
	}
	return r.decode(&struct{}{})
}

// page reads ?cursor= and ?limit=: entries with an id below cursor, newest first. others are parameters that the caller reads.
func (r *request) page(most int64, others ...string) (below, limit int64, err error) {
	q := r.URL.Query()
	known := append([]string{"cursor", "limit"}, others...)
	for name := range q {
		if !slices.Contains(known, name) {
			return 0, 0, problem.Invalid(short(name), "unknown parameter: there are "+strings.Join(known, ", "))
		}
	}
	below, limit = 1<<63-1, most
	if v := q.Get("cursor"); v != "" {
		n, ok := wire.ParseID(v)
		if !ok {
			return 0, 0, problem.Invalid("cursor", short(v)+": take it from the page before, as it is")
		}
		below = n
	}
	if v := q.Get("limit"); v != "" {
		n, ok := wire.ParseID(v)
		if !ok || n > most {
			return 0, 0, problem.Invalid("limit", fmt.Sprintf("%s is not from 1 to %d", short(v), most))
		}
		limit = n
	}
	return below, limit, nil
}

// match compares If-Match with a version.
func (r *request) match(version int64, required bool) error {
	values := r.Header.Values("If-Match")
	if len(values) == 0 {
		if !required {
			return nil
		}
		return problem.Invalid("If-Match", fmt.Sprintf("missing: give the ETag of the version that you have read; now it is %s", etag(version)))
	}
	for _, v := range strings.Split(strings.Join(values, ","), ",") {
		if v = strings.TrimSpace(v); v == "*" || v == etag(version) || v == strconv.FormatInt(version, 10) {
			return nil
		}
	}
	p := problem.New(problem.PreconditionFailed, fmt.Sprintf("If-Match: %s is not the present version %s: read it again, then decide", short(strings.Join(values, ",")), etag(version)))
	p.Field = "If-Match"
	return p
}

// fixed refuses a member that exists and cannot be changed this way.
func (r *request) fixed(field, way string) error {
	var m map[string]jsontext.Value
	if json.Unmarshal(r.body, &m) != nil {
		return nil // decode says what is wrong
	}
	if v, ok := m[field]; ok {
		return problem.Invalid(field, fmt.Sprintf("%s cannot be set here: %s", short(string(v)), way))
	}
	return nil
}

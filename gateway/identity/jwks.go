package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"floodgate.internal/shared/backoff"
)

// JWKSConfig is where a JWK set is read from: a file or a URL, or nothing.
type JWKSConfig struct {
	File    string        `yaml:"file"`
	URL     string        `yaml:"url"`
	Refresh time.Duration `yaml:"refresh"` // how often it is read although nobody asks
}

// Used reports whether there is a set to read.
func (c JWKSConfig) Used() bool { return c.File != "" || c.URL != "" }

const (
	fetchTime   = 5 * time.Second        // of one reading
	askedApart  = 10 * time.Second       // the least between two readings because of tokens of unknown keys
	settleTime  = 50 * time.Millisecond  // how long a file's directory must be quiet before the file is read
	firstPause  = 500 * time.Millisecond // after a reading that failed
	longerPause = 30 * time.Second       // after many
)

// JWKS is a JWK set that is kept up to date. A reading that fails, or whose set is refused, changes nothing: the last good set
// stays. Read reads it, Run keeps reading. All else is safe for concurrent use.
type JWKS struct {
	config  JWKSConfig
	log     *slog.Logger
	outcome func(ok bool)
	client  *http.Client
	apart   time.Duration // askedApart but in tests
	reading sync.Mutex    // held by who reads

	keys    atomic.Pointer[map[string]*verifyKey]
	read    atomic.Pointer[time.Time] // when it was last read well; nil: never
	failure atomic.Pointer[string]    // why the last reading failed; nil: it did not
	asked   chan struct{}             // of one: a token names an unknown key; never closed
}

// NewJWKS makes a set that has no keys yet. outcome is told how each reading ended.
func NewJWKS(c JWKSConfig, log *slog.Logger, outcome func(ok bool)) *JWKS {
	j := &JWKS{config: c, log: log, outcome: outcome, apart: askedApart, asked: make(chan struct{}, 1)}
	j.keys.Store(&map[string]*verifyKey{})
	j.client = &http.Client{
		Timeout: fetchTime,
		// A redirect could lead to keys of somebody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		},
	}
	return j
}

// Config is where the set is read from.
func (j *JWKS) Config() JWKSConfig { return j.config }

// Keys is how many keys the set has.
func (j *JWKS) Keys() int { return len(*j.keys.Load()) }

// State is when the set was last read well (the zero time: never), and why the last reading failed ("": it did not).
func (j *JWKS) State() (read time.Time, failure string) {
	if at := j.read.Load(); at != nil {
		read = *at
	}
	if f := j.failure.Load(); f != nil {
		failure = *f
	}
	return read, failure
}

// find is the key with this id. Where there is none it asks Run to read the set, and does not wait for it.
func (j *JWKS) find(kid string) *verifyKey {
	if k := (*j.keys.Load())[kid]; k != nil {
		return k
	}
	select {
	case j.asked <- struct{}{}:
	default:
	}
	return nil
}

// Read reads the set once. An error names neither the URL's query nor what came.
func (j *JWKS) Read(ctx context.Context) error {
	j.reading.Lock()
	defer j.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	keys, ignored, err := j.load(ctx)
	j.outcome(err == nil)
	if err != nil {
		why := err.Error()
		j.failure.Store(&why)
		return err
	}
	old := *j.keys.Load()
	var came, went []string
	for kid, k := range keys {
		if o := old[kid]; o != nil && o.same(k) {
			keys[kid] = o // its tokens stay cached
		} else {
			came = append(came, kid)
		}
	}
	for kid, o := range old {
		if keys[kid] != o {
			went = append(went, kid)
		}
	}
	j.keys.Store(&keys)
	now := time.Now()
	j.read.Store(&now)
	j.failure.Store(nil)
	if len(came)+len(went) > 0 {
		j.log.Info("the keys of identity.jwks have changed", "came", came, "went", went, "ignored", ignored)
	}
	return nil
}

func (j *JWKS) load(ctx context.Context) (keys map[string]*verifyKey, ignored []string, err error) {
	var b []byte
	if j.config.File != "" {
		b, err = readSet(j.config.File)
	} else {
		b, err = j.fetch(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	return parseSet(b)
}

// CheckFile says what is wrong with the JWK set of a file.
func CheckFile(path string) error {
	b, err := readSet(path)
	if err != nil {
		return err
	}
	_, _, err = parseSet(b)
	return err
}

func readSet(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() { // a pipe could keep the reader
		return nil, errors.New("not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSet+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	return b, nil
}

// withoutPath is an error of package os without the file's name, which may come from the environment.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (j *JWKS) fetch(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.config.URL, nil)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "floodgate")
	resp, err := j.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its text has the URL
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode/100 == 3:
		return nil, fmt.Errorf("it answers with a redirect (%d), which is not followed: name the place itself", resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxSet+1))
	if err != nil {
		return nil, fmt.Errorf("its answer broke off: %w", err)
	}
	return b, nil
}

// Run reads the set at once if that was not done yet, then every refresh, when the file changes, and when a token names an
// unknown key, but for that at most once in askedApart. After a failure it tries again, with growing pauses. It ends with ctx.
func (j *JWKS) Run(ctx context.Context) {
	var changes <-chan fsnotify.Event
	var lost <-chan error
	if w := j.watch(); w != nil {
		defer w.Close()
		changes, lost = w.Events, w.Errors
	}
	pause := backoff.Backoff{First: firstPause, Most: min(longerPause, j.config.Refresh)}
	next := j.config.Refresh
	if at, _ := j.State(); at.IsZero() {
		next = 0
	}
	failing := false
	var last time.Time
	for {
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-changes:
			rest(ctx, settleTime)
			for len(changes) > 0 {
				<-changes
			}
		case <-lost: // there may have been changes
		case <-j.asked:
			rest(ctx, j.apart-time.Since(last))
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		err := j.Read(ctx)
		last = time.Now()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				j.log.Warn("the keys of identity.jwks cannot be read; those that were read last stay", "error", err)
			}
			next, failing = pause.Next(), true
		default:
			if failing {
				j.log.Info("the keys of identity.jwks are read again")
			}
			pause.Reset()
			next, failing = j.config.Refresh, false
		}
	}
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// watch watches the file's directory: files are mostly replaced, not written to. nil: there is nothing to watch.
func (j *JWKS) watch() *fsnotify.Watcher {
	if j.config.File == "" {
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(filepath.Dir(j.config.File)); err == nil {
			return w
		}
		w.Close()
	}
	j.log.Warn("the file of identity.jwks cannot be watched: it is read every refresh", "error", err)
	return nil
}

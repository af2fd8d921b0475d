package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/failpoint"
)

// reload takes the file over, whole or not at all, and says what has changed. why goes to the log.
func (r *running) reload(why string) (diff []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	defer func() {
		if err != nil {
			r.metrics.failed.Inc()
			r.metrics.ok.Set(0)
			r.log.Error("the configuration was not taken over, the old one stays", "by", why, "error", err)
			return
		}
		r.metrics.done.Inc()
		r.metrics.ok.Set(1)
		r.metrics.at.SetToCurrentTime()
	}()
	c, hash, err := Load(r.path)
	if err != nil {
		return nil, err
	}
	if fields := old.restarts(c); len(fields) > 0 {
		return nil, fmt.Errorf("%s: a change of %s needs a restart; nothing was taken over", r.path, strings.Join(fields, ", "))
	}
	diff = old.Diff(c)
	if len(diff) == 0 && hash == old.Hash {
		return nil, nil
	}
	settings, err := r.build(&old.Config, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.path, err)
	}
	failpoint.Hit("gateway.before-reload")
	r.apply(&loaded{c, hash, old.Generation + 1}, settings)
	r.log.Info("the configuration was taken over", "by", why, "generation", old.Generation+1, "hash", hash, "diff", strings.Join(diff, "; "))
	return diff, nil
}

// settle is how long the file's directory must be quiet before the file is read: editors write more than once.
const settle = 50 * time.Millisecond

// watch reloads on SIGHUP and when the file's content changes, until ctx is done. It watches the directory, because
// editors and ConfigMaps replace files instead of writing to them.
func (r *running) watch(ctx context.Context, hangup <-chan os.Signal) error {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		err = w.Add(filepath.Dir(r.path))
	}
	var events chan fsnotify.Event
	var errs chan error
	if err != nil {
		r.log.Warn("the configuration file cannot be watched: reload by SIGHUP or POST /-/reload", "error", err)
	} else {
		events, errs = w.Events, w.Errors
	}
	tried := r.current.Load().Hash
	var quiet <-chan time.Time
	look := func() { // at the content: whatever it is, it is tried once
		if hash := hashOf(r.path); hash != "" && hash != tried {
			tried = hash
			r.reload("file change") // logged there
		}
	}
	look() // it may have changed since it was loaded
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
			tried = hashOf(r.path)
			r.reload("SIGHUP")
		case <-events:
			quiet = time.After(settle)
		case err := <-errs:
			r.log.Warn("watch the configuration file", "error", err)
			quiet = time.After(settle)
		case <-quiet:
			quiet = nil
			look()
		}
	}
}

// hashOf is the hash of the file's content, "" if it cannot be read.
func hashOf(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

type checkCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The configuration file."`
}

// run prints what the file would change in the running gateway, or "ok" where none answers.
func (c checkCommand) run(ctx context.Context, stdout io.Writer) error {
	config, _, err := Load(c.Config)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	now, err := askRunning(ctx, config.Listen.Ops)
	if err != nil {
		fmt.Fprintf(stdout, "ok (no gateway answers on %s to compare with)\n", config.Listen.Ops)
		return nil
	}
	diff := diffTrees(now, config.Tree())
	fmt.Fprintln(stdout, "ok")
	fmt.Fprintf(stdout, "%s (secrets are not compared)\n", words(diff))
	for _, field := range restartFields(diff) {
		fmt.Fprintf(stdout, "%s needs a restart: a reload refuses this file\n", field)
	}
	return nil
}

// restartFields names the fields of a diff that a reload refuses.
func restartFields(diff []string) []string {
	restart := restartNames(reflect.TypeFor[Config](), "", map[string]bool{})
	var fields []string
	for _, line := range diff {
		if field, _, _ := strings.Cut(line, ": "); restart[field] {
			fields = append(fields, field)
		}
	}
	return fields
}

// restartNames adds the fields below t that are tagged reload:"restart".
func restartNames(t reflect.Type, path string, names map[string]bool) map[string]bool {
	for i := range t.NumField() {
		f := t.Field(i)
		name := strings.TrimPrefix(path+"."+f.Tag.Get("yaml"), ".")
		switch {
		case f.Tag.Get("reload") == "restart":
			names[name] = true
		case f.Type.Kind() == reflect.Struct:
			restartNames(f.Type, name, names)
		}
	}
	return names
}

func askRunning(ctx context.Context, addr string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/-/config", nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Config map[string]any `json:"config"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil || answer.Config == nil {
		return nil, fmt.Errorf("%s is not a gateway's ops listener", addr)
	}
	return answer.Config, nil
}

type reloadMetrics struct {
	done, failed prometheus.Counter
	ok, at       prometheus.Gauge
}

func newReloadMetrics(r *running, reg prometheus.Registerer) reloadMetrics {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_config_reloads_total", Help: "Reloads by result."}, []string{"result"})
	m := reloadMetrics{done: v.WithLabelValues("ok"), failed: v.WithLabelValues("refused")}
	m.ok = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gateway_config_last_reload_successful", Help: "1 if the last reload was taken over."})
	m.at = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gateway_config_last_reload_success_timestamp_seconds", Help: "When the configuration was last taken over."})
	m.ok.Set(1)
	m.at.SetToCurrentTime()
	reg.MustRegister(v, m.ok, m.at, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_config_generation", Help: "How often a configuration was taken over, the first included."},
		func() float64 { return float64(r.current.Load().Generation) }))
	return m
}

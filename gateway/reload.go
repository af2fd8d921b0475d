package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// reload takes the file over, whole or not at all, and says what has changed. What it did, and by whom, is logged and kept.
func (r *running) reload(by string) (diff []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hash := hashOf(r.path)
	if hash != "" {
		r.tried = hash
	}
	diff, result, err := r.takeOver()
	entry := ops.Reload{By: by, Result: result, Hash: hash, Diff: diff}
	if err != nil {
		entry.Error = err.Error()
	}
	entry = r.record(entry)
	if err != nil {
		r.metrics.failed.Inc()
		r.metrics.ok.Set(0)
		r.log.Error("the configuration was not taken over, the old one stays", "by", by, "generation", entry.Generation, "tried", entry.Hash,
			"error", entry.Error, "diff", strings.Join(entry.Diff, "; "))
		return nil, err
	}
	r.metrics.done.Inc()
	r.metrics.ok.Set(1)
	r.metrics.at.SetToCurrentTime()
	r.log.Info("the configuration was read again", "by", by, "result", result, "generation", entry.Generation, "hash", entry.Hash,
		"diff", strings.Join(entry.Diff, "; "))
	return diff, nil
}

// takeOver is reload without the records. The caller holds mu.
func (r *running) takeOver() (diff []string, result string, err error) {
	old := r.current.Load()
	c, hash, err := Load(r.path)
	if err != nil {
		return nil, refused, err
	}
	diff = old.Diff(c)
	if fields := old.restarts(c); len(fields) > 0 {
		return diff, refused, fmt.Errorf("%s: a change of %s needs a restart; nothing was taken over", r.path, strings.Join(fields, ", "))
	}
	if len(diff) == 0 && hash == old.Hash {
		return nil, unchanged, nil
	}
	settings, err := r.build(&old.Config, c)
	if err != nil {
		return diff, refused, fmt.Errorf("%s: %w", r.path, err)
	}
	failpoint.Hit("gateway.before-reload")
	r.apply(&loaded{c, hash, old.Generation + 1}, settings)
	return diff, takenOver, nil
}

// What became of a reload.
const (
	takenOver = "taken_over"
	refused   = "refused"
	unchanged = "unchanged"
)

// Bounds of what is kept of reloads: so many of the newest, and of each so many lines of its diff and bytes of its error.
const (
	keptReloads = 50
	keptLines   = 100
	keptError   = 4096
)

// record completes the entry, cuts it to its bounds and keeps it. The caller holds mu.
func (r *running) record(e ops.Reload) ops.Reload {
	e.At, e.Generation = wire.At(time.Now()), r.current.Load().Generation
	if e.Result != refused {
		e.Hash = r.current.Load().Hash
	}
	if e.Diff == nil {
		e.Diff = []string{}
	}
	if more := len(e.Diff) - keptLines; more > 0 {
		e.Diff = append(slices.Clone(e.Diff[:keptLines]), fmt.Sprintf("and %d more", more))
	}
	if len(e.Error) > keptError {
		e.Error = e.Error[:keptError] + " ..."
	}
	if len(r.history) >= keptReloads {
		r.history = slices.Delete(r.history, 0, 1)
	}
	r.history = append(r.history, e)
	return e
}

// reloads is what is kept of reloads, the newest first.
func (r *running) reloads() []ops.Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := slices.Clone(r.history)
	slices.Reverse(newest)
	return newest
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
	var quiet <-chan time.Time
	look := func() { // at the content: whatever it is, it is tried once, by whomever
		r.mu.Lock()
		tried := r.tried
		r.mu.Unlock()
		if hash := hashOf(r.path); hash != "" && hash != tried {
			r.reload("file change") // logged there
		}
	}
	look() // it may have changed since it was loaded
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
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
	now, err := askRunning(ctx, config)
	if errors.Is(err, errToken) {
		fmt.Fprintf(stdout, "ok (the gateway on %s refuses this ops_token: nothing to compare with)\n", config.Listen.Ops)
		return nil
	}
	if err != nil {
		fmt.Fprintf(stdout, "ok (no gateway answers on %s to compare with)\n", config.Listen.Ops)
		return nil
	}
	diff := maskEnvironment(diffTrees(now, config.Tree()), config.File)
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
		name := join(path, key(f))
		switch {
		case f.Tag.Get("reload") == "restart":
			names[name] = true
		case f.Type.Kind() == reflect.Struct:
			restartNames(f.Type, name, names)
		}
	}
	return names
}

var errToken = errors.New("the ops token is refused")

// askRunning asks the gateway that runs on the file's ops listener for its configuration.
func askRunning(ctx context.Context, c Config) (any, error) {
	addr := c.Listen.Ops
	if host, port, err := net.SplitHostPort(addr); err == nil && !conf.Loopback(addr) {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/-/config", nil)
	if err != nil {
		return nil, err
	}
	if c.OpsToken != "" {
		req.Header.Set("Authorization", "Bearer "+c.OpsToken.Reveal())
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, errToken
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
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
		func() float64 { return float64(r.current.Load().Generation) }), &info{r, prometheus.NewDesc("gateway_config_info", "1, with the hash of the configuration in force.", []string{"hash"}, nil)})
	return m
}

// info is a metric whose label a reload changes.
type info struct {
	r    *running
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (i *info) Describe(out chan<- *prometheus.Desc) { out <- i.desc }

// Collect implements prometheus.Collector.
func (i *info) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(i.desc, prometheus.GaugeValue, 1, i.r.current.Load().Hash)
}

package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/failpoint"
	"floodgate.internal/shared/wire"
)

// reload takes the file over, as a whole or not at all, and says what changed. by is who asked for it. Each reload is logged
// and kept for /-/reloads.
func (r *process) reload(by string) (diff []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hash := hashOf(r.path)
	if hash != "" {
		r.tried = hash
	}
	diff, result, err := r.takeOver(by)
	entry := ops.Reload{By: by, Result: result, Hash: hash, Diff: diff}
	c := r.canary.Load()
	if err != nil {
		entry.Reason = err.Error()
	} else if c != nil {
		entry.Reason = c.note()
	}
	entry = r.record(entry)
	if err != nil {
		r.metrics.failed.Inc()
		r.metrics.ok.Set(0)
		r.log.Error("the configuration was not taken over, the old one stays", "by", by, "generation", entry.Generation, "tried", entry.Hash,
			"error", entry.Reason, "diff", strings.Join(entry.Diff, "; "))
		return nil, err
	}
	if c == nil {
		r.metrics.taken()
	}
	r.log.Info("the configuration was read again", "by", by, "result", result, "generation", entry.Generation, "hash", entry.Hash,
		"diff", strings.Join(entry.Diff, "; "), "reason", entry.Reason)
	if c != nil {
		diff = append(slices.Clip(diff), c.note())
	}
	return diff, nil
}

// takeOver is reload without the log. The newest file counts: it ends a canary of another one. The caller holds mu.
func (r *process) takeOver(by string) (diff []string, result string, err error) {
	old := r.current.Load()
	c, hash, err := Load(r.path)
	if err != nil {
		return nil, refused, err
	}
	diff = old.Diff(c)
	if fields := restartFields(diff); len(fields) > 0 {
		return diff, refused, fmt.Errorf("%s: a change of %s needs a restart; nothing was taken over", r.path, strings.Join(fields, ", "))
	}
	material, err := c.BackendTLS.read()
	if err != nil {
		return diff, refused, fmt.Errorf("%s: %w", r.path, err)
	}
	if r.tls.differs(material) {
		diff = append(diff, "backend_tls: its files have changed")
	}
	if !bytes.Equal(old.logo, c.logo) && old.Page.Logo == c.Page.Logo {
		diff = append(diff, "page.logo: its file has changed")
	}
	running := r.canary.Load()
	if running != nil && hash == running.file.Hash {
		return nil, unchanged, nil
	}
	if running == nil && len(diff) == 0 && hash == old.Hash {
		r.setTLS(c) // its files may have changed
		return nil, unchanged, nil
	}
	settings, err := r.settingsOf(&old.Config, c)
	if err != nil {
		return diff, refused, fmt.Errorf("%s: %w", r.path, err)
	}
	bounds, err := r.fit(c)
	if err != nil {
		return diff, refused, fmt.Errorf("%s: %w", r.path, err)
	}
	if running != nil {
		r.rollBack(running, "another file came, by "+by)
		if len(diff) == 0 && hash == old.Hash {
			return nil, unchanged, nil
		}
		if settings, err = r.settingsOf(&old.Config, c); err != nil { // the rules in force were made anew
			panic("BUG: settings that were made just now: " + err.Error())
		}
	}
	failpoint.Hit("gateway.before-reload")
	if canBeTried(&old.Config, &c) {
		r.beginCanary(loaded{Config: c, Hash: hash}, by, diff)
		return diff, trying, nil
	}
	r.tls.use(material)
	r.apply(&loaded{c, hash, old.Generation + 1}, settings, bounds)
	return diff, taken, nil
}

// What became of a reload.
const (
	taken      = "taken"
	refused    = "refused"
	unchanged  = "unchanged"
	trying     = "canary"      // its limits are tried on a share of the users
	rolledBack = "rolled_back" // and were given up
)

// What is kept of reloads: the newest, and of each the first lines of its diff and bytes of its reason.
const (
	keptReloads = 50
	keptLines   = 100
	keptError   = 4096
)

// record completes an entry, cuts it to its bounds and keeps it. The caller holds mu.
func (r *process) record(e ops.Reload) ops.Reload {
	e.At, e.Generation = wire.At(time.Now()), r.current.Load().Generation
	if e.Result == taken || e.Result == unchanged && r.canary.Load() == nil {
		e.Hash = r.current.Load().Hash
	}
	if e.Diff == nil {
		e.Diff = []string{}
	}
	if more := len(e.Diff) - keptLines; more > 0 {
		e.Diff = append(slices.Clone(e.Diff[:keptLines]), fmt.Sprintf("and %d more", more))
	}
	if len(e.Reason) > keptError {
		e.Reason = e.Reason[:keptError] + " ..."
	}
	if len(r.history) >= keptReloads {
		r.history = slices.Delete(r.history, 0, 1)
	}
	r.history = append(r.history, e)
	return e
}

// reloads returns the entries that are kept, the newest first.
func (r *process) reloads() []ops.Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := slices.Clone(r.history)
	slices.Reverse(newest)
	return newest
}

// settleTime is how long the file's directory must be quiet before the file is read: editors write more than once.
const settleTime = 50 * time.Millisecond

// watch reloads on SIGHUP and when the file's content changes, until ctx is done. It watches the directory, because editors
// and ConfigMaps replace files instead of writing to them.
func (r *process) watch(ctx context.Context, hangup <-chan os.Signal) error {
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
	reloadIfNew := func() { // a content is tried once, also if SIGHUP or an operator tried it
		r.mu.Lock()
		tried := r.tried
		r.mu.Unlock()
		if hash := hashOf(r.path); hash != "" && hash != tried {
			r.reload("file change") // logged there
		}
	}
	reloadIfNew() // the file may have changed since it was loaded
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
			r.reload("SIGHUP")
		case <-events:
			quiet = time.After(settleTime)
		case err := <-errs:
			r.log.Warn("watch the configuration file", "error", err)
			quiet = time.After(settleTime)
		case <-quiet:
			quiet = nil
			reloadIfNew()
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

type reloadMetrics struct {
	done, failed, rolledBack prometheus.Counter
	ok, at                   prometheus.Gauge
}

// taken tells of a file that holds as a whole.
func (m *reloadMetrics) taken() {
	m.done.Inc()
	m.ok.Set(1)
	m.at.SetToCurrentTime()
}

func newReloadMetrics(r *process, reg prometheus.Registerer) reloadMetrics {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_config_reloads_total", Help: "Reloads by result."}, []string{"result"})
	m := reloadMetrics{done: v.WithLabelValues("ok"), failed: v.WithLabelValues("refused"), rolledBack: v.WithLabelValues("rolled_back")}
	m.ok = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gateway_config_last_reload_successful", Help: "1 if the last reload was taken over; 0 if it was refused or rolled back. A canary that runs changes nothing."})
	m.at = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gateway_config_last_reload_success_timestamp_seconds", Help: "When the configuration was last taken over."})
	m.ok.Set(1)
	m.at.SetToCurrentTime()
	reg.MustRegister(v, canaryMetrics{r}, m.ok, m.at, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_config_generation", Help: "How often a configuration was taken over, the first included."},
		func() float64 { return float64(r.current.Load().Generation) }), &info{r, prometheus.NewDesc("gateway_config_info", "1, with the hash of the configuration in force.", []string{"hash"}, nil)})
	return m
}

// info is a metric whose label a reload changes.
type info struct {
	r    *process
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (i *info) Describe(out chan<- *prometheus.Desc) { out <- i.desc }

// Collect implements prometheus.Collector.
func (i *info) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(i.desc, prometheus.GaugeValue, 1, i.r.current.Load().Hash)
}

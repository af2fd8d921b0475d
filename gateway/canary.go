package gateway

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/gateway/edge"
	"floodgate.internal/gateway/limit"
	"floodgate.internal/gateway/ops"
	"floodgate.internal/shared/wire"
)

// ReloadConfig is how a reload takes a file over.
type ReloadConfig struct {
	Canary CanaryConfig `yaml:"canary"`
}

// CanaryConfig is how a reload tries changed limits of users on some of them first.
type CanaryConfig struct {
	Share          float64       `yaml:"share"` // of the users; 0: changed limits hold for everybody at once
	Watch          time.Duration `yaml:"watch"`
	MaxMoreRefused float64       `yaml:"max_more_refused"`
	MaxMoreErrors  float64       `yaml:"max_more_errors"`
	MinRequests    int           `yaml:"min_requests"`
}

func (v *validator) canary() {
	c := v.Reload.Canary
	fraction := func(field string, x, most float64) {
		if !(x >= 0 && x <= most) {
			v.bad("reload.canary."+field, "%v must be 0 to %v", x, most)
		}
	}
	fraction("share", c.Share, 0.5)
	fraction("max_more_refused", c.MaxMoreRefused, 1)
	fraction("max_more_errors", c.MaxMoreErrors, 1)
	v.duration("reload.canary.watch", c.Watch, time.Second, 24*time.Hour)
	v.number("reload.canary.min_requests", int64(c.MinRequests), 1, 1_000_000_000)
}

// canaryRun is a file whose limits are tried on a share of the users. Everything else of it waits until they are taken.
type canaryRun struct {
	CanaryConfig
	file  loaded // without a generation
	by    string
	diff  []string
	since time.Time // by process.now
	began time.Time // by this machine's clock
	edge  *edge.Canary
}

// userRule is a rule of users' buckets: one that a canary can try.
type userRule struct {
	name string
	in   func(*LimitsConfig) RuleConfig
	at   func(*edge.Settings) **limit.Rule
}

var userRules = []userRule{
	{"order", func(c *LimitsConfig) RuleConfig { return c.Order }, func(s *edge.Settings) **limit.Rule { return &s.Order }},
	{"payment", func(c *LimitsConfig) RuleConfig { return c.Payment }, func(s *edge.Settings) **limit.Rule { return &s.Payment }},
	{"read", func(c *LimitsConfig) RuleConfig { return c.Read }, func(s *edge.Settings) **limit.Rule { return &s.Read }},
}

// changed reports whether the rule is another one in next.
func (u userRule) changed(old, next *LimitsConfig) bool {
	return !reflect.DeepEqual(u.in(old), u.in(next))
}

// canBeTried reports whether something changes from old to next that a canary can try, and next wants one.
func canBeTried(old, next *Config) bool {
	if next.Reload.Canary.Share == 0 {
		return false
	}
	if !maps.Equal(uids(old.Limits.UIDExempt), uids(next.Limits.UIDExempt)) {
		return true
	}
	for _, u := range userRules {
		if u.changed(&old.Limits, &next.Limits) {
			return true
		}
	}
	return false
}

// beginCanary lets the limits of file hold for a share of the users. The caller holds mu, and has made sure that the whole file can be
// taken over. The salt is the file's hash: gateways that get the same file try it on the same users, and the next file has others.
func (r *process) beginCanary(file loaded, by string, diff []string) {
	old, now := r.current.Load(), r.now()
	held := r.settings
	tried := held
	for _, u := range userRules {
		if u.changed(&old.Limits, &file.Limits) {
			was, is := ruleOf(u.name, u.in(&old.Limits), now), ruleOf(u.name, u.in(&file.Limits), now)
			limit.Together(was, is)
			*u.at(&held), *u.at(&tried) = was, is
		}
	}
	tried.ExemptUsers = uids(file.Limits.UIDExempt)
	c := &canaryRun{CanaryConfig: file.Reload.Canary, file: file, by: by, diff: diff, since: now, began: time.Now(),
		edge: edge.NewCanary(tried, file.Hash, file.Reload.Canary.Share)}
	held.Canary = c.edge
	r.setSettings(held)
	r.canary.Store(c)
}

// endCanary lets the old limits hold for everybody again. Their rules are made anew, so that no request that began before brings one back
// that was tried. Buckets keep their tokens. The caller holds mu.
func (r *process) endCanary(c *canaryRun) {
	old, now := r.current.Load(), r.now()
	s := r.settings
	for _, u := range userRules {
		if u.changed(&old.Limits, &c.file.Limits) {
			*u.at(&s) = ruleOf(u.name, u.in(&old.Limits), now)
		}
	}
	s.Canary = nil
	r.setSettings(s)
	r.canary.Store(nil)
}

func (r *process) setSettings(s edge.Settings) {
	r.settings = s
	r.edge.SetSettings(s)
}

// rollBack ends a canary and puts on record why. The caller holds mu.
func (r *process) rollBack(c *canaryRun, reason string) {
	r.endCanary(c)
	e := r.record(ops.Reload{By: c.by, Result: rolledBack, Reason: reason, Hash: c.file.Hash, Diff: c.diff})
	r.metrics.rolledBack.Inc()
	r.metrics.ok.Set(0)
	r.log.Warn("the limits that were tried were rolled back", "reason", reason, "by", c.by, "generation", e.Generation, "tried", c.file.Hash,
		"diff", strings.Join(e.Diff, "; "))
}

// take takes the whole file over. The caller holds mu.
func (r *process) take(c *canaryRun, reason string) {
	old := r.current.Load()
	material, err := c.file.BackendTLS.read()
	if err != nil {
		r.rollBack(c, "the rest of the file cannot be taken over any more: "+err.Error())
		return
	}
	bounds, err := r.fit(c.file.Config)
	if err != nil {
		r.rollBack(c, "the rest of the file cannot be taken over any more: "+err.Error())
		return
	}
	r.endCanary(c)
	s, err := r.settingsOf(&old.Config, c.file.Config)
	if err != nil {
		panic("BUG: a file that was checked when its canary began: " + err.Error())
	}
	r.tls.use(material)
	file := c.file
	file.Generation = old.Generation + 1
	r.apply(&file, s, bounds)
	e := r.record(ops.Reload{By: c.by, Result: taken, Reason: reason, Diff: c.diff})
	r.metrics.taken()
	r.log.Info("the limits that were tried hold for everybody", "reason", reason, "by", c.by, "generation", e.Generation, "hash", e.Hash,
		"diff", strings.Join(e.Diff, "; "))
}

// judge says whether a canary is over, how, and why. Nothing is judged by fewer than MinRequests requests on either side: then the watch
// goes on.
func (c *canaryRun) judge(tried, rest edge.Tally, since time.Duration) (result, reason string) {
	if least := int64(c.MinRequests); tried.Requests < least || rest.Requests < least {
		return "", ""
	}
	for _, x := range []struct {
		what        string
		tried, rest int64
		bound       float64
	}{{"refused", tried.Refused, rest.Refused, c.MaxMoreRefused}, {"errors", tried.Failed, rest.Failed, c.MaxMoreErrors}} {
		a, b := float64(x.tried)/float64(tried.Requests), float64(x.rest)/float64(rest.Requests)
		if a-b > x.bound {
			return rolledBack, fmt.Sprintf("%s: %d of %d requests (%.2f%%) with the new limits, %d of %d (%.2f%%) with the old ones: more than max_more_%s, %v, above",
				x.what, x.tried, tried.Requests, 100*a, x.rest, rest.Requests, 100*b, x.what, x.bound)
		}
	}
	if since < c.Watch {
		return "", ""
	}
	return taken, fmt.Sprintf("after %v: %s", since.Round(time.Second), compare(tried, rest))
}

func compare(tried, rest edge.Tally) string {
	return fmt.Sprintf("with the new limits %d requests, %d refused, %d errors; with the old ones %d, %d, %d",
		tried.Requests, tried.Refused, tried.Failed, rest.Requests, rest.Refused, rest.Failed)
}

// canaryCheckEvery is how often a canary is judged.
const canaryCheckEvery = 250 * time.Millisecond

// watchCanary judges the canary that runs, if one does, until ctx is done.
func (r *process) watchCanary(ctx context.Context) error {
	tick := time.NewTicker(canaryCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if r.canary.Load() != nil {
				r.judgeCanary()
			}
		}
	}
}

func (r *process) judgeCanary() {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.canary.Load()
	if c == nil {
		return
	}
	tried, rest := c.edge.Tallies()
	switch result, reason := c.judge(tried, rest, r.now().Sub(c.since)); result {
	case rolledBack:
		r.rollBack(c, reason)
	case taken:
		r.take(c, reason)
	}
}

// note says what the canary is about, for an operator.
func (c *canaryRun) note() string {
	return fmt.Sprintf("the limits are tried on %v%% of the users for %v, and until there are %d requests with the old and with the new ones; the rest of the file waits",
		100*c.Share, c.Watch, c.MinRequests)
}

// canaryWarnings tells of the canary in /-/ready.
func (r *process) canaryWarnings() []string {
	c := r.canary.Load()
	if c == nil {
		return nil
	}
	return []string{fmt.Sprintf("the file %s is not in force: %s; since %s %s", c.file.Hash, c.note(), wire.At(c.began), compare(c.edge.Tallies()))}
}

// canaryMetrics is the metrics of the canary that runs.
type canaryMetrics struct{ r *process }

var (
	descCanary         = prometheus.NewDesc("gateway_canary_running", "1 while changed limits are tried on a share of the users.", nil, nil)
	descCanaryRequests = prometheus.NewDesc("gateway_canary_requests", "Requests that came to users' buckets since the canary began, under the limits that are tried (new) and those in force (old), by result: passed, refused by these buckets, failed (5xx).",
		[]string{"limits", "result"}, nil)
)

// Describe implements prometheus.Collector.
func (canaryMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- descCanary
	out <- descCanaryRequests
}

// Collect implements prometheus.Collector.
func (m canaryMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	c := m.r.canary.Load()
	if c == nil {
		gauge(descCanary, 0)
		return
	}
	gauge(descCanary, 1)
	tried, rest := c.edge.Tallies()
	for limits, t := range map[string]edge.Tally{"new": tried, "old": rest} {
		gauge(descCanaryRequests, t.Requests-t.Refused-t.Failed, limits, "passed")
		gauge(descCanaryRequests, t.Refused, limits, "refused")
		gauge(descCanaryRequests, t.Failed, limits, "failed")
	}
}

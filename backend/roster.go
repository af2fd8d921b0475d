package backend

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/command"
	"floodgate.internal/backend/event"
	"floodgate.internal/shared/operator"
)

// roster is the operators of a running process. They, and the endpoints of events, are what it takes over from the file while it runs:
// who leaves must lose their access at once, and a backend is not restarted in the middle of a sale.
type roster struct {
	path  string
	began Config
	log   *slog.Logger
	list  atomic.Pointer[operator.List]

	events *event.Log // nil: there is none to configure
	ok     prometheus.Gauge
}

func newRoster(path string, c Config, log *slog.Logger, reg prometheus.Registerer) *roster {
	r := &roster{path: path, began: c, log: log, ok: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "backend_operators_last_reload_successful", Help: "1 if the operators are those of the file as it was last read.",
	})}
	reg.MustRegister(r.ok)
	r.ok.Set(1)
	r.list.Store(operator.NewList("admin", c.AdminToken, c.Operators))
	return r
}

// lookEvery is how often the file is read. It is taken over when two readings are equal, so that no half of it is.
const lookEvery = time.Second

// follow takes the operators over on SIGHUP and when the file changes, until ctx is done. It reads the file again and again instead of
// watching it: that sees every change, also of a ConfigMap or on a network's file system.
func (r *roster) follow(ctx context.Context, hangup <-chan os.Signal) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var seen, taken string // the file's hash when it was last looked at, and when it was last taken over or refused
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
			taken = hashOf(r.path)
			r.take("SIGHUP")
		case <-tick.C:
			now := hashOf(r.path)
			if now != "" && now == seen && now != taken {
				taken = now
				r.take("file change")
			}
			seen = now
		}
	}
}

// take reads the file and takes its operators over, if all of the file is right. by is what asked for it.
func (r *roster) take(by string) {
	c, err := LoadConfig(r.path)
	if err == nil { // the token that counts is that of the start
		err = errors.Join(append(operator.Check(c.Operators, "admin_token", r.began.AdminToken), event.Check(c.Events.Endpoints, r.began.Development)...)...)
	}
	if err != nil {
		r.ok.Set(0)
		r.log.Error("the operators were not taken over, the old ones stay", "by", by, "error", err)
		return
	}
	next := operator.NewList("admin", r.began.AdminToken, c.Operators)
	diff := r.list.Swap(next).Diff(next)
	if was := r.events.Endpoints(); r.events != nil && !reflect.DeepEqual(was, c.Events.Endpoints) {
		r.events.Configure(c.Events.Endpoints)
		diff = append(diff, fmt.Sprintf("events go to %d endpoints, before to %d", len(c.Events.Endpoints), len(was)))
	}
	r.ok.Set(1)
	others := r.others(c)
	if len(diff) > 0 || len(others) > 0 || by == "SIGHUP" {
		r.log.Info("the operators were read again", "by", by, "diff", strings.Join(diff, "; "), "only_after_a_restart", strings.Join(others, ", "))
	}
}

// others names the keys beside operators and endpoints of events that differ from those that the process began with.
func (r *roster) others(c Config) (keys []string) {
	c.Events.Endpoints = r.began.Events.Endpoints
	was, is := reflect.ValueOf(r.began), reflect.ValueOf(c)
	for i := range was.NumField() {
		name := was.Type().Field(i).Tag.Get("yaml")
		if name != "operators" && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			keys = append(keys, name)
		}
	}
	return keys
}

// hangups delivers each SIGHUP until ctx is done.
func hangups(ctx context.Context) <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { signal.Stop(c) })
	return c
}

// hashOf is the hash of a file's content, "" if it cannot be read.
func hashOf(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

type operatorToken struct{ operator.TokenCommand }

// Run prints a token.
func (c *operatorToken) Run(env *command.Env) error { return c.Write(env.Stdout) }

// Package durability reads the settings of Redis, MySQL and RabbitMQ that decide what an accepted order survives. The
// weakest setting decides. The log, /-/ready and the console show the same text and the same table.
package durability

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/store"
)

// Danger is what a setting exposes an accepted order to. The worst is the greatest.
type Danger int

// The dangers.
const (
	None       Danger = iota
	Unanswered        // orders may be made and not accepted: too few replicas acknowledge them
	Unknown           // the setting cannot be read
	Failover          // a replica that lags takes over
	PowerCut          // what was not synced is lost
	Restart           // a store keeps nothing on its disk
	Eviction          // Redis drops keys when it is short of memory
)

// unread is the value of a setting that cannot be read.
const unread = "unknown"

// Setting is one setting as it was measured.
type Setting struct {
	Store  string `json:"store"` // redis, mysql or rabbitmq
	Where  string `json:"where"` // the node's address, the queue's name, or ""
	Name   string `json:"setting"`
	Value  string `json:"value"`            // "unknown" where it cannot be read
	Weak   bool   `json:"weak"`             // an accepted order survives less because of it, or that is not known
	Advice string `json:"advice,omitempty"` // what to do about it, where it is weak
	danger Danger
}

func (s Setting) String() string {
	where := s.Store
	if s.Where != "" {
		where += " " + s.Where
	}
	return where + ": " + s.Name + " " + s.Value
}

// Report is what an accepted order survives, and which settings decide that.
type Report struct {
	AcceptAfter string    `json:"accept_after"` // fsync, confirm or replicas:N
	Survives    string    `json:"survives"`     // "the death of ...; not ..."
	Weak        bool      `json:"weak"`         // with other settings it would be more, or that is not known
	Settings    []Setting `json:"settings"`     // all that were read, also those that are as they should be
	worst       Danger
}

// Same reports whether two reports say the same.
func (r Report) Same(other Report) bool {
	return r.AcceptAfter == other.AcceptAfter && r.Survives == other.Survives && slices.Equal(r.Settings, other.Settings)
}

// Advice is what to do, one sentence a weak setting; "" if there is none.
func (r Report) Advice() string {
	var all []string
	for _, s := range r.Settings {
		if s.Weak {
			all = append(all, s.String()+": "+s.Advice)
		}
	}
	return strings.Join(all, "; ")
}

// Evicts names the settings by which Redis may drop reservations; nil if there is none.
func (r Report) Evicts() error {
	var errs []error
	for _, s := range r.Settings {
		if s.danger == Eviction {
			errs = append(errs, fmt.Errorf("%s: Redis may drop reservations when it is short of memory: %s", s, s.Advice))
		}
	}
	return errors.Join(errs...)
}

// Stores are the stores whose settings are read. DB and Broker may be nil: then they are left out.
type Stores struct {
	Redis  rueidis.Client
	DB     *sql.DB
	Broker *broker.Broker
	// Confirm: the answer also waits for the broker's confirm.
	Confirm bool
	// Replicas is how many replicas of Redis must have acknowledged an order before the answer.
	Replicas int
}

// Read reads the stores' settings. Those of a store that does not answer are unknown. It takes no longer than a few of
// redis.Timeout.
func Read(ctx context.Context, s Stores) Report {
	settings := s.redis(ctx)
	if s.DB != nil {
		settings = append(settings, mysqlSettings(ctx, s.DB)...)
	}
	if s.Broker != nil {
		settings = append(settings, queueSettings(ctx, s.Broker)...)
	}
	return judge(settings, s.Confirm, s.Replicas)
}

// redis reads every primary's settings, each over its own connection, which is asked whether it is one. A replica's
// settings decide nothing until it is promoted.
func (s Stores) redis(ctx context.Context) (settings []Setting) {
	nodes := s.Redis.Nodes()
	addrs := make([]string, 0, len(nodes))
	for addr := range nodes {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	for _, addr := range addrs {
		settings = append(settings, redisNode(ctx, addr, nodes[addr], s.Replicas > 0)...)
	}
	return settings
}

// leastReplicas is the setting by which a primary refuses writes while it has fewer replicas.
const leastReplicas = "min-replicas-to-write"

var redisNames = []string{"appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy"}

func redisNode(ctx context.Context, addr string, client rueidis.Client, replicated bool) (settings []Setting) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	c, end := client.Dedicate()
	defer end()
	add := func(name, value string) {
		settings = append(settings, Setting{Store: "redis", Where: addr, Name: name, Value: value})
	}
	replicas := unread
	switch role, err := c.Do(ctx, c.B().Role().Build()).ToArray(); {
	case err != nil || len(role) == 0:
	case len(role) >= 3:
		if name, err := role[0].ToString(); err != nil || name != "master" {
			return nil
		}
		if list, err := role[2].ToArray(); err == nil {
			replicas = strconv.Itoa(len(list))
		}
	default:
		return nil // a sentinel
	}
	names := redisNames
	if replicated {
		names = append(slices.Clone(names), leastReplicas)
	}
	for _, name := range names {
		m, err := c.Do(ctx, c.B().ConfigGet().Parameter(name).Build()).AsStrMap()
		if value := strings.ToLower(m[name]); err == nil && value != "" {
			add(name, value)
		} else {
			add(name, unread)
		}
	}
	add("replicas", replicas)
	return settings
}

func mysqlSettings(ctx context.Context, db *sql.DB) (settings []Setting) {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	for _, name := range []string{"innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog"} {
		var value string
		if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL."+name).Scan(&value); err != nil {
			value = unread
		}
		if name == "log_bin" {
			switch value {
			case "0":
				value = "OFF"
			case "1":
				value = "ON"
			}
		}
		settings = append(settings, Setting{Store: "mysql", Name: name, Value: value})
	}
	return append(settings, Setting{Store: "mysql", Name: semiSync, Value: semiSyncOf(ctx, db)})
}

// semiSync is what says that a COMMIT returns only when a replica has it.
const semiSync = "semi-synchronous replication"

// semiSyncOf asks MariaDB's and MySQL's counters, by their old name and by MySQL's new one: ON while enough replicas answer, OFF also
// where there is none.
func semiSyncOf(ctx context.Context, db *sql.DB) (value string) {
	value = "OFF"
	if err := store.Each(ctx, db, func(rows *sql.Rows) error {
		var name, status string
		err := rows.Scan(&name, &status)
		if strings.EqualFold(status, "ON") {
			value = "ON"
		}
		return err
	}, `SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')`); err != nil {
		return unread
	}
	return value
}

// queueSettings returns the weakest of the partitions' queues.
func queueSettings(ctx context.Context, b *broker.Broker) []Setting {
	ctx, cancel := context.WithTimeout(ctx, redis.Timeout)
	defer cancel()
	kind, members := unread, unread
	if kinds, err := b.Kinds(ctx); err == nil && len(kinds) > 0 {
		kind = kinds[0].Type
		least := kinds[0].Members
		for _, k := range kinds {
			if k.Type != "quorum" {
				kind = k.Type
			}
			least = min(least, k.Members)
		}
		if least > 0 {
			members = strconv.Itoa(least)
		}
	}
	return []Setting{{Store: "rabbitmq", Name: "queue type", Value: kind}, {Store: "rabbitmq", Name: "queue members", Value: members}}
}

// judge marks the weak settings, and sets what the weakest leaves.
func judge(settings []Setting, confirm bool, replicas int) Report {
	r := Report{AcceptAfter: "fsync", Settings: settings}
	switch {
	case confirm:
		r.AcceptAfter = "confirm"
	case replicas > 0:
		r.AcceptAfter = fmt.Sprint("replicas:", replicas)
	}
	value := func(of Setting, name string) string {
		for _, s := range settings {
			if s.Store == of.Store && s.Where == of.Where && s.Name == name {
				return s.Value
			}
		}
		return ""
	}
	var stores []string // that a power cut takes something from
	for i := range r.Settings {
		s := &r.Settings[i]
		s.danger, s.Advice = s.judge(confirm, replicas, func(name string) string { return value(*s, name) })
		if s.danger == PowerCut && !slices.Contains(stores, s.Store) {
			stores = append(stores, s.Store)
		}
		s.Weak = s.danger != None
		r.worst = max(r.worst, s.danger)
	}
	r.Weak = r.worst != None
	synced := slices.ContainsFunc(settings, func(s Setting) bool { return s.Name == semiSync && s.Value == "ON" })
	r.Survives = words(r.worst, confirm, synced, replicas, stores)
	return r
}

// judge returns what a setting exposes an order to, and what to do about it. other is the value of another setting of the
// same node.
func (s Setting) judge(confirm bool, replicas int, other func(name string) string) (Danger, string) {
	const orConfirm = ", or accept.after: confirm"
	unsynced := func(good bool, advice string) (Danger, string) {
		switch {
		case good:
			return None, ""
		case s.Value == unread:
			return Unknown, "it cannot be read; " + advice
		}
		return PowerCut, advice
	}
	file := s.Store == "redis" && !confirm // then the broker has the order as well
	switch s.Name {
	case "maxmemory-policy":
		switch s.Value {
		case "noeviction":
			return None, ""
		case unread:
			return Unknown, "it cannot be read; it must be noeviction"
		}
		return Eviction, "set maxmemory-policy noeviction"
	case "appendonly":
		switch {
		case !file || s.Value == "yes":
			return None, ""
		case s.Value == unread:
			return Unknown, "it cannot be read; it must be yes" + orConfirm
		}
		return Restart, "set appendonly yes" + orConfirm
	case "appendfsync":
		return unsynced(!file || s.Value == "always" || other("appendonly") == "no", "set appendfsync always"+orConfirm)
	case "no-appendfsync-on-rewrite":
		return unsynced(!file || s.Value == "no" || other("appendonly") == "no", "set no-appendfsync-on-rewrite no"+orConfirm)
	case "replicas":
		if !file {
			return None, ""
		}
		count, err := strconv.Atoi(s.Value)
		switch {
		case err != nil:
			return Unknown, "it cannot be read; a replica that takes over may have less" + orConfirm
		case count == replicas:
			return None, ""
		case count < replicas:
			return Unanswered, fmt.Sprintf("an order is accepted once %d replicas have acknowledged it: connect as many, or set accept.after to fewer", replicas)
		case replicas > 0:
			return Failover, fmt.Sprintf("a replica that has not acknowledged an order may take over: set accept.after: replicas:%d, or confirm", count)
		}
		return Failover, "a replica that takes over may have less than was promised: set accept.after: confirm, or replicas:" + s.Value
	case leastReplicas:
		least, err := strconv.Atoi(s.Value)
		advice := fmt.Sprintf("set %s %d: a primary that is cut off from its replicas then takes no orders, for it could not promise them", leastReplicas, replicas)
		switch {
		case err != nil:
			return Unknown, "it cannot be read; " + advice
		case least >= replicas:
			return None, ""
		}
		return Unanswered, advice
	case "innodb_flush_log_at_trx_commit":
		return unsynced(s.Value == "1" || s.Value == "3", "set innodb_flush_log_at_trx_commit = 1") // 3 is MariaDB's, and syncs as well
	case "log_bin":
		return unsynced(s.Value != unread, "without it sync_binlog does not matter")
	case "sync_binlog":
		return unsynced(s.Value == "1" || other("log_bin") == "OFF", "set sync_binlog = 1: a MySQL that crashed rolls back what its binary log does not have")
	case semiSync:
		return None, "" // without it Redis gives back the orders that a MySQL forgets: see words
	case "queue type":
		return unsynced(!confirm || s.Value == "quorum", "the queue must be a quorum queue: delete it while it is empty, and it is declared anew")
	}
	return None, "" // of a queue's members any number is said, none is wrong
}

// words are what an accepted order survives, by the worst danger. synced: each commit of MySQL is on a replica, too.
func words(worst Danger, confirm, synced bool, replicas int, stores []string) string {
	mysql := "a failover of MySQL to a copy that lags (but not what was paid in the lost commits)"
	if synced {
		mysql = "a failover of MySQL"
	}
	best := "the death of every process at once, a power cut, a wiped broker, " + mysql + "; not Redis's disk being destroyed before the order is in the broker or in MySQL"
	if confirm {
		best = "the death of every process at once, a power cut, a wiped broker, the loss of Redis's disk, a failover of Redis to an older copy, " + mysql + "; " +
			"not Redis's disk and a majority of the broker's nodes being destroyed together"
	}
	if replicas > 0 {
		best = "the death of every process at once, a power cut, a wiped broker, the loss of a primary of Redis with its disk when its replica takes over, " + mysql + "; " +
			"not the loss of both, nor a primary that starts again without its disk, before the order is in the broker or in MySQL"
	}
	switch worst {
	case None, Unanswered:
		return best
	case Unknown:
		return "what is not known, for some settings cannot be read; if they are as they should be: " + best
	case Failover:
		return "the death of every process at once, a power cut, a wiped broker; not a failover of Redis to a replica that lags"
	case PowerCut:
		return "the death of any process, a wiped broker; not a power cut of " + strings.Join(stores, " or ") +
			", nor a restart or a failover to an older copy, within the second or more that the disk lags"
	case Restart:
		return "the death of any process but Redis; not a restart of Redis before the order is in the broker or in MySQL"
	default:
		return "nothing for certain: Redis drops reservations when it is short of memory"
	}
}

// Every is how often a process reads the settings again: they can be changed while it runs.
const Every = time.Minute

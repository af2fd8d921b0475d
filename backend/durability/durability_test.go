package durability

import (
	"strings"
	"testing"
)

// asIs are the settings of stores that keep every promise.
func asIs() []Setting {
	return []Setting{
		{Store: "redis", Where: "a:1", Name: "appendonly", Value: "yes"}, {Store: "redis", Where: "a:1", Name: "appendfsync", Value: "always"},
		{Store: "redis", Where: "a:1", Name: "no-appendfsync-on-rewrite", Value: "no"}, {Store: "redis", Where: "a:1", Name: "maxmemory-policy", Value: "noeviction"},
		{Store: "redis", Where: "a:1", Name: "replicas", Value: "0"},
		{Store: "mysql", Name: "innodb_flush_log_at_trx_commit", Value: "1"}, {Store: "mysql", Name: "log_bin", Value: "ON"}, {Store: "mysql", Name: "sync_binlog", Value: "1"},
		{Store: "mysql", Name: semiSync, Value: "ON"},
		{Store: "rabbitmq", Name: "queue type", Value: "quorum"}, {Store: "rabbitmq", Name: "queue members", Value: "3"},
	}
}

// Each setting alone makes the weakest of what is said.
func TestTheWeakestSettingDecides(t *testing.T) {
	for _, confirm := range []bool{false, true} {
		if r := judge(asIs(), confirm, 0); r.Weak || r.Advice() != "" || !strings.Contains(r.Survives, "a power cut, a wiped broker") || r.Evicts() != nil {
			t.Errorf("confirm %t: got %+v, want all of it", confirm, r)
		}
	}
	for _, c := range []struct {
		name, value    string
		fsync, confirm Danger
	}{
		{"appendonly", "no", Restart, None},
		{"appendonly", "unknown", Unknown, None},
		{"appendfsync", "everysec", PowerCut, None},
		{"appendfsync", "no", PowerCut, None},
		{"appendfsync", "unknown", Unknown, None},
		{"no-appendfsync-on-rewrite", "yes", PowerCut, None},
		{"maxmemory-policy", "allkeys-lru", Eviction, Eviction},
		{"maxmemory-policy", "volatile-ttl", Eviction, Eviction},
		{"maxmemory-policy", "unknown", Unknown, Unknown},
		{"replicas", "2", Failover, None},
		{"replicas", "unknown", Unknown, None},
		{"innodb_flush_log_at_trx_commit", "0", PowerCut, PowerCut},
		{"innodb_flush_log_at_trx_commit", "2", PowerCut, PowerCut},
		{"innodb_flush_log_at_trx_commit", "3", None, None},
		{"innodb_flush_log_at_trx_commit", "unknown", Unknown, Unknown},
		{"sync_binlog", "0", PowerCut, PowerCut},
		{"sync_binlog", "100", PowerCut, PowerCut},
		{"queue type", "classic", None, PowerCut},
		{"queue members", "unknown", None, None},
	} {
		for confirm, want := range map[bool]Danger{false: c.fsync, true: c.confirm} {
			settings := asIs()
			for i := range settings {
				if settings[i].Name == c.name {
					settings[i].Value = c.value
				}
			}
			r := judge(settings, confirm, 0)
			if r.worst != want || r.Weak != (want != None) || (r.Advice() != "") != (want != None) || (r.Evicts() != nil) != (want == Eviction) {
				t.Errorf("%s %s, confirm %t: got danger %d, weak %t, advice %q; want danger %d", c.name, c.value, confirm, r.worst, r.Weak, r.Advice(), want)
			}
		}
	}
}

// Without a binary log nothing hangs on sync_binlog; without a file nothing on when it is synced.
func TestWhatDoesNotMatter(t *testing.T) {
	settings := asIs()
	settings[6].Value, settings[7].Value = "OFF", "0"
	if r := judge(settings, false, 0); r.Weak {
		t.Errorf("sync_binlog 0 without a binary log: got %+v", r)
	}
	settings = asIs()
	settings[0].Value, settings[1].Value = "no", "everysec"
	if r := judge(settings, false, 0); r.worst != Restart || strings.Contains(r.Advice(), "appendfsync") {
		t.Errorf("no append-only file: got %d, %s", r.worst, r.Advice())
	}
}

// Of several weak settings the worst is said, and all have their advice.
func TestTheWorstOfSeveral(t *testing.T) {
	settings := asIs()
	settings[1].Value, settings[4].Value, settings[5].Value = "everysec", "1", "2"
	r := judge(settings, false, 0)
	if !strings.Contains(r.Survives, "a power cut of redis or mysql") || strings.Count(r.Advice(), "; ") != 2 {
		t.Errorf("got %s; %s", r.Survives, r.Advice())
	}
}

// With replicas:N each primary has N replicas, no more and no fewer, and refuses writes without them. Its disk counts as with fsync.
func TestWhatReplicasKeep(t *testing.T) {
	for _, c := range []struct {
		count, least, sync string
		want               Danger
		advice             string
	}{
		{"2", "2", "always", None, ""},
		{"2", "3", "always", None, ""},
		{"1", "2", "always", Unanswered, "connect as many"},
		{"3", "2", "always", Failover, "set accept.after: replicas:3"},
		{"unknown", "2", "always", Unknown, "may have less"},
		{"2", "1", "always", Unanswered, "set min-replicas-to-write 2"},
		{"2", "unknown", "always", Unknown, "set min-replicas-to-write 2"},
		{"2", "2", "everysec", PowerCut, "set appendfsync always"},
	} {
		settings := append(asIs(), Setting{Store: "redis", Where: "a:1", Name: leastReplicas, Value: c.least})
		settings[1].Value, settings[4].Value = c.sync, c.count
		r := judge(settings, false, 2)
		if r.AcceptAfter != "replicas:2" || r.worst != c.want || r.Weak != (c.want != None) || (r.Advice() == "") != (c.want == None) || !strings.Contains(r.Advice(), c.advice) {
			t.Errorf("%+v: got danger %d, %s, advice %q", c, r.worst, r.AcceptAfter, r.Advice())
		}
		if c.want <= Unanswered && !strings.Contains(r.Survives, "when its replica takes over") {
			t.Errorf("%+v: got %s", c, r.Survives)
		}
	}
}

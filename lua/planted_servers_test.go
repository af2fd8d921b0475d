//go:build servers

package lua_test

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/lua"
)

// bug is what a script has, and what it has instead.
type bug struct{ script, good, bad string }

var planted = map[string]bug{
	"the units are taken before the buyer's limit is looked at": {"reserve", "local limit = tonumber(state[7])", "redis.call('HINCRBY', KEYS[1], 'stock', -quantity) stock = stock - quantity local limit = tonumber(state[7])"},
	"an order takes one unit, whatever its quantity":            {"reserve", "'stock', -quantity)", "'stock', -1)"},
	"a buyer may exceed the limit by one":                       {"reserve", "count + quantity > limit", "count + quantity > limit + 1"},
	"the last unit is not sold":                                 {"reserve", "available < quantity", "available <= quantity"},
	"tranches to come are sold":                                 {"reserve", "> now then available", "< now then available"},
	"a repeat is not looked for":                                {"reserve", "redis.call('HEXISTS', KEYS[2], order) == 1", "false"},
	"a key is everybody's":                                      {"reserve", "local before = redis.call('HGET', KEYS[4], uid .. ':' .. key)", "local before = redis.call('HGET', KEYS[4], 'ann:' .. key)"},
	"a key is forgotten":                                        {"reserve", "if key ~= '' then redis.call('HSET'", "if false then redis.call('HSET'"},
	"a key is taken for any quantity":                           {"reserve", "tonumber(amount) ~= quantity", "false"},
	"an order more may end than may":                            {"reserve", "ended >= most", "ended > most"},
	"orders that ended are everybody's":                         {"reserve", "redis.call('HGET', KEYS[4], uid) or 0", "redis.call('HGET', KEYS[4], 'ann') or 0"},
	"any number of orders may end":                              {"reserve", "if most > 0 then", "if false then"},
	"an order that ended is not counted":                        {"release", "redis.call('HINCRBY', KEYS[4], uid, 1)", ""},
	"any epoch will do":                                         {"reserve", "if epoch ~= ARGV[1]", "if epoch < ARGV[1]"},
	"the gate that adopts is open to buyers":                    {"reserve", "gate ~= 'open'", "gate == 'closed'"},
	"a freed slot is not used again":                            {"reserve", "local slots, slot = {}, 1", "local slots, slot = {}, count + 1"},
	"the oldest order is named at the limit":                    {"reserve", "id > newest", "id < newest"},
	"a refusal writes":                                          {"reserve", "if available <= 0 or state[11] and ARGV[7] ~= 'line' then return", "if available <= 0 then redis.call('HSET', KEYS[1], 'soldout', 1) end if available <= 0 or state[11] and ARGV[7] ~= 'line' then return"},
	"the public takes what the line waits for":                  {"reserve", " or state[11] and ARGV[7] ~= 'line'", ""},
	"the line waits for what it may have":                       {"reserve", " and ARGV[7] ~= 'line'", ""},
	"a load forgets that somebody waits":                        {"load", "if tonumber(ARGV[13]) > tonumber(state[4] or 0) then", "if false then"},
	"a load brings an old place back":                           {"load", "tonumber(ARGV[13]) > tonumber(state[4] or 0)", "tonumber(ARGV[13]) > 0"},
	"a place that is older is noted":                            {"standby", "waiting >= tonumber(ARGV[2])", "false"},
	"whoever rests is heard":                                    {"standby", "waiting ~= tonumber(ARGV[2]) or waiting == 0", "waiting == 0"},
	"one at the limit may join":                                 {"standby", "count >= tonumber(state[5])", "count > tonumber(state[5])"},
	"nobody joins behind those who wait":                        {"standby", "waiting == 0 and available > 0", "available > 0"},
	"a release is not noted":                                    {"release", "redis.call('RPUSH', KEYS[5], order .. ' ' .. held)", ""},
	"a release is not counted":                                  {"release", "redis.call('HINCRBY', KEYS[1], 'released', 1)", ""},
	"whatever is released gives a unit back":                    {"release", "if not held then return {'done'} end", "if not held then return {'released', redis.call('HINCRBY', KEYS[1], 'stock', 1)} end"},
	"a release leaves the reservation":                          {"release", "redis.call('HDEL', KEYS[2], order)", ""},
	"a release frees the buyer's other slots too":               {"release", "if id ~= order then", "if false then"},
	"a release passes a closed gate":                            {"release", "gate ~= 'open'", "false"},
	"an order that is held is adopted with a unit more":         {"adopt", "if held then\n  old", "if held then redis.call('HINCRBY', KEYS[1], 'stock', -1)\n  old"},
	"an adopted order keeps its old entry":                      {"adopt", "redis.call('XDEL', KEYS[5], old)", ""},
	"the old entry of an adopted order stays pending":           {"adopt", "redis.call('XACK', KEYS[5], ARGV[9], old)", ""},
	"an adoption passes the limit":                              {"adopt", "slot <= limit", "slot <= 99"},
	"an adoption takes units that are not there":                {"adopt", "if stock < quantity then return", "if stock < 0 then return"},
	"an adopted order's key is forgotten":                       {"adopt", "if key ~= '' then", "if false then"},
	"an adoption takes another order's key":                     {"adopt", "not string.find(owner, order .. ' ', 1, true)", "false"},
	"a load that is under way is whole":                         {"load", "'whole', '0'", "'whole', '1'"},
	"tokens are compared as text":                               {"close", "tonumber(before) >= token", "before >= ARGV[1]"},
	"the same token closes twice":                               {"close", "tonumber(before) >= token", "tonumber(before) > token"},
	"whoever loads is heard":                                    {"load", "state[1] ~= ARGV[1] or ", ""},
	"a load keeps old keys":                                     {"load", "KEYS[3], KEYS[4], KEYS[5])", "KEYS[3], KEYS[5])"},
	"a load keeps old intents":                                  {"load", "KEYS[3], KEYS[4], KEYS[5])", "KEYS[3], KEYS[4])"},
	"a load forgets a buyer's earlier orders":                   {"load", "held[uid] = before[n] or ''", "held[uid] = ''"},
	"a load brings an old definition back":                      {"load", "tonumber(state[3]) <= tonumber(ARGV[12])", "true"},
	"a load opens the gate":                                     {"load", "'gate', 'adopt'", "'gate', 'open'"},
	"anybody opens the gate":                                    {"open", "state[1] ~= ARGV[1] or ", ""},
	"a gate opens before anything is loaded":                    {"open", "state[2] ~= 'adopt'", "state[2] == 'open'"},
	"a change is applied twice":                                 {"adjust", "redis.call('SADD', KEYS[2], ARGV[1])", ""},
	"more units leave than there are":                           {"adjust", "state[2] + ARGV[2] < 0", "false"},
	"a change leaves the total":                                 {"adjust", "redis.call('HINCRBY', KEYS[1], 'total', ARGV[2])", "tonumber(redis.call('HGET', KEYS[1], 'total'))"},
	"an old definition is taken":                                {"define", "tonumber(version) >= tonumber(ARGV[1])", "false"},
	"a definition comes to a sale that is not loaded":           {"define", "if not version then return {'not_loaded'} end", "version = version or '0'"},
	"a retired entry stays pending":                             {"retire", "redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))", ""},
	"a retired entry stays":                                     {"retire", "redis.call('XDEL', KEYS[1], unpack(ARGV, 2))", "0"},
	"a consumer is forgotten with what it holds":                {"sweep", "c.pending == 0 and ", ""},
	"a consumer that was named is forgotten":                    {"sweep", "not keep[c.name]", "true"},
	"a consumer that spoke just now is forgotten":               {"sweep", "c.idle >= tonumber(ARGV[2])", "true"},
}

// spoiled are the scripts with a bug in one of them.
func spoiled(t *testing.T, b bug) map[string]lua.Script {
	t.Helper()
	all := genuine()
	source := all[b.script].Source
	if n := strings.Count(source, b.good); n != 1 {
		t.Fatalf("%s.lua has %q %d times, want once", b.script, b.good, n)
	}
	source = strings.Replace(source, b.good, b.bad, 1)
	sum := sha1.Sum([]byte(source))
	all[b.script] = lua.Script{Source: source, SHA: hex.EncodeToString(sum[:])}
	return all
}

// TestPlantedBugsAreFound shows that the property has teeth: each bug alone is seen.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(planted)) {
		bug := planted[name]
		t.Run(name, func(t *testing.T) {
			scripts := spoiled(t, bug)
			seen := newTally()
			t.Parallel()
			for seed := range 1000 {
				err := play(drawProgram.Example(seed), scripts, func(s *scene) error { return s.inTurns(seen) })
				if errors.Is(err, errBroken) {
					t.Logf("found by program %d: %v", seed+1, err)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Error("it is not found")
		})
	}
}

// TestABugThatOnlyCallsAtOnceShowIsFound has reserve read the stock and, in a second command, write what is left.
func TestABugThatOnlyCallsAtOnceShowIsFound(t *testing.T) {
	seen := newTally()
	for seed := range 1000 {
		inTwo := func(way func(*scene, *tally) error) error {
			return play(drawProgram.Example(seed), genuine(), func(s *scene) error { s.inTwo = true; return way(s, seen) })
		}
		if err := inTwo((*scene).inTurns); err != nil {
			t.Fatalf("in turns it is no bug: %v", err)
		}
		err := inTwo((*scene).atOnce)
		if errors.Is(err, errBroken) {
			t.Logf("found by program %d: %v", seed+1, err)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("it is not found")
}

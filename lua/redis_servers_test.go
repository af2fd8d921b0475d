//go:build servers

package lua_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// sale is one sale of a test, on the real Redis under a prefix of its own.
type sale struct {
	t                                                  *testing.T
	c                                                  rueidis.CoreClient
	state, orders, buyers, idem, outbox, applied, gone string
}

var connect = sync.OnceValues(func() (rueidis.Client, error) {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		return nil, fmt.Errorf("REDIS_ADDR is not set: this test needs the real servers: run make test")
	}
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true})
})

// newSale is a sale that is not in Redis; every script is loaded.
func newSale(t *testing.T) *sale {
	t.Helper()
	c, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range scripts {
		sha, err := c.Do(t.Context(), c.B().ScriptLoad().Script(s.Source).Build()).ToString()
		if err != nil || sha != s.SHA {
			t.Fatalf("%s: loaded as %s, %v; want %s", name, sha, err, s.SHA)
		}
	}
	base := "t" + rand.Text() + ":{sale:7}:"
	s := &sale{t, c, base + "state", base + "orders", base + "buyers", base + "idem", base + "outbox", base + "applied", base + "gone"}
	t.Cleanup(func() {
		cmd := c.B().Del().Key(s.state, s.orders, s.buyers, s.idem, s.outbox, s.applied, s.gone).Build()
		if err := c.Do(context.Background(), cmd).Error(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// options are what differs from an open sale of 10 units, limit 1, of epoch 1 and token 1.
type options struct {
	stock, limit, starts, ends, version, standby int64
	later                                        string
	paused, closed                               string
}

func openSale(t *testing.T, o options) *sale {
	t.Helper()
	s := newSale(t)
	want(t, s.call(lua.SaleClose, keys(s.state), "1"), lua.Closed, "0")
	s.load(1, 1, o)
	want(t, s.call(lua.SaleOpen, keys(s.state), "1"), lua.Opened)
	return s
}

// load begins and finishes a load, without reservations; the gate adopts then.
func (s *sale) load(token, epoch int64, o options) {
	s.t.Helper()
	if o.stock == 0 {
		o.stock = 10
	}
	if o.limit == 0 {
		o.limit = 1
	}
	if o.ends == 0 {
		o.ends = 1 << 52
	}
	if o.version == 0 {
		o.version = 1
	}
	want(s.t, s.step(token, lua.StepBegin), lua.OK)
	want(s.t, s.step(token, lua.StepFinish, n(epoch), n(o.stock), n(o.stock), n(o.starts), n(o.ends), n(o.limit),
		"0"+o.paused, "0"+o.closed, o.later, n(o.version), n(o.standby)), lua.OK)
	for field, v := range map[string]string{"paused": o.paused, "closed": o.closed} {
		if v != "" {
			s.set(field, v)
		}
	}
}

func (s *sale) step(token int64, args ...string) lua.Reply {
	s.t.Helper()
	return s.call(lua.SaleLoad, keys(s.state, s.orders, s.buyers, s.idem, s.applied), append([]string{n(token)}, args...)...)
}

func keys(k ...string) []string { return k }

func n(i int64) string { return strconv.FormatInt(i, 10) }

// set changes the state behind the scripts' backs.
func (s *sale) set(field, value string) {
	s.t.Helper()
	if err := s.c.Do(s.t.Context(), s.c.B().Hset().Key(s.state).FieldValue().FieldValue(field, value).Build()).Error(); err != nil {
		s.t.Fatal(err)
	}
}

// call runs a script by EVALSHA; all its keys must share one hash slot.
func (s *sale) call(script lua.Script, keys []string, args ...string) lua.Reply {
	s.t.Helper()
	words, err := s.try(script, keys, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return words
}

func (s *sale) try(script lua.Script, keys []string, args ...string) (lua.Reply, error) {
	for _, k := range keys[1:] {
		if slot(k) != slot(keys[0]) {
			return nil, fmt.Errorf("keys %s and %s are in the slots %d and %d", keys[0], k, slot(keys[0]), slot(k))
		}
	}
	r, err := s.c.Do(context.Background(), s.c.B().Evalsha().Sha1(script.SHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToMessage()
	if err != nil {
		return nil, err
	}
	if r.IsInt64() {
		i, err := r.AsInt64()
		return []string{n(i)}, err
	}
	list, err := r.ToArray()
	if err != nil {
		return nil, err
	}
	words := make([]string, len(list))
	for i, m := range list {
		if m.IsInt64() {
			v, err := m.AsInt64()
			if err != nil {
				return nil, err
			}
			words[i] = n(v)
			continue
		}
		if words[i], err = m.ToString(); err != nil {
			return nil, err
		}
	}
	return words, nil
}

// slot is a Redis Cluster's: CRC16 (XMODEM) of the hash tag modulo 16384.
func slot(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

// press is a call of sale_reserve.lua.
type press struct {
	epoch          int64 // 0: 1
	uid            string
	quantity       int64 // 0: 1
	order, key, tr string
	line           string // "": for the public
	most           int64  // orders that may have ended; 0: any number
}

func (s *sale) tryReserve(p press) (lua.Reply, error) {
	return s.try(lua.SaleReserve, keys(s.state, s.orders, s.buyers, s.idem, s.outbox), n(max(1, p.epoch)), p.uid, n(max(1, p.quantity)), p.order, p.key, p.tr, p.line, n(p.most))
}

func (s *sale) reserve(p press) lua.Reply {
	s.t.Helper()
	words, err := s.tryReserve(p)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.withoutEntry(words)
}

// withoutEntry holds what a reserved order's answer says of its outbox entry against the outbox, and cuts it off.
func (s *sale) withoutEntry(words lua.Reply) lua.Reply {
	s.t.Helper()
	if words.Answer() != lua.Reserved {
		return words
	}
	if len(words) != 7 {
		s.t.Fatalf("got %q, want seven words", words)
	}
	found, err := s.c.Do(s.t.Context(), s.c.B().Xrange().Key(s.outbox).Start(words[4]).End(words[4]).Build()).AsXRange()
	if err != nil || len(found) != 1 || found[0].FieldValues["id"] != words[1] || found[0].FieldValues["slots"] != words[5] || found[0].FieldValues["at"] != words[6] {
		s.t.Errorf("the answer %q names the entry %v, %v", words, found, err)
	}
	return words[:4]
}

func (s *sale) release(order string) lua.Reply {
	s.t.Helper()
	return s.call(lua.SaleRelease, keys(s.state, s.orders, s.buyers, s.idem, s.gone), order)
}

// adopt calls sale_adopt.lua for an order as a message of an older epoch carries it.
func (s *sale) adopt(epoch int64, p press, slots string) lua.Reply {
	s.t.Helper()
	return s.call(lua.SaleAdopt, keys(s.state, s.orders, s.buyers, s.idem, s.outbox), n(epoch), p.order, p.uid, n(max(1, p.quantity)), slots, p.key, "1234", p.tr, "orders")
}

func want(t *testing.T, got lua.Reply, answer lua.Answer, more ...string) {
	t.Helper()
	if w := reply(answer, more...); !slices.Equal(got, w) {
		t.Errorf("got %q, want %q", got, w)
	}
}

func reply(answer lua.Answer, more ...string) lua.Reply {
	return append(lua.Reply{string(answer)}, more...)
}

func (s *sale) hash(key string) map[string]string {
	s.t.Helper()
	m, err := s.c.Do(s.t.Context(), s.c.B().Hgetall().Key(key).Build()).AsStrMap()
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *sale) entries() []rueidis.XRangeEntry {
	s.t.Helper()
	x, err := s.c.Do(s.t.Context(), s.c.B().Xrange().Key(s.outbox).Start("-").End("+").Build()).AsXRange()
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

// content is everything that a call may have changed.
func (s *sale) content() string {
	return fmt.Sprint(s.hash(s.state), s.hash(s.orders), s.hash(s.buyers), s.hash(s.idem), s.entries())
}

// adds asserts stock + reservations = total, one entry for each reservation, and that each slot of a buyer is one order's.
func (s *sale) adds(limit int) {
	s.t.Helper()
	state, orders := s.hash(s.state), s.hash(s.orders)
	stock, _ := strconv.Atoi(state["stock"])
	total, _ := strconv.Atoi(state["total"])
	units, entries := 0, map[string]bool{}
	for _, x := range s.entries() {
		entries[x.FieldValues["id"]] = true
	}
	slots := map[string][]string{}
	for id, held := range orders {
		f := strings.Split(held, " ")
		q, err := strconv.Atoi(f[1])
		if err != nil {
			s.t.Fatalf("order %s: %q", id, held)
		}
		units += q
		for _, slot := range strings.Split(f[2], ",") {
			slots[f[0]] = append(slots[f[0]], slot+"="+id)
		}
		if !entries[id] {
			s.t.Errorf("order %s has no entry in the outbox", id)
		}
	}
	if stock < 0 || stock+units != total {
		s.t.Errorf("stock %d + reserved %d, total %d", stock, units, total)
	}
	buyers := s.hash(s.buyers)
	if len(buyers) != len(slots) {
		s.t.Errorf("%d buyers, %d uids with orders", len(buyers), len(slots))
	}
	for uid, held := range buyers {
		got, want := strings.Split(held, ","), slots[uid]
		slices.Sort(got)
		slices.Sort(want)
		numbers := map[string]bool{}
		for _, pair := range got {
			slot, _, _ := strings.Cut(pair, "=")
			if i, err := strconv.Atoi(slot); err != nil || i < 1 || i > limit {
				s.t.Errorf("uid %s has slot %q, limit %d", uid, slot, limit)
			}
			numbers[slot] = true
		}
		if !slices.Equal(got, want) || len(numbers) != len(got) {
			s.t.Errorf("uid %s holds %v, its orders say %v", uid, got, want)
		}
	}
}

// all runs f in n goroutines at once and counts the words that its answers begin with.
func all(t *testing.T, n int, f func(i int) (lua.Reply, error)) map[lua.Answer]int {
	t.Helper()
	var mu sync.Mutex // guards count
	count := map[lua.Answer]int{}
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			words, err := f(i)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			count[words.Answer()]++
		})
	}
	close(begin)
	wg.Wait()
	return count
}

func counted(t *testing.T, got, want map[lua.Answer]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

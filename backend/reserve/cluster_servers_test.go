//go:build servers

package reserve_test

import (
	"crypto/sha1"
	"database/sql"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/intent"
	"floodgate.internal/backend/lock"
	"floodgate.internal/backend/queued"
	"floodgate.internal/backend/reserve"
	sales "floodgate.internal/backend/sale"
	"floodgate.internal/backend/sku"
	"floodgate.internal/backend/store"
	"floodgate.internal/lua"
	"floodgate.internal/shared/clock"
	"floodgate.internal/shared/wire"
)

// Every script runs on a real Redis Cluster, called as it is in production: over TLS, as a user who may do what docs/redis.md says
// and nothing else. One that is not called here fails the test.
func TestEveryScriptOnARedisCluster(t *testing.T) {
	t.Attr("row", "E8")
	secure := backendtest.NewSecure(t, "../../docs/redis.md", "c:")
	c := backendtest.SecureCluster(t, 3, 0, secure)
	s := c.Store()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	nodes := s.Client().Hold(ctx)
	lost, err := nodes.Lost(ctx)
	if lost == nil || err != nil {
		t.Fatal(lost, err)
	}
	name, err := lost.Begin(ctx)
	nodes.Release()
	must(err)
	s.Client().Use(name)

	used := map[*backendtest.Node]bool{}
	for sale := int64(1); len(used) < 3 || sale <= 8; sale++ {
		used[c.Of(s.OutboxKey(sale))] = true
		onCluster(t, s, sale)
	}

	locks := lock.New(s.Client(), prometheus.NewRegistry())
	for i := range 8 {
		owner := lock.NewOwner()
		hold, err := locks.Acquire(ctx, fmt.Sprint("l", i), owner, 300*time.Millisecond, 0)
		must(err)
		if _, err := locks.Acquire(ctx, fmt.Sprint("l", i), lock.NewOwner(), time.Second, 0); err == nil {
			t.Error("a lock was granted twice")
		}
		if i == 0 { // the watchdog renews it
			c.Of(s.Client().Prefix()+"{lock:l0}:holder").Until("the lock is renewed", func() bool {
				for _, n := range c.Nodes {
					if n.Knows(lua.LockRenew) {
						return true
					}
				}
				return false
			})
		}
		must(hold.Release())
	}

	db := backendtest.MySQL(t)
	skus := sku.NewCache(sku.Config{DB: db, Redis: s.Client(), Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	must(forgetAndLoad(t, s))
	var clk clock.Clock
	clk.Set(time.Now(), time.Now())
	intents := intent.New(intent.Config{DB: db, Sales: sales.Reader{DB: db}, Redis: s, Clock: &clk, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	for range 8 {
		skuID := backendtest.SKU(t, db, 5, 100, "EUR")
		must(skus.Load(ctx, skuID))
		v, err := skus.Lock(ctx, "o", []sku.Line{{SKU: skuID, Units: 2}})
		if err != nil || v[0].Answer != lua.Reduced {
			t.Fatalf("got %+v, %v", v, err)
		}
		if n, err := skus.Unlock(ctx, lua.ToBack, sku.Hold{SKU: skuID, Order: "o", Lock: v[0].Lock}); n != 1 || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
		must(store.InTx(ctx, db, func(tx *sql.Tx) error { _, err := intent.AdjustSKU(ctx, tx, time.Now(), skuID, 3); return err }))
		must(intents.OfSKU(ctx, skuID))
	}

	files, err := filepath.Glob("../../lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	ofLife := map[string]lua.Script{"sale_reserve.lua": lua.SaleReserveIn(name), "sale_adopt.lua": lua.SaleAdoptIn(name), "sku_lock.lua": lua.SKULockIn(name)}
	for _, f := range files {
		script, ok := ofLife[filepath.Base(f)]
		if !ok {
			source, err := os.ReadFile(f)
			must(err)
			sum := sha1.Sum(source)
			script = lua.Script{SHA: hex.EncodeToString(sum[:])}
		}
		known := false
		for _, n := range c.Nodes {
			known = known || n.Knows(script)
		}
		if !known {
			t.Errorf("%s was not called", filepath.Base(f))
		}
	}
	secure.Denied(c.Nodes...)
}

// forgetAndLoad gives the primaries the sku_lock.lua of the incarnation in use; no SKU is there yet.
func forgetAndLoad(t *testing.T, s *reserve.Store) error {
	t.Helper()
	script := s.Client().Incarnation().Lock
	nodes := s.Client().Hold(t.Context())
	defer nodes.Release()
	lacking, err := nodes.Lacking(t.Context(), script)
	if lacking == nil || err != nil {
		return fmt.Errorf("nothing lacks sku_lock.lua: %w", err)
	}
	return lacking.Load(t.Context(), script)
}

// onCluster calls every script of a sale.
func onCluster(t *testing.T, s *reserve.Store, sale int64) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("sale %d: %v", sale, err)
		}
	}
	load := func(token int64, l reserve.Loaded) {
		t.Helper()
		_, err := s.Shut(ctx, sale, token)
		must(err)
		must(s.Beat(ctx, sale, token))
		must(s.Load(ctx, sale, token, l))
	}
	definition := reserve.Definition{Version: 1, Ends: far, Limit: 3}
	load(1, reserve.Loaded{Epoch: 1, Stock: 10, Total: 10, Definition: definition})
	must(s.Unlock(ctx, sale, 1))
	joined, err := s.Join(ctx, sale)
	if !joined || err != nil {
		t.Fatalf("sale %d: join: %v, %v", sale, joined, err)
	}
	press := func(uid string, epoch int64) queued.Entry {
		t.Helper()
		r := reserve.Request{Sale: sale, UID: uid, Quantity: 1, Epoch: epoch, Key: "k", OrderID: wire.NewOrderID(uuid.Must(uuid.NewV7()).String(), sale)}
		v, err := s.Reserve(ctx, r)
		if err != nil || v.Answer != lua.Reserved {
			t.Fatalf("sale %d: %+v, %v", sale, v, err)
		}
		return r.Entry(v)
	}
	first, second := press("ann", 1), press("bob", 1)
	held, _, err := s.Replicated(ctx, sale, []queued.Entry{first}, 0, time.Minute)
	must(err)
	if !held[0] {
		t.Fatalf("sale %d does not hold %s", sale, first.ID)
	}
	_, _, err = s.StrayEntries(ctx, sale, "c", "-", time.Minute)
	must(err)
	must(s.SweepOutbox(ctx, sale, time.Minute, "c"))
	must(s.Retire(ctx, sale, []string{first.Entry}))
	if done, err := s.Release(ctx, sale, first.ID); !done || err != nil {
		t.Fatalf("sale %d: release: %v, %v", sale, done, err)
	}
	must(s.Adjust(ctx, sale, 1, 5))
	definition.Version = 2
	must(s.Define(ctx, sale, definition))
	must(s.Wait(ctx, sale, 1))
	must(s.Rest(ctx, sale, 1))
	load(2, reserve.Loaded{Epoch: 2, Stock: 14, Total: 15, Definition: definition,
		Orders: []reserve.Held{{ID: second.ID, UID: second.UID, Quantity: 1, Slots: second.Slots, Entry: second.Entry, At: second.At, Key: second.Key}}})
	answers, err := s.Adopt(ctx, []queued.Entry{second}, map[int64]int64{sale: 2})
	if err != nil || answers[0] != lua.Adopted {
		t.Fatalf("sale %d: adopt: %v, %v", sale, answers, err)
	}
	must(s.Unlock(ctx, sale, 2))
	snap, err := s.Snapshot(ctx, sale)
	if err != nil || snap.State.Stock != 14 || len(snap.Orders) != 1 || len(snap.Outbox) != 1 || len(snap.Bad) != 0 {
		t.Fatalf("sale %d: %+v, %v", sale, snap, err)
	}
	must(s.Retire(ctx, sale, []string{snap.Outbox[0].Entry}))
	_, err = s.Shut(ctx, sale, 3)
	must(err)
	must(s.Refill(ctx, sale, 3, 3, snap.Orders))
	must(s.Retire(ctx, sale, []string{snap.Orders[0].Entry}))
	must(s.Forget(ctx, sale, 3))
}

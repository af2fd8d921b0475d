package lua_test

import (
	"crypto/sha1"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"floodgate.internal/lua"
)

var scripts = map[string]lua.Script{
	"sale_reserve.lua": lua.SaleReserve, "sale_release.lua": lua.SaleRelease, "sale_close.lua": lua.SaleClose, "sale_load.lua": lua.SaleLoad, "sale_open.lua": lua.SaleOpen, "sale_beat.lua": lua.SaleBeat,
	"sale_adopt.lua": lua.SaleAdopt, "outbox_retire.lua": lua.OutboxRetire, "sale_adjust.lua": lua.SaleAdjust, "sale_define.lua": lua.SaleDefine, "outbox_sweep.lua": lua.OutboxSweep, "outbox_skipped.lua": lua.OutboxSkipped,
	"outbox_group.lua": lua.OutboxGroup, "sale_forget.lua": lua.SaleForget, "sale_standby.lua": lua.SaleStandby,
	"sku_lock.lua": lua.SKULock, "sku_unlock.lua": lua.SKUUnlock, "sku_adjust.lua": lua.SKUAdjust, "sku_load.lua": lua.SKULoad,
	"lock_take.lua": lua.LockTake, "lock_renew.lua": lua.LockRenew, "lock_release.lua": lua.LockRelease,
}

func TestEveryFileIsAScriptWithItsContract(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(scripts) {
		t.Errorf("%d files, %d scripts", len(files), len(scripts))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := scripts[file]
		if s.Source != string(text) {
			t.Errorf("%s: the embedded text is not the file's", file)
		}
		if sum := sha1.Sum(text); s.SHA != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: SHA %s is not the file's", file, s.SHA)
		}
		head, _, _ := strings.Cut(s.Source, "\nlocal ")
		for _, part := range []string{"-- " + strings.TrimSuffix(file, ".lua") + ": ", "\n-- KEYS", "\n-- ARGV", "\n-- Returns"} {
			if !strings.Contains(head, part) {
				t.Errorf("%s: its head has no %q", file, strings.TrimSpace(part))
			}
		}
	}
}

func TestEveryAnswerHasItsNameInGo(t *testing.T) {
	named := map[string]bool{}
	source, err := os.ReadFile("lua.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ += "([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		named[m[1]] = true
	}
	answered := map[string]bool{}
	for file, s := range scripts {
		for _, m := range regexp.MustCompile(`return \{'([a-z_]+)'`).FindAllStringSubmatch(s.Source, -1) {
			answered[m[1]] = true
			if !named[m[1]] {
				t.Errorf("%s answers %q, which has no name in lua.go", file, m[1])
			}
		}
	}
	for _, name := range []string{lua.Reserved, lua.Repeated, lua.KeyReused, lua.AlreadyOrdered, lua.SoldOut, lua.NotEnough, lua.NotStarted, lua.Ended,
		lua.Paused, lua.GateClosed, lua.StaleEpoch, lua.NotLoaded, lua.Released, lua.Done, lua.Closed, lua.Lost, lua.OK, lua.Opened, lua.Beating, lua.Adopted,
		lua.Present, lua.Limit, lua.Applied, lua.Defined, lua.Older, lua.Granted, lua.Held, lua.Renewed,
		lua.NotOwner, lua.Freed, lua.Kept, lua.Made, lua.Forgotten, lua.Queued, lua.Reduced, lua.AlreadyApplied, lua.Unlocked, lua.Claimed, lua.Available, lua.Joinable} {
		if !answered[name] {
			t.Errorf("no script answers %q", name)
		}
	}
}

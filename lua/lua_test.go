package lua_test

import (
	"crypto/sha1"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/lua"
)

var scripts = map[string]lua.Script{
	"sale_reserve.lua": lua.SaleReserve, "sale_release.lua": lua.SaleRelease, "sale_close.lua": lua.SaleClose, "sale_load.lua": lua.SaleLoad, "sale_open.lua": lua.SaleOpen, "sale_beat.lua": lua.SaleBeat, "sale_held.lua": lua.SaleHeld,
	"sale_refill.lua": lua.SaleRefill,
	"sale_adopt.lua":  lua.SaleAdopt, "outbox_retire.lua": lua.OutboxRetire, "sale_adjust.lua": lua.SaleAdjust, "sale_define.lua": lua.SaleDefine, "outbox_sweep.lua": lua.OutboxSweep, "outbox_skipped.lua": lua.OutboxSkipped,
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

// TestEveryAnswerHasItsNameInGo compares what each script returns with the answers that its variable's comment lists.
func TestEveryAnswerHasItsNameInGo(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source += string(text)
	}
	words := map[string]string{} // by the constant's name
	for _, m := range regexp.MustCompile(`(?m)^(?:\t|const )(\w+) +Answer += "([a-z_]+)"`).FindAllStringSubmatch(source, -1) {
		words[m[1]] = m[2]
	}
	for file, s := range scripts {
		embed := regexp.MustCompile(`//go:embed ` + file + `\nvar (\w+) string`).FindStringSubmatch(source)
		if embed == nil {
			t.Fatalf("%s is not embedded", file)
		}
		comment := regexp.MustCompile(`((?://.*\n)+)var \w+ = script\(` + embed[1] + `\)`).FindStringSubmatch(source)
		if comment == nil {
			t.Fatalf("%s: its variable has no comment", file)
		}
		listed := map[string]bool{}
		if _, list, ok := strings.Cut(strings.ReplaceAll(comment[1], "\n//", ""), "Answers: "); ok {
			for name := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(list), "."), ", ") {
				if words[name] == "" {
					t.Errorf("%s: no constant is named %s", file, name)
				}
				listed[words[name]] = true
			}
		}
		given := map[string]bool{}
		for _, m := range regexp.MustCompile(`return \{'([a-z_]+)'`).FindAllStringSubmatch(s.Source, -1) {
			given[m[1]] = true
		}
		if !maps.Equal(listed, given) {
			t.Errorf("%s answers %v, its comment in Go lists %v", file, slices.Sorted(maps.Keys(given)), slices.Sorted(maps.Keys(listed)))
		}
	}
}

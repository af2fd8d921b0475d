//go:build servers

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
)

// The test's binary is the peers, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "peer" {
		text, err := os.ReadFile(os.Args[2])
		var p Peer
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err == nil {
			err = p.Serve()
		}
		panic(err)
	}
	os.Exit(m.Run())
}

// What is compared is there, and answers as it is to: in rounds that are too short to tell how fast.
func TestBothSidesAreMeasured(t *testing.T) {
	bin := t.TempDir()
	world.Must(t, world.Build(bin))
	servers, err := stack.StartServers(t.Context(), filepath.Join(t.TempDir(), "servers"), t.Logf, t.Output())
	t.Cleanup(func() {
		if servers == nil {
			return
		}
		if err := servers.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "data"), Bin: bin, Self: self, Only: []string{"gateway", "visits", "connections", "backend", "idle"}, Rounds: 3, Size: 256, Connections: 100, Sales: 20, Window: time.Second,
		Redis: servers.RedisAddr(), MySQL: servers.MySQLDSN(), AMQP: servers.AMQPURL(), Management: servers.ManagementURL(), Progress: t.Logf, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	measured := slices.DeleteFunc(slices.Clone(r.Rows), func(row Row) bool { return !row.Measured() })
	if len(measured) != 24 || len(r.Rows) != len(measured)+len(unmeasured) ||
		slices.ContainsFunc(measured, func(row Row) bool {
			return row.Ratio <= 0 || row.Ours <= 0 || row.Theirs <= 0 && !row.Plain || row.Unit == ""
		}) {
		t.Errorf("got %d rows, %d measured: %+v", len(r.Rows), len(measured), r.Rows)
	}
	for _, begins := range mainRows[2:] { // README's
		if strings.HasPrefix(begins, "| goodput ") { // of a part that is not run here
			continue
		}
		if !slices.ContainsFunc(r.Rows, func(row Row) bool { return fmt.Sprintf("| %s | %s |", row.What, row.Against) == begins }) {
			t.Errorf("README is to show %s, and there is no such row", begins)
		}
	}
}

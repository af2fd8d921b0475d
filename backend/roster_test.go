package backend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"floodgate.internal/backend/event"
	"floodgate.internal/shared/operator"
)

// rosterText is a configuration with these operators.
func rosterText(operators string) string {
	return fmt.Sprintf(`
admin_token: an-admin-token-of-some-length
operators: [%s]
signing_keys: [{id: gw-1, secret: a-signing-key-of-at-least-32-bytes}]
mysql: {dsn: "fg:hunter2@tcp(127.0.0.1:3306)/floodgate"}
queue: {driver: redis-stream}
`, operators)
}

// The operators are taken over when the file has changed and rests, whole or not at all; nothing else of it is.
func TestTheOperatorsFollowTheFile(t *testing.T) {
	anna, annasHash := operator.Mint()
	bob, bobsHash := operator.Mint()
	line := func(name, role, hash string) string {
		return fmt.Sprintf(`{name: %s, role: %s, token_sha256: "%s"}`, name, role, hash)
	}
	path := writeConfig(t, rosterText(line("anna", "viewer", annasHash)))
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer // read while the roster rests
		r := newRoster(path, c, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())
		ctx, stop := context.WithCancel(t.Context())
		done, hangup := make(chan error), make(chan os.Signal)
		go func() { done <- r.follow(ctx, hangup) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		rest := func() {
			time.Sleep(3 * lookEvery)
			synctest.Wait()
		}
		has := func(token, want string) {
			t.Helper()
			if o, _ := r.list.Load().Find(token); o.String() != want {
				t.Errorf("got %q, want %q; it logged\n%s", o, want, &log)
			}
		}
		rest()
		has(anna, "anna (viewer)")
		if log.Len() > 0 {
			t.Errorf("nothing changed, and it logged\n%s", &log)
		}

		write(rosterText(line("anna", "admin", annasHash) + ", " + line("bob", "operator", bobsHash)))
		rest()
		has(anna, "anna (admin)")
		has(bob, "bob (operator)")
		has("an-admin-token-of-some-length", "admin (admin)")
		if got := log.String(); !strings.Contains(got, `diff="anna (viewer) becomes admin; bob (operator) is new" only_after_a_restart=""`) {
			t.Errorf("it logged\n%s", got)
		}

		for _, wrong := range []string{
			rosterText(line("anna", "root", annasHash)),
			rosterText(line("carl", "viewer", bobsHash)) + "drain: soon\n",
			"operators: [",
			strings.Replace(rosterText(line("carl", "viewer", hashOfToken("an-admin-token-of-some-length"))), "admin_token: an-", "admin_token: another-", 1),
		} {
			log.Reset()
			write(wrong)
			rest()
			has(anna, "anna (admin)")
			has(bob, "bob (operator)")
			if strings.Count(log.String(), "the old ones stay") != 1 || testutil.ToFloat64(r.ok) != 0 {
				t.Errorf("it logged\n%s", &log)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		rest()
		has(anna, "anna (admin)")

		log.Reset()
		write(rosterText(line("bob", "operator", bobsHash)) + "drain: 7s\n")
		rest()
		has(anna, "")
		has(bob, "bob (operator)")
		if got := log.String(); !strings.Contains(got, `diff="anna (admin) is gone" only_after_a_restart=drain`) || testutil.ToFloat64(r.ok) != 1 {
			t.Errorf("it logged\n%s", got)
		}

		// SIGHUP does not wait.
		write(rosterText(line("bob", "viewer", bobsHash)))
		hangup <- syscall.SIGHUP
		synctest.Wait()
		has(bob, "bob (viewer)")
		write(rosterText(line("bob", "operator", bobsHash)))
		hangup <- syscall.SIGHUP
		synctest.Wait()

		// The endpoints of events are taken over with the operators.
		r.events = event.NewLog(nil)
		log.Reset()
		write(rosterText(line("bob", "operator", bobsHash)) + "events: {endpoints: [{name: shop, url: 'https://shop.example/', secret: whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==}]}\n")
		rest()
		if e := r.events.Endpoints(); len(e) != 1 || e[0].Name != "shop" || !strings.Contains(log.String(), `diff="events go to 1 endpoints, before to 0" only_after_a_restart=""`) {
			t.Errorf("got %d endpoints; it logged\n%s", len(e), &log)
		}
		for _, wrong := range []string{"http://shop.example/", "https://shop.example/, types: [order.payed]"} {
			log.Reset()
			write(rosterText(line("bob", "operator", bobsHash)) + "events: {endpoints: [{name: other, url: " + wrong + ", secret: whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==}]}\n")
			rest()
			if e := r.events.Endpoints(); len(e) != 1 || e[0].Name != "shop" || strings.Count(log.String(), "the old ones stay") != 1 || strings.Contains(log.String(), "aHVudGVy") {
				t.Errorf("got %d endpoints; it logged\n%s", len(e), &log)
			}
		}
		write(rosterText(line("bob", "operator", bobsHash)))
		rest()
		if r.events.On() {
			t.Error("the endpoint is still there")
		}

		// A file that is being written is not read in the middle of it.
		log.Reset()
		for i := range 5 {
			write(rosterText("") + strings.Repeat("#", i))
			time.Sleep(lookEvery)
			synctest.Wait()
			has(bob, "bob (operator)")
		}
		rest()
		has(bob, "")
	})
}

func hashOfToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

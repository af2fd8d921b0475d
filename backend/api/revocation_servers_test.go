//go:build servers

package api

import (
	"database/sql"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/backend/backendtest"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/backend/store"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

// Gateways follow the list by long poll; before it was read they are told to come back.
func TestGatewaysFollowTheRevocations(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	l := revocation.New(revocation.Config{DB: w.db, Clock: w.Clock, Keep: 25 * time.Hour, Log: backendtest.Log(t), Register: prometheus.NewRegistry()})
	w.Revocations = l
	wantProblem(t, w.signed(w.request("GET", wire.RevocationsPath, ""), ""), problem.Overloaded, "being read")
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask := func(query string) (list wire.Revocations) {
		t.Helper()
		res := w.signed(w.request("GET", wire.RevocationsPath+query, ""), "")
		if err := json.Unmarshal(res.Body(), &list); err != nil || res.StatusCode() != 200 || string(res.Header.Peek("Cache-Control")) != "no-store" {
			t.Fatalf("got %d %s", res.StatusCode(), res.Body())
		}
		return list
	}
	if got := ask(""); !got.Full || got.Version != 0 || got.KeepMS != (25*time.Hour).Milliseconds() {
		t.Errorf("got %+v", got)
	}
	news := make(chan wire.Revocations, 1)
	go func() { news <- ask("?since=0&wait_ms=20000") }()
	at := time.Now().UTC()
	if err := store.InTx(t.Context(), w.db, func(tx *sql.Tx) error {
		_, _, _, err := revocation.Add(t.Context(), tx, revocation.Subject{UID: "bob"}, at, at.Add(time.Hour), at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-news; got.Full || got.Version != 1 || len(got.Entries) != 1 || got.Entries[0].UID != "bob" {
		t.Errorf("got %+v", got)
	}
	for _, query := range []string{"?since=x", "?since=-1", "?since=99999999999999999999", "?wait_ms=20001", "?since=1&since=1", "?x=1"} {
		wantProblem(t, w.signed(w.request("GET", wire.RevocationsPath+query, ""), ""), problem.BadRequest, "")
	}
	wantProblem(t, w.do(w.request("GET", wire.RevocationsPath, "")), problem.Unauthenticated, "")
}

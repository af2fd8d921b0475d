package world

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// A request whose connection breaks is sent once, also with an Idempotency-Key: its outcome is not known, and is logged as that.
func TestABrokenConnectionIsNoAnswer(t *testing.T) {
	var sent atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "k" {
			t.Errorf("got the headers %v", r.Header)
		}
		if sent.Add(1) == 2 { // the connection was used before: net/http takes it for one that had been idle for too long
			panic(http.ErrAbortHandler)
		}
	}))
	defer s.Close()
	c := NewClient(1, time.Minute)
	defer c.Close()
	call := Call{Method: "POST", URL: s.URL, Key: "k"}
	if a := c.Do(t.Context(), call); a.Status != 200 {
		t.Fatal(a)
	}
	if a := c.Do(t.Context(), call); a.Status != 0 {
		t.Errorf("got %v", a)
	}
	if n := sent.Load(); n != 2 {
		t.Errorf("%d requests for 2 calls", n)
	}
}

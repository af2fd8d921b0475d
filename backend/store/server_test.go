package store

import "testing"

// A server is the one that was named although its answers were late; a restart and another address make it another.
func TestSameServer(t *testing.T) {
	named := Server{Address: "1 a:3306", Started: 1000}
	for _, c := range []struct {
		what string
		now  Server
		same bool
	}{
		{"the same", named, true},
		{"a second is rounded", Server{Address: "1 a:3306", Started: 1001}, true},
		{"its clock was read 9 s after its uptime", Server{Address: "1 a:3306", Started: 1009, late: 9}, true},
		{"it was started anew", Server{Address: "1 a:3306", Started: 1009}, false},
		{"it was started anew, and answers late", Server{Address: "1 a:3306", Started: 1009, late: 3}, false},
		{"it was started before", Server{Address: "1 a:3306", Started: 990, late: 9}, false},
		{"another one", Server{Address: "2 a:3306", Started: 1000}, false},
	} {
		if got := c.now.Same(named); got != c.same {
			t.Errorf("%s: got %t, want %t", c.what, got, c.same)
		}
	}
}

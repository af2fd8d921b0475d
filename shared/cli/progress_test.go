package cli

import (
	"bytes"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressIsShownAfterTwoSeconds(t *testing.T) {
	for took, want := range map[time.Duration]string{
		1900 * time.Millisecond: "",
		3500 * time.Millisecond: "\r\x1b[Kaudit: 1 of 3, for 2s\r\x1b[Kaudit: 1 of 3, for 3s\r\x1b[K",
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			p := &Progress{w: &out, what: "audit", stop: make(chan struct{})}
			p.done.Go(p.show)
			p.Say("%d of %d", 1, 3)
			time.Sleep(took)
			p.End()
			p.End()
			if out.String() != want {
				t.Errorf("after %v: got %q, want %q", took, out.String(), want)
			}
		})
	}
}

// Nothing is shown in a file or a pipe.
func TestProgressIsForTerminals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var out bytes.Buffer
		one, other := StartProgress(f, "audit"), StartProgress(&out, "audit")
		time.Sleep(time.Minute)
		one.End()
		other.End()
		if s, err := f.Stat(); err != nil || s.Size() > 0 || out.Len() > 0 {
			t.Errorf("got %v bytes, %q, %v", s.Size(), out.String(), err)
		}
	})
}

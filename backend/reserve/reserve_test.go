package reserve

import (
	"fmt"
	"testing"
)

func FuzzParseHeld(f *testing.F) {
	f.Add("ann 2 1,2 1-1 5 a key")
	f.Add("ann 2 1,2 - 5 ")
	f.Add("ann 2")
	f.Fuzz(func(t *testing.T, value string) {
		h, err := parseHeld("o", value)
		if err != nil {
			return
		}
		again, err := parseHeld("o", fmt.Sprintf("%s %d %s %s %d %s", h.UID, h.Quantity, h.Slots, h.Entry, h.At, h.Key))
		if err != nil || again != h {
			t.Errorf("%q is %+v, and written again %+v, %v", value, h, again, err)
		}
	})
}

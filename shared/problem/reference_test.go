package problem

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestTheReferenceHasEveryCode(t *testing.T) {
	var b bytes.Buffer
	if err := Reference(&b); err != nil {
		t.Fatal(err)
	}
	for code, status := range Codes() {
		if a := advices[code]; !strings.Contains(b.String(), fmt.Sprintf("| `%s` | %d | ", code, status)) || a.when == "" || a.do == "" {
			t.Errorf("nothing is said of %s", code)
		}
	}
	if len(advices) != len(kinds) {
		t.Errorf("%d codes are described, there are %d", len(advices), len(kinds))
	}
}

package pagecache

import (
	"strings"
	"testing"
)

// What is matched stands there; an ETag that stands there as it is, weak or strong, is matched.
func FuzzMatches(f *testing.F) {
	f.Add(`W/"1"`, `W/"1"`)
	f.Add(`"0", W/"1" ,*`, `"1"`)
	f.Add(`W/`, ``)
	f.Fuzz(func(t *testing.T, header, etag string) {
		bare := strings.TrimPrefix(etag, "W/")
		if Matches([][]byte{[]byte(header)}, etag) && (etag == "" || !strings.Contains(header, "*") && !strings.Contains(header, bare)) {
			t.Errorf("%q matches %q", header, etag)
		}
		if !strings.Contains(etag, ",") && strings.TrimSpace(bare) == bare && bare != "" && !Matches([][]byte{[]byte(header + ", W/" + bare + ",x")}, etag) {
			t.Errorf("%q does not match %q with it", header, etag)
		}
	})
}

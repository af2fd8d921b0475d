package backend

import (
	"bytes"
	"strings"
	"testing"
)

// The log is JSON, but text for a developer and for the operator's commands.
func TestLogFormat(t *testing.T) {
	for _, c := range []struct {
		format      string
		development bool
		want        string
	}{{"", false, `"msg":"hello"`}, {"", true, "msg=hello"}, {"text", false, "msg=hello"}, {"json", true, `"msg":"hello"`}} {
		config := DefaultConfig()
		config.Development, config.Log.Format = c.development, c.format
		var out bytes.Buffer
		config.logger(&out).Info("hello")
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%q, development %v: got %s", c.format, c.development, &out)
		}
		out.Reset()
		config.operate(&out).Log.Warn("hello")
		if !strings.Contains(out.String(), "msg=hello") {
			t.Errorf("a command's log: got %s", &out)
		}
	}
	config := DefaultConfig()
	config.Log.Format = "xml"
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), `log.format: "xml" must be json or text`) {
		t.Errorf("got %v", err)
	}
}

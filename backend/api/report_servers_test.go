//go:build servers

package api

import (
	"os"
	"strings"
	"testing"

	"floodgate.internal/shared/wire"
)

// A gateway's report is taken signed and right, and nothing else is.
func TestReportsAreTaken(t *testing.T) {
	w := work(t, roomy, os.Getenv("REDIS_ADDR"))
	const good = `{"name":"edge-1:8080","life":"A","version":"v1","generation":1,"hash":"ab","presses":{"ok":3},"uids":[{"name":"bob","requests":4,"refused":1}]}`
	for want, bodies := range map[int][]string{
		204: {good},
		400: {"", "{}", strings.Replace(good, "edge-1", "<b>", 1), strings.Replace(good, `"ok":3`, `"ok":-3`, 1), strings.Replace(good, `"life"`, `"secret"`, 1), good + good},
		413: {good + strings.Repeat(" ", wire.MaxReport)},
	} {
		for _, body := range bodies {
			if got := w.signed(w.request("POST", wire.ReportPath, body), ""); got.StatusCode() != want {
				t.Errorf("%.60q: got %d %s, want %d", body, got.StatusCode(), got.Body(), want)
			}
		}
	}
	all, err := w.Gateways.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "edge-1:8080" || all[0].Presses["ok"] != 3 || all[0].UIDs[0].Requests != 4 || all[0].HeardAt.IsZero() {
		t.Errorf("got %+v, %v", all, err)
	}
}

package wire

import (
	"strings"
	"testing"
)

func TestAReportIsChecked(t *testing.T) {
	good := func() *GatewayReport {
		return &GatewayReport{Name: "edge-1.example:8080", Life: "ABC", Version: "v1.2.3-4+x", Generation: 1, Hash: "0a1b", FeedAgeMS: -1,
			Presses: map[string]int64{"ok": 1, "sold_out": maxReportCount}, Refusals: map[string]int64{"gate": 0},
			UIDs: []TopClient{{"bob", 3, 3}}, Networks: []TopClient{{"192.0.2.1", 3, 1}, {"2001:db8::/56", 1, 0}}}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	many := map[string]int64{}
	for i := range maxReportNames + 1 {
		many[strings.Repeat("a", i%40+1)+string(rune('a'+i/40))] = 1
	}
	for want, change := range map[string]func(*GatewayReport){
		"name":            func(r *GatewayReport) { r.Name = "" },
		"name:":           func(r *GatewayReport) { r.Name = "<b>" },
		"name: ":          func(r *GatewayReport) { r.Name = strings.Repeat("a", 121) },
		"life":            func(r *GatewayReport) { r.Life = "a b" },
		"version":         func(r *GatewayReport) { r.Version = "\u202e" },
		"hash":            func(r *GatewayReport) { r.Hash = "" },
		"generation":      func(r *GatewayReport) { r.Generation = 0 },
		"feed_age_ms":     func(r *GatewayReport) { r.FeedAgeMS = -2 },
		"connections":     func(r *GatewayReport) { r.Connections = -1 },
		"max_connections": func(r *GatewayReport) { r.MaxConnections = maxReportCount + 1 },
		"presses: 65":     func(r *GatewayReport) { r.Presses = many },
		"presses: a":      func(r *GatewayReport) { r.Presses = map[string]int64{"ok": -1} },
		"refusals":        func(r *GatewayReport) { r.Refusals = map[string]int64{"<script>": 1} },
		"uids/0":          func(r *GatewayReport) { r.UIDs[0].Name = "no uid!" },
		"uids/0:":         func(r *GatewayReport) { r.UIDs[0].Refused = 4 },
		"uids: 11":        func(r *GatewayReport) { r.UIDs = make([]TopClient, 11) },
		"networks/1":      func(r *GatewayReport) { r.Networks[1].Name = "bob" },
	} {
		r := good()
		change(r)
		if err := r.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want an error that begins with %q", err, want)
		}
	}
}

//go:build servers

package admin

import (
	"testing"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/wire"
)

func TestOperatorsSeeGateways(t *testing.T) {
	o := newOffice(t, 1)
	if g := do[adminapi.Gateways](o, 200, "GET", "/admin/v1/gateways", ""); g.Gateways == nil && g.Error != "" || len(g.Gateways) != 0 {
		t.Errorf("got %+v", g)
	}
	if err := o.Gateways.Take(t.Context(), wire.GatewayReport{Name: "edge:1", Life: "A", Presses: map[string]int64{"ok": 2}}); err != nil {
		t.Fatal(err)
	}
	if g := do[adminapi.Gateways](o, 200, "GET", "/admin/v1/gateways", ""); len(g.Gateways) != 1 || g.Gateways[0].Presses["ok"] != 2 || g.Error != "" {
		t.Errorf("got %+v", g)
	}
}

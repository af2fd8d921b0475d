package admin

import (
	"net/http"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/wire"
)

func (a *Admin) listGateways(r *request) (*answer, error) {
	list, err := a.Gateways.List(r.Context())
	v := adminapi.Gateways{Now: wire.At(a.Clock.Now()), Gateways: list}
	if err != nil {
		a.Log.Warn("admin: only what this process heard of gateways is told", "request_id", r.id, "error", err)
		v.Error = "Redis does not say what other backends heard"
	}
	return &answer{status: http.StatusOK, value: v}, nil
}

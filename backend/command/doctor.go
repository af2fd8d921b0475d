package command

import (
	"bytes"
	"context"
	"errors"

	"floodgate.internal/backend/doctor"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/shared/cli"
)

// Doctor is the command "doctor".
type Doctor struct {
	Gateway []string `help:"Where a gateway's ops listener is; once for each gateway." placeholder:"HOST:PORT"`
	Accepting
	File
	Output
}

// Run looks at everything. A configuration that is wrong is printed as the one check that there is, and is a usage error.
func (c *Doctor) Run(ctx context.Context, env *Env) error {
	conf, wrong := env.Config(c.Config)
	if wrong != nil {
		r := preflight.Report{Checks: []preflight.Check{{Name: "configuration", Value: wrong.Error(), Want: "a file without an error", Do: "mend the field that is named; configs/backend.yaml explains each"}}}
		return errors.Join(wrong, c.print(env.Stdout, r, func(w *bytes.Buffer) { printChecks(w, r, "NOT WELL") }))
	}
	p := cli.StartProgress(env.Stderr, "doctor")
	checks := doctor.Look(ctx, doctor.Config{Redis: conf.Redis, MySQL: conf.MySQL, Broker: conf.Broker, Admin: conf.Admin, Internal: conf.Internal, TLS: conf.System.Certificate != nil,
		Gateways: c.Gateway, System: conf.System, Log: conf.Log})
	p.End()
	if err := ctx.Err(); err != nil {
		return err
	}
	r := preflight.Report{Checks: append([]preflight.Check{{Name: "configuration", OK: true, Value: c.Config + " is valid", Want: "a file without an error"}}, checks...)}
	return c.judge(env, c.Output, &r, "WELL", "NOT WELL")
}

package gateway

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/wire"
)

type fastCtx = fasthttp.RequestCtx

func problemAnswer(ctx *fastCtx, code int, name string) {
	ctx.SetStatusCode(code)
	ctx.SetContentType("application/problem+json")
	ctx.SetBodyString(`{"type":"about:blank","code":"` + name + `"}`)
}

// echo answers with what was asked, and in whose name.
func echo(ctx *fastCtx, c call) {
	ctx.SetContentType("text/plain")
	ctx.SetBodyString(c.Method + " " + c.Target + " " + c.UID)
}

type sale = wire.Sale

func exitCode(err error) int { return cli.ExitCode(err) }

func runArgs(args ...string) error {
	return Run(context.Background(), args, io.Discard, io.Discard)
}

// runOnce runs a gateway that is expected to end by itself.
func runOnce(t *testing.T, config, flag string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return runArgs(flag, file)
}

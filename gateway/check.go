package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/conf"
)

type checkCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The configuration file."`
	Token  string `env:"FLOODGATE_OPERATOR_TOKEN" placeholder:"TOKEN" help:"An operator's token for the running gateway, instead of the file's ops_token. Best given in the environment: others see a command line."`
	Replay string `placeholder:"LOG" help:"Run this access log (JSON; - for standard input) against the file's limits, and say who would have been refused."`
	JSON   bool   `name:"json" help:"With --replay: print JSON."`
}

// run prints what the file would change in the running gateway, or only "ok" if none answers.
func (c checkCommand) run(ctx context.Context, stdout io.Writer) error {
	config, _, err := Load(c.Config)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	if c.Replay != "" {
		return replayLog(config, c.Replay, c.JSON, stdout)
	}
	if c.JSON {
		return cli.Usage("--json goes with --replay LOG")
	}
	if err := errors.Join(config.probeBackends(ctx), config.Identity.checkKeys(ctx)); err != nil {
		return &cli.UsageError{Err: fmt.Errorf("%s: %w", c.Config, err)}
	}
	now, err := askRunning(ctx, config, cmp.Or(c.Token, config.OpsToken.Reveal()))
	if errors.Is(err, errToken) {
		fmt.Fprintf(stdout, "ok (the gateway on %s refuses this token: nothing to compare with)\n", config.Listen.Ops)
		return nil
	}
	if err != nil {
		fmt.Fprintf(stdout, "ok (no gateway answers on %s to compare with)\n", config.Listen.Ops)
		return nil
	}
	diff := maskEnvironment(diffTrees(now, config.Tree()), config.File)
	fmt.Fprintln(stdout, "ok")
	fmt.Fprintf(stdout, "%s (secrets are not compared)\n", diffText(diff))
	for _, field := range restartFields(diff) {
		fmt.Fprintf(stdout, "%s needs a restart: a reload refuses this file\n", field)
	}
	return nil
}

// errToken: the running gateway refuses the token.
var errToken = errors.New("the token is refused")

// askRunning asks the gateway that listens on the file's listen.ops for its configuration.
func askRunning(ctx context.Context, c Config, token string) (any, error) {
	addr := c.Listen.Ops
	if host, port, err := net.SplitHostPort(addr); err == nil && !conf.Loopback(addr) {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/-/config", nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusTooManyRequests {
		return nil, errToken
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Config map[string]any `json:"config"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil || answer.Config == nil {
		return nil, fmt.Errorf("%s is not a gateway's ops listener", addr)
	}
	return answer.Config, nil
}

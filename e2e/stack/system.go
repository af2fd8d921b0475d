package stack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/ports"
)

// Ports are where the gateway and the backend listen, on 127.0.0.1.
type Ports struct{ Public, Ops, Internal, Admin int }

// DefaultPorts are those of the contract.
var DefaultPorts = Ports{Public: 8080, Ops: 8081, Internal: 9080, Admin: 9081}

// FreeSystemPorts chooses ports for a system beside others.
func FreeSystemPorts() (Ports, error) {
	p, err := ports.Free(4)
	if err != nil {
		return Ports{}, err
	}
	return Ports{Public: p[0], Ops: p[1], Internal: p[2], Admin: p[3]}, nil
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (p Ports) addrs() development.Addrs {
	return development.Addrs{Public: loopback(p.Public), Ops: loopback(p.Ops), Internal: loopback(p.Internal), Admin: loopback(p.Admin)}
}

// PublicURL is the gateway's public listener.
func (p Ports) PublicURL() string { return "http://" + loopback(p.Public) }

// OpsURL is the gateway's ops listener.
func (p Ports) OpsURL() string { return "http://" + loopback(p.Ops) }

// InternalURL is the backend's listener for gateways.
func (p Ports) InternalURL() string { return "http://" + loopback(p.Internal) }

// AdminURL is the backend's listener for operators.
func (p Ports) AdminURL() string { return "http://" + loopback(p.Admin) }

// RedisPrefix is put before every key of a System.
const RedisPrefix = "fg:"

// System is the whole system of one directory: the servers, one backend with every role, one gateway.
type System struct {
	Servers *Servers
	Backend *Process
	Gateway *Process
	Ports   Ports

	dir    string
	bin    string
	report func(format string, args ...any)
}

// NewSystem returns the system whose two binaries are in bin and whose configurations, pids and logs are in dir, which may
// be another directory than the servers'. It starts nothing. Progress goes to report, nil for nowhere.
func NewSystem(dir, bin string, servers *Servers, ports Ports, report func(format string, args ...any)) (*System, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	if report == nil {
		report = func(string, ...any) {}
	}
	s := &System{Servers: servers, Ports: ports, dir: dir, bin: bin, report: report}
	s.Backend = NewProcess(dir, Program{
		Name: "backend", Path: filepath.Join(bin, "backend"), Args: []string{"-config", s.BackendConfig()},
		Addrs: []string{loopback(ports.Internal), loopback(ports.Admin)}, Ready: ports.AdminURL() + "/-/ready",
	})
	s.Gateway = NewProcess(dir, Program{
		Name: "gateway", Path: filepath.Join(bin, "gateway"), Args: []string{"-config", s.GatewayConfig()},
		Addrs: []string{loopback(ports.Public), loopback(ports.Ops)}, Ready: ports.OpsURL() + "/-/ready",
	})
	s.Backend.report, s.Gateway.report = report, report
	return s, nil
}

// BackendConfig is the path of the backend's configuration.
func (s *System) BackendConfig() string { return filepath.Join(s.dir, "backend.yaml") }

// GatewayConfig is the path of the gateway's configuration.
func (s *System) GatewayConfig() string { return filepath.Join(s.dir, "gateway.yaml") }

// Start brings up what does not run: the servers, the schema, the backend, the gateway. It returns when all are ready.
func (s *System) Start(ctx context.Context) error {
	if err := s.Servers.Start(ctx); err != nil {
		return err
	}
	return s.startBinaries(ctx)
}

func (s *System) startBinaries(ctx context.Context) error {
	if err := s.WriteConfigs(); err != nil {
		return err
	}
	if !s.Backend.Running() {
		if err := s.Migrate(ctx); err != nil {
			return err
		}
	}
	if err := s.Backend.Start(ctx); err != nil {
		return err
	}
	return s.Gateway.Start(ctx)
}

// Stop ends all of it in the reverse order; the gateway and the backend drain.
func (s *System) Stop(ctx context.Context) error {
	if err := s.stopBinaries(ctx); err != nil {
		return err
	}
	return s.Servers.Stop(ctx)
}

func (s *System) stopBinaries(ctx context.Context) error {
	if err := s.Gateway.Stop(ctx); err != nil {
		return err
	}
	return s.Backend.Stop(ctx)
}

// Migrate brings the schema up to date with `backend migrate`.
func (s *System) Migrate(ctx context.Context) error {
	began := time.Now()
	if err := Migrate(ctx, filepath.Join(s.bin, "backend"), s.BackendConfig()); err != nil {
		return err
	}
	s.report("the schema is up to date (%.1f s)", time.Since(began).Seconds())
	return nil
}

// Migrate runs `backend migrate` of a binary, with a configuration.
func Migrate(ctx context.Context, backend, config string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, backend, "migrate", "-config", config)
	cmd.Dir = filepath.Dir(config)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, lastLines(out))
	}
	return nil
}

// WriteConfigs writes both configurations. A file that already says the same is left alone, so that a gateway that
// watches its file sees no change.
func (s *System) WriteConfigs() error {
	if err := makeDirs(s.dir); err != nil {
		return err
	}
	v, a := s.Servers, s.Ports.addrs()
	stores := fmt.Sprintf(`redis:
  addrs: ["%s"]
  prefix: "%s"

mysql:
  dsn: "%s"

queue:
  driver: rabbitmq
  url: "%s"
  management_url: "%s"
`, v.RedisAddr(), RedisPrefix, v.MySQLDSN(), v.AMQPURL(), v.ManagementURL())
	if err := writeFile(s.BackendConfig(), development.Backend(a, stores, "info")); err != nil {
		return err
	}
	return writeFile(s.GatewayConfig(), development.Gateway(a, "info"))
}

// Samples makes one sale that is open, one that opens in a minute and one coupon, if there is no sale yet.
func (s *System) Samples(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ids, err := s.Admin().Samples(ctx)
	if len(ids) > 0 {
		s.report("sample sales: %v", ids)
	}
	return err
}

// Admin is a client of the backend's admin API.
func (s *System) Admin() *adminapi.Client { return Admin(loopback(s.Ports.Admin)) }

// Admin is a client of the admin API of a development system at an address. It keeps no connection.
func Admin(addr string) *adminapi.Client {
	return &adminapi.Client{Base: "http://" + addr, Token: development.AdminToken, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// Root is the top of the checkout that the working directory is in: where go.work is.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.work in %s or above it: not in a checkout", dir)
		}
	}
}

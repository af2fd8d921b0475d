package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What can be installed by Install: the servers, and what `go test -race`, the browser tests, the benchmark,
// the tests of proxies, those of the documentation's commands, of completion, of the units for systemd and of alerts need besides Go.
const (
	ForServers = "servers"
	ForRace    = "race"
	ForBrowser = "browser"
	ForBench   = "bench"
	ForProxies = "proxies"
	ForDocs    = "docs"
	ForShells  = "shells"
	ForAlerts  = "prometheus"
	ForDeploy  = "deploy"
)

// NginxModules is where Debian's packages put nginx's modules.
const NginxModules = "/usr/lib/nginx/modules"

// Nginx is the path of the nginx that ForBench and ForProxies install.
func Nginx() string { return find("nginx") }

// MariaDB is the path of the mariadbd that ForServers installs.
func MariaDB() string { return find("mariadbd") }

// HAProxy is the path of the haproxy that ForBench and ForProxies install.
func HAProxy() string { return find("haproxy") }

// Prometheus is the path of the prometheus that ForAlerts installs, Promtool that of the promtool beside it.
func Prometheus() string { return find("prometheus") }
func Promtool() string   { return find("promtool") }

// needs says which file a package brings, for each purpose.
var needs = map[string][]struct{ file, pkg string }{
	ForServers: {
		{"redis-server", "redis-server"},
		{rabbitBin + "/rabbitmq-server", "rabbitmq-server"},
		{"epmd", "erlang-base"},
		{"mariadbd", "mariadb-server"},
		{"mariadb-install-db", "mariadb-server"},
	},
	ForRace: {
		{"gcc", "gcc"},
		{"/usr/include/stdlib.h", "libc6-dev"},
	},
	ForBrowser: {{"chromium", "chromium"}},
	ForProxies: {
		{"haproxy", "haproxy"},
		{"nginx", "nginx-light"},
	},
	ForDocs: {
		{"curl", "curl"},
		{"openssl", "openssl"},
	},
	ForShells: {
		{"fish", "fish"},
		{"zsh", "zsh"},
	},
	ForAlerts: {
		{"prometheus", "prometheus"},
		{"promtool", "prometheus"},
	},
	ForDeploy: {{"systemd-analyze", "systemd"}},
	ForBench: {
		{"nginx", "nginx-light"},
		{"haproxy", "haproxy"},
		{NginxModules + "/ngx_http_lua_module.so", "libnginx-mod-http-lua"},
	},
}

// systemDirs is where Debian puts programs; /usr/sbin is not in everybody's PATH.
var systemDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// find returns the path of a program, or its bare name if it is not there.
func find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range systemDirs {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return path
		}
	}
	return name
}

// missing lists the packages that are needed and not there.
func missing(purposes ...string) []string {
	var pkgs []string
	for _, purpose := range purposes {
		for _, n := range needs[purpose] {
			path := find(n.file)
			if _, err := os.Stat(path); err != nil && !slices.Contains(pkgs, n.pkg) {
				pkgs = append(pkgs, n.pkg)
			}
		}
	}
	return pkgs
}

// Install installs with apt what is missing for the purposes, after it has said what. While apt works no service is
// started (a temporary policy-rc.d forbids it). apt's own output goes to log.
func Install(ctx context.Context, report func(format string, args ...any), log io.Writer, purposes ...string) (err error) {
	for _, p := range purposes {
		if _, ok := needs[p]; !ok {
			return fmt.Errorf("install %q: not one of %s", p, strings.Join(slices.Sorted(maps.Keys(needs)), ", "))
		}
	}
	pkgs := missing(purposes...)
	if len(pkgs) == 0 {
		return nil
	}
	list := strings.Join(pkgs, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing: %s, and there is no apt-get to install them with: install the packages of these names (they are Debian's) by hand", list)
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("missing: %s, and only root may install them: sudo apt-get install --no-install-recommends %s", list, list)
	}
	report("installing Debian packages: %s (about a minute; their own services are not started)", list)
	allow, err := forbidServices()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, allow()) }()
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=120", "update"},
		append([]string{"-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends"}, pkgs...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // apt and dpkg tidy up
		cmd.WaitDelay = 30 * time.Second
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
		}
	}
	if still := missing(purposes...); len(still) > 0 {
		return fmt.Errorf("apt-get installed %s, but what %s should bring is not there", list, strings.Join(still, ", "))
	}
	report("installed in %.0f s", time.Since(began).Seconds())
	return nil
}

const (
	policyFile = "/usr/sbin/policy-rc.d"
	policy     = "#!/bin/sh\n# Put here by Floodgate's launcher while apt works, so that no service is started. Safe to delete.\nexit 101\n"
)

// forbidServices keeps apt from starting services until allow is called. Somebody else's policy stays as it is.
func forbidServices() (allow func() error, err error) {
	if old, err := os.ReadFile(policyFile); err == nil && string(old) != policy {
		return func() error { return nil }, nil
	}
	if err := os.WriteFile(policyFile, []byte(policy), 0o755); err != nil {
		return nil, err
	}
	return func() error { return os.Remove(policyFile) }, nil
}

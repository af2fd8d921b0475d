//go:build servers

package stack

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/shared/wire"
)

// left lists the living processes that have dir in their command line or environment.
func left(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if st, err := readStat(pid); err == nil && !st.dead() && strings.Contains(string(cmdline)+string(environ), dir) {
			out = append(out, e.Name()+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return out
}

// wantNothingLeft checks that no process and no listener remains.
func wantNothingLeft(t *testing.T, v *Servers) {
	t.Helper()
	if l := left(t, v.dir); len(l) > 0 {
		t.Errorf("still there:\n%s", strings.Join(l, "\n"))
	}
	s := v.settings
	for _, port := range []int{s.RedisPort, s.MySQLPort, s.AMQPPort, s.ManagementPort, s.DistPort, s.EPMDPort} {
		if err := checkFree([]string{loopback(port)}); err != nil {
			t.Error(err)
		}
	}
}

func openServers(t *testing.T) *Servers {
	t.Helper()
	v, err := Open(t.TempDir(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return v
}

func (v *Servers) pids() map[string]int {
	m := map[string]int{}
	for _, p := range []*Process{v.Redis, v.RabbitMQ, v.MySQL, v.epmd} {
		m[p.name] = p.PID()
	}
	return m
}

// redisCall sends one inline command and returns the first line of the answer, or for a bulk string its content.
func redisCall(t *testing.T, addr, command string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err == nil && strings.HasPrefix(line, "$") && line != "$-1\r\n" {
		line, err = r.ReadString('\n')
	}
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(line)
}

func TestServersComeBackAloneWithTheirData(t *testing.T) {
	v := openServers(t)
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}

	// What a 202 stands on.
	for _, want := range [][2]string{{"appendonly", "yes"}, {"appendfsync", "always"}, {"save", ""}, {"maxmemory-policy", "noeviction"}} {
		conn, err := net.Dial("tcp", v.RedisAddr())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("CONFIG GET " + want[0] + "\r\n")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 512)
		n, err := conn.Read(b)
		conn.Close()
		if f := strings.Split(string(b[:n]), "\r\n"); err != nil || len(f) < 5 || f[4] != want[1] {
			t.Errorf("CONFIG GET %s: got %q, %v, want %q", want[0], b[:n], err, want[1])
		}
	}
	db, err := sql.Open("mysql", v.MySQLDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{"CREATE SCHEMA launcher_test", "CREATE TABLE launcher_test.t (id INT PRIMARY KEY)", "INSERT INTO launcher_test.t VALUES (7)"} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	var durable int
	if err := db.QueryRowContext(t.Context(), "SELECT @@innodb_flush_log_at_trx_commit").Scan(&durable); err != nil || durable != 1 {
		t.Errorf("innodb_flush_log_at_trx_commit: got %d, %v, want 1", durable, err)
	}
	management := func(method, path string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, v.ManagementURL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode/100 != 2 {
			t.Fatalf("%s %s: %s", method, path, res.Status)
		}
	}
	vhost := "/api/vhosts/" + url.PathEscape("launcher-test")
	management(http.MethodPut, vhost)
	if got := redisCall(t, v.RedisAddr(), "SET launcher 7"); got != "+OK" {
		t.Fatalf("SET: got %q", got)
	}

	// Another launcher starts nothing.
	before := v.pids()
	again := newServers(v.dir, v.settings, t.Logf)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := again.pids(); !mapsEqual(got, before) {
		t.Fatalf("started again: got %v, want %v", got, before)
	}

	// Each that is killed comes back alone, on the same data.
	for _, p := range []*Process{again.Redis, again.MySQL, again.epmd, again.RabbitMQ} {
		before := again.pids()
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := again.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, pid := range again.pids() {
			if same := pid == before[name]; pid == 0 || same == (name == p.name) {
				t.Errorf("killed %s: %s had pid %d, has %d", p.name, name, before[name], pid)
			}
		}
	}
	if got := redisCall(t, v.RedisAddr(), "GET launcher"); got != "7" {
		t.Errorf("redis after SIGKILL: got %q, want 7", got)
	}
	var id int
	if err := db.QueryRowContext(t.Context(), "SELECT id FROM launcher_test.t").Scan(&id); err != nil || id != 7 {
		t.Errorf("mysql after SIGKILL: got %d, %v, want 7", id, err)
	}
	management(http.MethodGet, vhost)

	// A graceful stop leaves nothing, and a second one is none.
	for range 2 {
		if err := again.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantNothingLeft(t, v)
	}

	// Wiped, it begins empty.
	if err := again.Redis.Wipe(); err != nil {
		t.Fatal(err)
	}
	if err := again.Redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := redisCall(t, v.RedisAddr(), "GET launcher"); got != "$-1" {
		t.Errorf("redis after Wipe: got %q, want nothing", got)
	}
	if err := again.Redis.Wipe(); err == nil {
		t.Error("Wipe of a running server: got no error")
	}
}

func mapsEqual(a, b map[string]int) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if v == 0 || b[k] != v {
			return false
		}
	}
	return true
}

func TestAServerThatCannotStartShowsItsLog(t *testing.T) {
	v := openServers(t)
	if err := makeDirs(filepath.Join(v.Redis.data, "appendonlydir", "appendonly.aof.manifest")); err != nil { // not a file
		t.Fatal(err)
	}
	err := v.Redis.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "redis ended before it served") || !strings.Contains(err.Error(), "  | ") {
		t.Fatalf("got %v, want the end of its log", err)
	}
}

// An epmd whose port is taken ends without a word and with exit status 0, whoever has it: the launcher says who. The port is taken
// before the start, or in the moment between the launcher's look and the start, by IPv4 or by IPv6 alone.
func TestAnEpmdWhosePortIsTakenSaysByWhom(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, moment := range []string{"before", "just then"} {
			t.Run(host+" "+moment, func(t *testing.T) {
				v := openServers(t)
				taken := net.JoinHostPort(host, strconv.Itoa(v.settings.EPMDPort))
				take := func(context.Context) error {
					l, err := net.Listen("tcp", taken)
					if err == nil {
						t.Cleanup(func() { l.Close() })
					}
					return err
				}
				if moment == "before" {
					if err := take(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else {
					v.epmd.prepare = take
				}
				err := v.epmd.Start(t.Context())
				wants := []string{fmt.Sprintf("%s is in use by pid %d (%s", taken, os.Getpid(), os.Args[0])}
				if moment != "before" {
					wants = append(wants, "epmd ended before it served, exit status 0; ", "there is already a epmd running at port")
				}
				for _, want := range wants {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want %q in it", err, want)
					}
				}
			})
		}
	}
}

func TestExecGivesTheServersAndCleansUp(t *testing.T) {
	dir := t.TempDir()
	script := `redis-cli -u "redis://$REDIS_ADDR" ping && test -n "$MYSQL_DSN" && test -n "$AMQP_URL" && test -n "$AMQP_MANAGEMENT_URL" && readlink "$0/data" > "$0/link"; exit 5`
	code, err := Exec(t.Context(), dir, true, []string{"sh", "-c", script, dir}, t.Output(), t.Output(), t.Logf)
	if err != nil || code != 5 {
		t.Fatalf("got %d, %v, want 5", code, err)
	}
	v, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, v)
	link, err := os.ReadFile(filepath.Join(dir, "link"))
	if err != nil {
		t.Fatal(err)
	}
	var fs syscall.Statfs_t
	if room := syscall.Statfs(memory, &fs) == nil && uint64(fs.Bavail)*uint64(fs.Bsize) > 2*memoryNeeded; room && !strings.HasPrefix(string(link), memory+"/") {
		t.Errorf("there is room in memory, and the data were in %q", link)
	}
	for _, data := range []string{strings.TrimSpace(string(link)), filepath.Join(dir, "data")} {
		if _, err := os.Lstat(data); err == nil {
			t.Errorf("%s is still there", data)
		}
	}
}

// system is the real system under a fresh directory, on free ports.
func systemOptions(t *testing.T) Options {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	ports, err := FreeSystemPorts()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Dir: t.TempDir(), Bin: filepath.Join(root, "build"), Root: root, Ports: ports,
		Report: t.Logf, Log: t.Output(),
	}
	t.Cleanup(func() {
		if err := Down(context.Background(), o); err != nil {
			t.Error(err)
		}
	})
	return o
}

func TestUpAndDown(t *testing.T) {
	o := systemOptions(t)
	// A docker that answers but cannot pull: the launcher goes on without it, and never asks it again.
	calls := fakeDocker(t, `case "$*" in *" up "*) echo 'pull access denied' >&2; exit 18;; esac`)
	s, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got := calls(); len(got) != 4 || !strings.HasSuffix(got[2], "up -d --wait redis rabbitmq mysql") || !strings.HasSuffix(got[3], "down --volumes") {
		t.Errorf("docker was asked %q", got)
	}
	pids := func() map[string]int {
		m := s.Servers.pids()
		m["backend"], m["gateway"] = s.Backend.PID(), s.Gateway.PID()
		return m
	}
	before := pids()
	for name, pid := range before {
		b, err := os.ReadFile(filepath.Join(o.Dir, name+".pid"))
		if err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(pid) {
			t.Errorf("%s.pid: got %q, %v, want %d", name, b, err, pid)
		}
	}
	count := func() (kinds []wire.SaleKind) {
		t.Helper()
		var list adminapi.Sales
		if err := s.Admin().Call(t.Context(), http.MethodGet, "/admin/v1/sales", "", nil, &list); err != nil {
			t.Fatal(err)
		}
		for _, sale := range list.Sales {
			kinds = append(kinds, sale.Kind)
		}
		return kinds
	}
	if got := count(); len(got) != 3 {
		t.Errorf("sample sales: got %v, want three", got)
	}

	// The env file is shell.
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `. "$0" && printf %s "$REDIS_ADDR $MYSQL_DSN $AMQP_URL $AMQP_MANAGEMENT_URL"`, filepath.Join(o.Dir, "env")).Output()
	if want := strings.Join([]string{s.Servers.RedisAddr(), s.Servers.MySQLDSN(), s.Servers.AMQPURL(), s.Servers.ManagementURL()}, " "); err != nil || string(out) != want {
		t.Errorf("env: got %q, %v, want %q", out, err, want)
	}

	// Again: nothing is started, nothing is made twice.
	if s, err = Up(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := pids(); !mapsEqual(got, before) {
		t.Errorf("up again: got %v, want %v", got, before)
	}
	if got := count(); len(got) != 3 {
		t.Errorf("sample sales after the second up: got %v, want three", got)
	}

	for _, p := range []*Process{s.Backend, s.Gateway, s.Servers.Redis} {
		before := pids()
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if s, err = Up(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for name, pid := range pids() {
			if same := pid == before[name]; pid == 0 || same == (name == p.name) {
				t.Errorf("killed %s: %s had pid %d, has %d", p.name, name, before[name], pid)
			}
		}
	}

	for range 2 {
		if err := Down(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		wantNothingLeft(t, s.Servers)
	}
	if got := calls(); len(got) != 4 {
		t.Errorf("docker was asked again: %q", got[4:])
	}
	o.Clean = true
	if err := Down(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.Dir); err == nil {
		entries, _ := os.ReadDir(o.Dir)
		t.Errorf("down -clean left %v", entries)
	}
}

// A docker whose containers are native servers on the published ports: what Up makes of a working engine.
func TestUpTakesTheServersFromDocker(t *testing.T) {
	v := openServers(t)
	inside := newServers(t.TempDir(), v.settings, t.Logf)
	t.Cleanup(func() {
		if err := inside.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := inside.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	calls := fakeDocker(t, `case "$*" in
*" ps -q "*) for last; do :; done; echo "id-$last" ;;
inspect*) for last; do :; done; cat "`+inside.dir+`/${last#id-}.pid" ;;
esac`)
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: v.dir, Root: root, Report: t.Logf, Log: t.Output()}
	if err := v.startOnAny(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !v.dockerized() {
		t.Fatalf("engine: got %q", v.settings.Engine)
	}
	for i, p := range []*Process{v.Redis, v.RabbitMQ, v.MySQL} {
		if want := []*Process{inside.Redis, inside.RabbitMQ, inside.MySQL}[i].PID(); p.PID() != want {
			t.Errorf("%s: pid %d, want %d, the one docker inspect told", p.name, p.PID(), want)
		}
	}
	// Down leaves it to docker to stop them: nobody signals a container's process.
	if err := Down(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !inside.Redis.Running() || v.Redis.PID() != 0 {
		t.Errorf("after down: redis runs: %v, pid file: %d", inside.Redis.Running(), v.Redis.PID())
	}
	if got := calls(); !strings.HasSuffix(got[len(got)-1], " down") {
		t.Errorf("docker was asked %q", got)
	}
}

// fakeDocker puts a docker of our own first in PATH. calls returns the arguments of every call so far.
func fakeDocker(t *testing.T, script string) (calls func() []string) {
	t.Helper()
	bin := t.TempDir()
	log := filepath.Join(bin, "calls")
	script = "#!/bin/sh\necho \"$@\" >> '" + log + "'\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return func() []string {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

package stack

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
)

// Servers are the three servers of one directory.
type Servers struct {
	Redis    *Process
	RabbitMQ *Process // its start also starts its epmd
	MySQL    *Process

	dir      string
	settings settings
	epmd     *Process
	report   func(format string, args ...any)
}

// Open returns the servers that belong to dir, running or not, and starts none. The ports and passwords of a new
// directory are chosen here. Progress goes to report, nil for nowhere; it must be safe for concurrent use.
func Open(dir string, report func(format string, args ...any)) (*Servers, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(dir, " \t\n'\"\\$") {
		return nil, fmt.Errorf("directory %q: the servers cannot live under a path with spaces, quotes, $ or backslashes: choose another", dir)
	}
	s, err := openSettings(dir)
	if err != nil {
		return nil, err
	}
	return newServers(dir, s, report), nil
}

func newServers(dir string, s settings, report func(string, ...any)) *Servers {
	if report == nil {
		report = func(string, ...any) {}
	}
	v := &Servers{dir: dir, settings: s, report: report}
	v.Redis = v.redis()
	v.MySQL = v.mysql()
	v.epmd = v.portMapper()
	v.RabbitMQ = v.rabbitmq()
	for _, p := range []*Process{v.Redis, v.MySQL, v.epmd, v.RabbitMQ} {
		p.dir, p.report = dir, report
	}
	return v
}

// Dir is the directory everything is under.
func (v *Servers) Dir() string { return v.dir }

// RedisAddr is host:port.
func (v *Servers) RedisAddr() string { return loopback(v.settings.RedisPort) }

// MySQLDSN is in the form of go-sql-driver, for the schema floodgate, by a user who may also create schemas.
func (v *Servers) MySQLDSN() string {
	return fmt.Sprintf("%s:%s@tcp(%s)/floodgate", v.settings.User, v.settings.Password, loopback(v.settings.MySQLPort))
}

// AMQPURL is for the vhost /, by an administrator.
func (v *Servers) AMQPURL() string {
	return fmt.Sprintf("amqp://%s:%s@%s/", v.settings.User, v.settings.Password, loopback(v.settings.AMQPPort))
}

// ManagementURL is RabbitMQ's HTTP API without the trailing /api, with user and password.
func (v *Servers) ManagementURL() string {
	return fmt.Sprintf("http://%s:%s@%s", v.settings.User, v.settings.Password, loopback(v.settings.ManagementPort))
}

// Env is how a program learns where the servers are: NAME=value.
func (v *Servers) Env() []string {
	return []string{
		"REDIS_ADDR=" + v.RedisAddr(),
		"MYSQL_DSN=" + v.MySQLDSN(),
		"AMQP_URL=" + v.AMQPURL(),
		"AMQP_MANAGEMENT_URL=" + v.ManagementURL(),
	}
}

// ShellEnv is Env in shell syntax, a line each.
func (v *Servers) ShellEnv() string {
	var b strings.Builder
	for _, e := range v.Env() {
		name, value, _ := strings.Cut(e, "=")
		b.WriteString(name + "='" + value + "'\n") // no value holds a quote
	}
	return b.String()
}

// Start starts those that do not run, side by side, and returns when all serve.
func (v *Servers) Start(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.Redis.Start(ctx) })
	g.Go(func() error { return v.MySQL.Start(ctx) })
	g.Go(func() error { return v.StartRabbitMQ(ctx) })
	return g.Wait()
}

// StartRabbitMQ starts the broker alone, and its epmd, also where only that has died.
func (v *Servers) StartRabbitMQ(ctx context.Context) error {
	if err := v.epmd.Start(ctx); err != nil {
		return err
	}
	return v.RabbitMQ.Start(ctx)
}

// Sibling returns the servers of another, new directory that have v's users, and so can be members of v's clusters. It starts none.
func (v *Servers) Sibling(dir string) (*Servers, error) {
	s, err := openSettings(dir)
	if err != nil {
		return nil, err
	}
	s.User, s.Password, s.Cookie, s.EPMDPort = v.settings.User, v.settings.Password, v.settings.Cookie, v.settings.EPMDPort
	if err := s.save(dir); err != nil {
		return nil, err
	}
	return newServers(dir, s, v.report), nil
}

// JoinRabbitMQ starts one more broker, of another, new directory, as a node of v's cluster: with v's users, queues and epmd.
// Of the servers that it returns nothing else runs.
func (v *Servers) JoinRabbitMQ(ctx context.Context, dir string) (*Servers, error) {
	node, err := v.Sibling(dir)
	if err != nil {
		return nil, err
	}
	node.epmd = v.epmd
	if err := node.StartRabbitMQ(ctx); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"stop_app"}, {"join_cluster", v.nodeName()}, {"start_app"}} {
		if _, err := node.RabbitMQCtl(ctx, args...); err != nil {
			return node, err
		}
	}
	return node, nil
}

// Stop ends all of them, side by side, the broker's epmd last.
func (v *Servers) Stop(ctx context.Context) error {
	return v.each(func(p *Process) error { return p.Stop(ctx) })
}

// Kill ends all of them with SIGKILL: for data that is thrown away.
func (v *Servers) Kill(ctx context.Context) error {
	return v.each(func(p *Process) error { return p.Kill(ctx) })
}

func (v *Servers) each(end func(*Process) error) error {
	procs := []*Process{v.Redis, v.RabbitMQ, v.MySQL}
	errs := make([]error, len(procs))
	var g errgroup.Group
	for i, p := range procs {
		g.Go(func() error { errs[i] = end(p); return nil })
	}
	_ = g.Wait() // the errors are in errs: one that fails does not spare the others
	return errors.Join(append(errs, end(v.epmd))...)
}

// plainEnv is what the servers see of the environment: nothing of the caller's that could steer them.
func plainEnv(home string) []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=" + home}
}

func (v *Servers) redis() *Process {
	data := filepath.Join(v.dir, "data", "redis")
	addr := v.RedisAddr()
	return &Process{
		name: "redis", data: data, addrs: []string{addr},
		prepare: func(context.Context) error { return makeDirs(data) },
		command: func() *exec.Cmd {
			cmd := exec.Command(find("redis-server"), "--port", strconv.Itoa(v.settings.RedisPort), "--bind", "127.0.0.1",
				"--dir", data, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
				"--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", "")
			cmd.Env = plainEnv(data)
			return cmd
		},
		ready:       func(ctx context.Context) error { return readyRedis(ctx, addr) },
		startWithin: serveWithin, stopWithin: 20 * time.Second,
	}
}

func readyRedis(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(d)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if answer != "+PONG\r\n" {
		return fmt.Errorf("PING: %s", strings.TrimSpace(answer)) // -LOADING while it reads the AOF
	}
	return nil
}

func (v *Servers) mysql() *Process {
	data := filepath.Join(v.dir, "data", "mysql")
	tables := filepath.Join(data, "tables") // mariadbd allows nothing else in its data directory
	initFile := filepath.Join(data, "init.sql")
	return &Process{
		name: "mysql", data: data, addrs: []string{loopback(v.settings.MySQLPort)},
		prepare: func(ctx context.Context) error {
			if err := makeDirs(data, temporary(data)); err != nil {
				return err
			}
			if err := writeFile(initFile, []byte(v.initSQL())); err != nil {
				return err
			}
			if _, err := os.Stat(tables); err == nil {
				return nil
			}
			return v.installTables(ctx, tables)
		},
		command: func() *exec.Cmd {
			args := []string{"--no-defaults", "--datadir=" + tables, "--tmpdir=" + temporary(data), "--init-file=" + initFile,
				"--socket=mysql.sock", // within datadir: a path of any length
				"--pid-file=mysql.pid", "--port=" + strconv.Itoa(v.settings.MySQLPort), "--bind-address=127.0.0.1",
				"--skip-name-resolve", "--skip-log-bin", "--character-set-server=utf8mb4", "--max-connections=500",
				"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=256M", "--performance-schema=OFF"}
			if os.Getuid() == 0 {
				args = append(args, "--user=root")
			}
			cmd := exec.Command(MariaDB(), args...)
			cmd.Env = plainEnv(data)
			return cmd
		},
		ready:       func(ctx context.Context) error { return readyMySQL(ctx, v.MySQLDSN()) },
		startWithin: serveWithin, stopWithin: time.Minute,
	}
}

// temporary is where mariadbd makes its temporary files: one that starts removes what it finds there, also what belongs to another.
func temporary(data string) string { return filepath.Join(data, "tmp") }

// initSQL is run by mariadbd at every start.
func (v *Servers) initSQL() string {
	return fmt.Sprintf(`CREATE DATABASE IF NOT EXISTS floodgate CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS '%[1]s'@'127.0.0.1' IDENTIFIED BY '%[2]s';
GRANT ALL PRIVILEGES ON *.* TO '%[1]s'@'127.0.0.1' WITH GRANT OPTION;
`, v.settings.User, v.settings.Password)
}

// installTables makes the system tables, aside first, so that an interrupted installation is not taken for a whole one.
func (v *Servers) installTables(ctx context.Context, tables string) error {
	aside := tables + ".new"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	who, err := user.Current()
	if err != nil {
		return err
	}
	args := []string{"--no-defaults", "--datadir=" + aside, "--tmpdir=" + temporary(filepath.Dir(tables)), "--skip-test-db", "--skip-name-resolve", "--force",
		"--auth-root-authentication-method=socket", "--auth-root-socket-user=" + who.Username}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	cmd := exec.CommandContext(ctx, find("mariadb-install-db"), args...)
	cmd.Env = plainEnv(filepath.Dir(tables))
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, lastLines(out))
	}
	return os.Rename(aside, tables)
}

func readyMySQL(ctx context.Context, dsn string) error {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{} // a refused connection is what a probe is for
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(c)
	defer db.Close()
	return db.PingContext(ctx)
}

// portMapper is the broker's epmd. The broker would start one by itself, but that one could not be told from others.
func (v *Servers) portMapper() *Process {
	port := v.settings.EPMDPort
	return &Process{
		// It listens on the loopback address of IPv6, too. Where one of its addresses is taken it ends with exit status 0, and says so
		// only with -debug.
		name: "epmd", addrs: []string{loopback(port), net.JoinHostPort("::1", strconv.Itoa(port))},
		command: func() *exec.Cmd {
			cmd := exec.Command(find("epmd"), "-debug", "-port", strconv.Itoa(port), "-address", "127.0.0.1")
			cmd.Env = plainEnv(v.dir)
			return cmd
		},
		ready: func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", loopback(port))
			if err != nil {
				return err
			}
			return conn.Close()
		},
		startWithin: serveWithin, stopWithin: 5 * time.Second,
	}
}

func (v *Servers) rabbitmq() *Process {
	data := filepath.Join(v.dir, "data", "rabbitmq")
	s := v.settings
	return &Process{
		name: "rabbitmq", data: data, addrs: []string{loopback(s.AMQPPort), loopback(s.ManagementPort), loopback(s.DistPort)},
		prepare: func(ctx context.Context) error {
			if err := makeDirs(data); err != nil {
				return err
			}
			conf := fmt.Sprintf(`listeners.tcp.loopback = %s
management.tcp.ip = 127.0.0.1
management.tcp.port = %d
default_user = %s
default_pass = %s
log.file = false
log.console = true
log.console.use_colors = off
disk_free_limit.absolute = 50MB
`, loopback(s.AMQPPort), s.ManagementPort, s.User, s.Password)
			err := errors.Join(
				writeFile(filepath.Join(data, "rabbitmq.conf"), []byte(conf)),
				writeFile(filepath.Join(data, "enabled_plugins"), []byte("[rabbitmq_management].\n")),
				writeCookie(filepath.Join(data, ".erlang.cookie"), s.Cookie))
			if err != nil {
				return err
			}
			return v.epmd.Start(ctx)
		},
		command: func() *exec.Cmd {
			cmd := exec.Command(rabbitBin + "/rabbitmq-server")
			// Under systemd the script becomes the broker by exec: so our child is what serves, not a shell around it.
			cmd.Env = append(v.rabbitEnv(data), "RUNNING_UNDER_SYSTEMD=true",
				"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}")
			cmd.Dir = data
			return cmd
		},
		ready:       func(ctx context.Context) error { return v.readyRabbitMQ(ctx) },
		startWithin: serveWithin, stopWithin: time.Minute,
	}
}

// rabbitBin is where Debian keeps the real scripts; those in /usr/sbin switch to the package's own user.
const rabbitBin = "/usr/lib/rabbitmq/bin"

// nodeName is the broker's own among all that its epmd knows.
func (v *Servers) nodeName() string {
	return "floodgate-" + strconv.Itoa(v.settings.AMQPPort) + "@localhost"
}

func (v *Servers) rabbitEnv(data string) []string {
	return append(plainEnv(data),
		"ERL_EPMD_PORT="+strconv.Itoa(v.settings.EPMDPort), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME="+v.nodeName(),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(v.settings.DistPort),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE="+filepath.Join(data, "rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(data, "enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(data, "mnesia"),
		"RABBITMQ_LOG_BASE="+filepath.Join(data, "log"))
}

// RabbitMQCtl runs rabbitmqctl on the broker, for what the HTTP API cannot do, and returns what it printed.
func (v *Servers) RabbitMQCtl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, rabbitBin+"/rabbitmqctl", args...)
	cmd.Env = v.rabbitEnv(v.RabbitMQ.data)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rabbitmqctl %s: %w%s", strings.Join(args, " "), err, lastLines(out))
	}
	return string(out), nil
}

// writeCookie is writeFile for the one file that Erlang wants readable by the owner alone and without a newline.
func writeCookie(path, cookie string) error {
	if err := writeFile(path, []byte(cookie)); err != nil {
		return err
	}
	return os.Chmod(path, 0o400)
}

// electLeaders asks every quorum queue of a single member without a leader for an election; an error while there was one. Such
// a queue may come back from a SIGKILL as a follower that waits for ever, through further restarts: then it takes no message
// and answers no consumer. Members on several nodes elect one by themselves.
func (v *Servers) electLeaders(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(v.RabbitMQ.data, "rabbitmq.conf")); err != nil {
		return nil // not started by prepare: a container's broker is out of rabbitmqctl's reach
	}
	out, err := v.RabbitMQCtl(ctx, "eval", `[begin ra:trigger_election(amqqueue:get_pid(Q)), element(4, amqqueue:get_name(Q)) end || `+
		`Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_quorum_queue, length(maps:get(nodes, amqqueue:get_type_state(Q))) =:= 1, `+
		`ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) =:= undefined].`)
	if err != nil {
		return err
	}
	if out = strings.TrimSpace(out); out != "[]" {
		return fmt.Errorf("queues without a leader: %s", out)
	}
	return nil
}

func (v *Servers) readyRabbitMQ(ctx context.Context) error {
	conn, err := amqp.DialConfig(v.AMQPURL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			if d, ok := ctx.Deadline(); ok {
				err = c.SetDeadline(d) // for the handshake
			}
		}
		return c, err
	}})
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.ManagementURL()+"/api/overview", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /api/overview: %s", res.Status)
	}
	return v.electLeaders(ctx)
}

// lastLines is the end of a failed command's output, as the lines to put under an error message.
func lastLines(out []byte) string {
	text := strings.TrimSpace(string(out))
	if text == "" {
		return ""
	}
	all := strings.Split(text, "\n")
	return "; its last lines:\n  | " + strings.Join(all[max(0, len(all)-20):], "\n  | ")
}

// Package doctor looks at a system from outside, in the order in which one thing needs the other: the stores, each from its name in
// the DNS to the login, the listeners of the processes, and then the checks of the system that a preflight has as well.
package doctor

import (
	"bufio"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/broker"
	"floodgate.internal/backend/preflight"
	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
)

// Config is where everything is, by the backend's configuration.
type Config struct {
	Redis    redis.Config
	MySQL    string         // DSN
	Broker   *broker.Config // nil: the outbox is the queue
	Admin    string         // host:port of the admin listener
	Internal string         // of the internal one
	TLS      bool           // the internal one speaks TLS
	Gateways []string       // host:port of gateways' ops listeners
	System   preflight.System
	Log      *slog.Logger
}

// patience bounds a connection, and a question to a listener.
const patience = 5 * time.Second

// doctor has what was reached so far.
type doctor struct {
	Config
	http http.Client
}

// Look makes every check. Its connections are closed when it returns.
func Look(ctx context.Context, c Config) []preflight.Check {
	d := &doctor{Config: c, http: http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	defer d.close()
	stages := [][]preflight.Row{
		{{Name: "redis_network", Want: "its name resolves, and it takes connections", Do: "is Redis running, and is redis.addrs right? is a firewall in between?", Look: d.redisNetwork},
			{Name: "redis", Want: "it lets this backend in", Do: "compare redis.username and redis.password with Redis's ACL", Look: d.redis}},
		{{Name: "mysql_network", Want: "its name resolves, and it takes connections", Do: "is MySQL running, and is the address in mysql.dsn right? is a firewall in between?", Look: d.mysqlNetwork},
			{Name: "mysql", Want: "it lets this backend in", Do: "compare user, password and database in mysql.dsn with MySQL's grants", Look: d.mysql}},
	}
	if c.Broker != nil {
		stages = append(stages, []preflight.Row{
			{Name: "rabbitmq_network", Want: "its name resolves, and it takes connections", Do: "is RabbitMQ running, and is the address in queue.url right? is a firewall in between?", Look: d.amqpNetwork},
			{Name: "rabbitmq", Want: "it lets this backend in", Do: "compare user, password and vhost in queue.url with rabbitmqctl list_users and list_permissions", Look: d.amqp},
		})
	}
	stages = append(stages, []preflight.Row{
		{Name: "backend", Want: "its admin listener says that it is ready", Do: "start it, or see to the reasons that it gives", Look: d.backend},
		{Name: "descriptors", Want: "enough for api.max_connections", Do: preflight.MoreFiles, Look: d.descriptors},
	}, []preflight.Row{{Name: "internal", Want: "its internal listener answers", Do: "start a backend with the role api; is listen.internal right?", Look: d.internal}})
	for _, g := range c.Gateways {
		stages = append(stages, []preflight.Row{{Name: "gateway " + g, Want: "its ops listener says that it is ready", Do: "start it, or see to the reasons that it gives",
			Look: func(ctx context.Context) (preflight.Result, error) { return d.ready(ctx, g) }}})
	}
	found := make([][]preflight.Check, len(stages))
	var all sync.WaitGroup
	for i, rows := range stages {
		all.Go(func() { found[i] = preflight.InOrder(ctx, rows) })
	}
	all.Wait()
	var checks []preflight.Check
	for _, f := range found {
		checks = append(checks, f...)
	}
	rows := append(d.System.Rows(), preflight.Row{Name: "disk", Want: "at least 1 GiB and a tenth free, and no write of Redis has failed", Do: "make room, or move the data to a larger disk", Look: d.disk})
	return append(checks, preflight.Run(ctx, rows)...)
}

func (d *doctor) close() {
	if d.System.Broker != nil {
		_ = d.System.Broker.Close() // it only waits
	}
	if d.System.Redis != nil {
		d.System.Redis.Close()
	}
	if d.System.DB != nil {
		_ = d.System.DB.Close() // nothing was written
	}
}

// reach resolves an address and connects to it.
func reach(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return "", fmt.Errorf("%s: %w", address, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return "", fmt.Errorf("%s: %w", address, err)
	}
	defer conn.Close()
	if strings.Join(ips, ",") == host {
		return address, nil
	}
	return address + " is " + strings.Join(ips, ", "), nil
}

func (d *doctor) redisNetwork(ctx context.Context) (preflight.Result, error) {
	var found []string
	for _, address := range d.Redis.Addrs {
		text, err := reach(ctx, address)
		if err != nil {
			return preflight.Result{}, err
		}
		found = append(found, text)
	}
	return preflight.Result{Value: strings.Join(found, "; "), OK: true}, nil
}

func (d *doctor) redis(ctx context.Context) (preflight.Result, error) {
	s, err := reserve.Open(d.Redis, 0)
	if err != nil {
		return preflight.Result{}, err
	}
	d.System.Redis = s
	version, err := d.redisInfo(ctx, "server")
	if err != nil {
		return preflight.Result{}, err
	}
	return preflight.Result{Value: "version " + version["redis_version"], OK: true}, nil
}

// redisInfo is a section of INFO.
func (d *doctor) redisInfo(ctx context.Context, section string) (map[string]string, error) {
	c := d.System.Redis.Client()
	text, err := c.Do(ctx, c.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return nil, fmt.Errorf("redis, INFO %s: %w", section, err)
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}

func (d *doctor) mysqlNetwork(ctx context.Context) (preflight.Result, error) {
	c, err := mysql.ParseDSN(d.MySQL)
	if err != nil {
		return preflight.Result{}, errors.New("mysql.dsn cannot be read") // the driver's message may quote the password
	}
	if c.Net != "tcp" {
		return preflight.Result{Value: c.Net + " " + c.Addr, OK: true}, nil
	}
	text, err := reach(ctx, c.Addr)
	return preflight.Result{Value: text, OK: true}, err
}

func (d *doctor) mysql(ctx context.Context) (preflight.Result, error) {
	db, err := store.Open(d.MySQL, 4)
	if err != nil {
		return preflight.Result{}, err
	}
	var version string
	if err := db.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&version); err != nil {
		return preflight.Result{}, errors.Join(err, db.Close())
	}
	d.System.DB = db
	return preflight.Result{Value: "version " + version, OK: true}, nil
}

func (d *doctor) amqpNetwork(ctx context.Context) (preflight.Result, error) {
	u, err := amqp.ParseURI(d.Broker.URL)
	if err != nil {
		return preflight.Result{}, errors.New("queue.url cannot be read")
	}
	text, err := reach(ctx, net.JoinHostPort(u.Host, strconv.Itoa(u.Port)))
	return preflight.Result{Value: text, OK: true}, err
}

// amqp logs in, and opens what declares the queues: one that is there and of another kind is refused by the broker.
func (d *doctor) amqp(ctx context.Context) (preflight.Result, error) {
	conn, err := amqp.DialConfig(d.Broker.URL, amqp.Config{Dial: amqp.DefaultDial(patience), Heartbeat: patience})
	if err != nil {
		return preflight.Result{}, err
	}
	version, _ := conn.Properties["version"].(string)
	if err := conn.CloseDeadline(time.Now().Add(patience)); err != nil {
		return preflight.Result{}, err
	}
	c := *d.Broker
	c.Log, c.Register = d.Log, prometheus.NewRegistry() // nobody reads it
	if d.System.Broker, err = broker.Open(c); err != nil {
		return preflight.Result{}, err
	}
	return preflight.Result{Value: "version " + version, OK: true}, nil
}

// get asks a listener. The body is cut at a MiB.
func (d *doctor) get(ctx context.Context, address, path string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "http", Host: near(address), Path: path}).String(), nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := d.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, body, err
}

// near is where a listener of this machine is reached that listens on every address.
func near(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

func (d *doctor) backend(ctx context.Context) (preflight.Result, error) { return d.ready(ctx, d.Admin) }

// ready asks a listener for /-/ready, whose reasons gateways and backends name alike.
func (d *doctor) ready(ctx context.Context, address string) (preflight.Result, error) {
	status, body, err := d.get(ctx, address, "/-/ready")
	if err != nil {
		return preflight.Result{}, err
	}
	var r adminapi.Readiness
	if err := json.Unmarshal(body, &r); err != nil {
		return preflight.Result{Value: fmt.Sprintf("something else than Floodgate answers %d at %s", status, address)}, nil
	}
	value := address + ": " + r.Status
	if len(r.Reasons) > 0 {
		value += ": " + strings.Join(r.Reasons, "; ")
	}
	return preflight.Result{Value: value, OK: status == http.StatusOK}, nil
}

// descriptors reads the running backend's limit off its metrics.
func (d *doctor) descriptors(ctx context.Context) (preflight.Result, error) {
	status, body, err := d.get(ctx, d.Admin, "/metrics")
	if err != nil {
		return preflight.Result{}, err
	}
	lines := bufio.NewScanner(strings.NewReader(string(body)))
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "process_max_fds "); ok {
			limit, err := strconv.ParseFloat(text, 64)
			return d.System.Descriptors(int64(limit)), err
		}
	}
	return preflight.Result{}, fmt.Errorf("/metrics answers %d, without process_max_fds", status)
}

// internal sends what is not signed: any HTTP answer says that the listener is there.
func (d *doctor) internal(ctx context.Context) (preflight.Result, error) {
	address := near(d.Internal)
	if d.TLS { // a client certificate may be needed to get further
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", address) // it is asked nothing and told nothing
		if err != nil {
			return preflight.Result{}, err
		}
		defer conn.Close()
		return preflight.Result{Value: address + " speaks TLS", OK: true}, nil
	}
	status, _, err := d.get(ctx, address, "/v1/time")
	if err != nil {
		return preflight.Result{}, err
	}
	return preflight.Result{Value: fmt.Sprintf("%s answers what is not signed with %d", address, status), OK: status == http.StatusUnauthorized}, nil
}

// disk asks the stores whether they could write, and the disks of those that are on this machine how much is free.
func (d *doctor) disk(ctx context.Context) (preflight.Result, error) {
	if d.System.Redis == nil || d.System.DB == nil {
		return preflight.Result{}, errors.New("redis or mysql is away")
	}
	info, err := d.redisInfo(ctx, "persistence")
	if err != nil {
		return preflight.Result{}, err
	}
	ok, parts := true, []string{}
	for _, name := range []string{"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"} {
		if value := info[name]; value != "" && value != "ok" {
			ok, parts = false, append(parts, "Redis: "+name+" "+value)
		}
	}
	c := d.System.Redis.Client()
	if dir, err := c.Do(ctx, c.B().ConfigGet().Parameter("dir").Build()).AsStrMap(); err == nil {
		parts, ok = free(parts, ok, "Redis", dir["dir"])
	}
	if dir, err := datadir(ctx, d.System.DB); err == nil {
		parts, ok = free(parts, ok, "MySQL", dir)
	}
	if len(parts) == 0 {
		return preflight.Result{Value: "the stores are elsewhere; Redis's writes succeed", OK: true}, nil
	}
	return preflight.Result{Value: strings.Join(parts, "; "), OK: ok}, nil
}

func datadir(ctx context.Context, db *sql.DB) (dir string, err error) {
	err = db.QueryRowContext(ctx, `SELECT @@datadir`).Scan(&dir)
	return dir, err
}

// free adds how much is free where a store's directory is, if it is on this machine.
func free(parts []string, ok bool, store, dir string) ([]string, bool) {
	var s syscall.Statfs_t
	if _, err := os.Stat(dir); dir == "" || err != nil || syscall.Statfs(dir, &s) != nil || s.Blocks == 0 {
		return parts, ok
	}
	left, part := s.Bavail*uint64(s.Bsize), float64(s.Bavail)/float64(s.Blocks)
	parts = append(parts, fmt.Sprintf("%s, %s: %.1f GiB free, %.0f %%", store, dir, float64(left)/(1<<30), 100*part))
	return parts, ok && left >= 1<<30 && part >= 0.1
}

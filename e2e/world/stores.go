package world

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"

	"floodgate.internal/e2e/oracle"
	"floodgate.internal/e2e/stack"
)

// Stores are where the three servers are, in the forms of stack.Servers.
type Stores struct{ Redis, MySQL, AMQP, Management string }

// StoresOf takes each store from one set of servers.
func StoresOf(redis, mysql, rabbitmq *stack.Servers) Stores {
	return Stores{Redis: redis.RedisAddr(), MySQL: mysql.MySQLDSN(), AMQP: rabbitmq.AMQPURL(), Management: rabbitmq.ManagementURL()}
}

// StoresOfEnv takes them from the environment, as stack.Servers.Env puts them there.
func StoresOfEnv(t testing.TB) Stores {
	t.Helper()
	env := func(name string) string {
		v := os.Getenv(name)
		if v == "" {
			t.Fatalf("%s is not set: this test needs the real servers: run make test", name)
		}
		return v
	}
	return Stores{Redis: env("REDIS_ADDR"), MySQL: env("MYSQL_DSN"), AMQP: env("AMQP_URL"), Management: strings.TrimSuffix(env("AMQP_MANAGEMENT_URL"), "/")}
}

// OpenServers are servers that are killed when the test ends. None is started.
func OpenServers(t testing.TB, dir string) *stack.Servers {
	t.Helper()
	v, err := stack.Open(dir, nil)
	Must(t, err)
	KillAfter(t, v)
	return v
}

// KillAfter kills servers when the test ends.
func KillAfter(t testing.TB, v *stack.Servers) {
	t.Cleanup(func() {
		if err := v.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// OpenRedis connects to one Redis, for tests: without a cache on the client's side.
func OpenRedis(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
}

// OpenMySQL connects to a MySQL that may be killed on purpose: nothing is logged of that. Times are parsed.
func OpenMySQL(dsn string) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	c.ParseTime, c.Logger = true, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetConnMaxLifetime(time.Second) // a Galera node that lost the others refuses ROLLBACK, too: that connection is of no use any more
	return db, nil
}

// DSN is that of another schema, "" for none.
func DSN(dsn, schema string) (string, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	c.DBName = schema
	return c.FormatDSN(), nil
}

// OpenBooks connects to Redis and to a schema of MySQL, as the oracle asks them.
func (s Stores) OpenBooks(schema, prefix string) (b oracle.Books, err error) {
	dsn, err := DSN(s.MySQL, schema)
	if err != nil {
		return b, err
	}
	b.Prefix = prefix
	if b.DB, err = OpenMySQL(dsn); err != nil {
		return b, err
	}
	if b.Redis, err = OpenRedis(s.Redis); err != nil {
		b.DB.Close()
	}
	return b, err
}

// withoutSchema sends MySQL a statement.
func (s Stores) withoutSchema(ctx context.Context, statement string) error {
	dsn, err := DSN(s.MySQL, "")
	if err != nil {
		return err
	}
	db, err := OpenMySQL(dsn)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}

// MakeVhost makes a vhost, with all rights to the user of the management URL.
func (s Stores) MakeVhost(ctx context.Context, name string) error {
	u, err := url.Parse(s.Management)
	if err != nil {
		return err
	}
	if err := s.Manage(ctx, http.MethodPut, "/vhosts/"+name, `{}`, nil); err != nil {
		return err
	}
	return s.Manage(ctx, http.MethodPut, "/permissions/"+name+"/"+url.PathEscape(u.User.Username()), `{"configure":".*","write":".*","read":".*"}`, nil)
}

// Remove removes what New has made of this name.
func (s Stores) Remove(ctx context.Context, name string) error {
	err := s.withoutSchema(ctx, "DROP DATABASE "+name)
	if s.AMQP == "" {
		return err
	}
	return errors.Join(err, s.Manage(ctx, http.MethodDelete, "/vhosts/"+name, "", nil))
}

// Manage calls RabbitMQ's HTTP API and reads the answer into out, unless that is nil.
func (s Stores) Manage(ctx context.Context, method, path, body string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, s.Management+"/api"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, b)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

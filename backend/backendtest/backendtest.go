// Package backendtest gives a test its own corner of the real servers: a fresh Redis prefix, a fresh MySQL schema, a
// fresh RabbitMQ vhost, each removed when the test ends.
//
// Where the servers are stands in the environment: REDIS_ADDR, MYSQL_DSN (of a user who may create schemas), AMQP_URL and
// AMQP_MANAGEMENT_URL. A test that needs one that is not set fails.
package backendtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"floodgate.internal/backend/redis"
	"floodgate.internal/backend/reserve"
	"floodgate.internal/backend/store"
)

func env(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: this test needs the real servers: run make test", name)
	}
	return v
}

func fresh() string {
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		panic("BUG: crypto/rand: " + err.Error())
	}
	return hex.EncodeToString(b)
}

// Redis returns a store on the real Redis under a key prefix of its own. sale_reserve.lua is loaded already: a server that
// several tests share was not started anew for this one.
func Redis(t testing.TB) *reserve.Store {
	t.Helper()
	s, err := reserve.Open(redis.Config{Addrs: []string{env(t, "REDIS_ADDR")}, Prefix: "t" + fresh() + ":"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c := s.Client()
		for cursor := uint64(0); ; {
			page, err := c.Do(ctx, c.B().Scan().Cursor(cursor).Match(c.Prefix()+"*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				t.Logf("remove the keys of %s: %v", c.Prefix(), err)
				break
			}
			for _, key := range page.Elements {
				if err := c.Do(ctx, c.B().Unlink().Key(key).Build()).Error(); err != nil {
					t.Logf("remove %s: %v", key, err)
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
		s.Close()
	})
	return s
}

// MySQLDSN makes an empty schema on the real MySQL or MariaDB and returns its DSN.
func MySQLDSN(t testing.TB) string {
	t.Helper()
	c, err := mysql.ParseDSN(env(t, "MYSQL_DSN"))
	if err != nil {
		t.Fatalf("MYSQL_DSN: %v", err)
	}
	name := "t_" + fresh()
	admin := c.Clone()
	admin.DBName = ""
	run := func(ctx context.Context, statement string) error {
		db, err := sql.Open("mysql", admin.FormatDSN())
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, statement)
		return errors.Join(err, db.Close())
	}
	if err := run(t.Context(), "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
		t.Fatalf("create schema %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := run(ctx, "DROP DATABASE "+name); err != nil {
			t.Logf("drop schema %s: %v", name, err)
		}
	})
	c.DBName = name
	return c.FormatDSN()
}

// MySQL returns up to 16 connections to a fresh, migrated schema.
func MySQL(t testing.TB) *sql.DB {
	t.Helper()
	db := OpenMySQL(t, MySQLDSN(t), 16)
	Migrate(t, db)
	return db
}

// Migrate brings a schema up to date.
func Migrate(t testing.TB, db *sql.DB) {
	t.Helper()
	if _, err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
}

// OpenMySQL connects to a schema with at most maxOpen connections, closed when the test ends.
func OpenMySQL(t testing.TB, dsn string, maxOpen int) *sql.DB {
	t.Helper()
	db, err := store.Open(dsn, maxOpen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Logf("close MySQL: %v", err)
		}
	})
	return db
}

// AMQP makes a vhost on the real RabbitMQ through its management API and returns the vhost's URL.
func AMQP(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(env(t, "AMQP_URL"))
	if err != nil {
		t.Fatalf("AMQP_URL: %v", err)
	}
	name := "t-" + fresh()
	if err := Management(t.Context(), t, http.MethodPut, "/vhosts/"+name, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := Management(ctx, t, http.MethodDelete, "/vhosts/"+name, ""); err != nil {
			t.Log(err)
		}
	})
	all := `{"configure":".*","write":".*","read":".*"}`
	if err := Management(t.Context(), t, http.MethodPut, "/permissions/"+name+"/"+url.PathEscape(u.User.Username()), all); err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// Management sends one request to RabbitMQ's management API; path comes without /api. Any status but 2xx is an error.
func Management(ctx context.Context, t testing.TB, method, path, body string) error {
	t.Helper()
	u, err := url.Parse(env(t, "AMQP_MANAGEMENT_URL"))
	if err != nil {
		return fmt.Errorf("AMQP_MANAGEMENT_URL: %w", err)
	}
	password, _ := u.User.Password()
	user := u.User.Username()
	u.User = nil
	target := strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/api") + "/api" + path
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	r.SetBasicAuth(user, password)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return nil
}

// Log returns a logger that writes into the test's output.
func Log(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Package redis is a process's connection to Redis: one server, or a Redis Cluster. It calls the scripts of package lua, and it
// notices a primary that was started anew or promoted: see incarnation.go.
//
// The client never retries. A call whose answer was lost may have been carried out; its error says no more than that.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"floodgate.internal/shared/failpoint"
)

// ErrRestarted says that a primary does not have the scripts of the incarnation in use. It was started anew or promoted: its
// live sales must be reconciled, and its SKUs be forgotten.
var ErrRestarted = errors.New("redis was restarted: its sales must be reconciled")

// Timeout bounds every call that comes without a deadline of its own.
const Timeout = 2 * time.Second

// Config says where Redis is.
type Config struct {
	Addrs              []string // one server, or one or several nodes of a Redis Cluster
	Username, Password string
	Prefix             string // put before every key
}

// Client is the connection. It is safe for concurrent use.
type Client struct {
	rueidis.Client
	prefix      string
	incarnation atomic.Pointer[Incarnation]
}

// Open connects to Redis; it fails if Redis does not answer. Close ends the connections.
func Open(cfg Config) (*Client, error) {
	option := rueidis.ClientOption{
		InitAddress:       cfg.Addrs,
		ClientName:        clientName(cfg.Prefix),
		Username:          cfg.Username,
		Password:          cfg.Password,
		DisableCache:      true,
		DisableRetry:      true,
		ForceSingleClient: len(cfg.Addrs) == 1,
		RingScaleEachConn: 8,
		BlockingPoolSize:  64,
		ConnWriteTimeout:  Timeout,
		Dialer:            net.Dialer{Timeout: Timeout},
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: time.Second},
	}
	c := &Client{prefix: cfg.Prefix}
	c.Use("")
	if failpoint.Enabled {
		option.DialCtxFn = c.dialMarked
	}
	var err error
	if c.Client, err = rueidis.NewClient(option); err == nil && option.ForceSingleClient && clustered(c.Client) {
		c.Client.Close()
		option.ForceSingleClient = false
		c.Client, err = rueidis.NewClient(option)
	}
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", strings.Join(cfg.Addrs, ", "), err)
	}
	return c, nil
}

// clientName is what CLIENT LIST calls the connections of those who use a prefix.
func clientName(prefix string) string { return "floodgate:" + url.PathEscape(prefix) }

// Readers counts the connections of this prefix, of any process, whose last command was XREADGROUP: a process that reads outboxes
// has at least one.
func (c *Client) Readers(ctx context.Context) (n int, err error) {
	name := "name=" + clientName(c.prefix)
	for addr, node := range c.Nodes() {
		list, err := node.Do(ctx, node.B().ClientList().Build()).ToString()
		if err != nil {
			return 0, fmt.Errorf("redis at %s, CLIENT LIST: %w", addr, err)
		}
		for line := range strings.Lines(list) {
			if fields := strings.Fields(line); slices.Contains(fields, name) && slices.Contains(fields, "cmd=xreadgroup") {
				n++
			}
		}
	}
	return n, nil
}

// clustered reports whether a server is a node of a Redis Cluster. Any other server refuses the question.
func clustered(c rueidis.Client) bool {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	return c.Do(ctx, c.B().ClusterInfo().Build()).Error() == nil
}

// dialMarked connects as rueidis does by default. Its failpoints lie between the call of a script and the reading of its answer.
func (c *Client) dialMarked(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn = failpoint.Sent("api.script-sent", conn, func() string { return c.Incarnation().Reserve.SHA })
	return failpoint.Sent("cart.script-sent", conn, func() string { return c.Incarnation().Lock.SHA }), nil
}

// Prefix is put before every key.
func (c *Client) Prefix() string { return c.prefix }

// Now asks Redis for the time: the one clock that decides. On a cluster any node will do, where the first one that is asked is away.
func (c *Client) Now(ctx context.Context) (now time.Time, err error) {
	if now, err = timeOf(ctx, c.Client); err != nil && c.Mode() == rueidis.ClientModeCluster {
		for _, n := range c.Client.Nodes() {
			if now, err = timeOf(ctx, n); err == nil {
				break
			}
		}
	}
	return now, err
}

func timeOf(ctx context.Context, c rueidis.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	t, err := c.Do(ctx, c.B().Time().Build()).AsIntSlice()
	if err != nil {
		return time.Time{}, fmt.Errorf("redis TIME: %w", err)
	}
	return time.Unix(t[0], t[1]*1000).UTC(), nil
}

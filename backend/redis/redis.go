// Package redis is a process's connection to Redis: one server, a pair with Sentinel, or a Redis Cluster. It calls the scripts of package lua, and it
// notices a primary that was started anew or promoted: see incarnation.go.
//
// The client never retries. A call whose answer was lost may have been carried out; its error says no more than that.
package redis

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
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
	Addrs              []string // one server, one or several nodes of a Redis Cluster, or sentinels
	Username, Password string
	Prefix             string       // put before every key
	Sentinel           Sentinel     // where Addrs are sentinels
	TLS                *TLS         // nil: plain TCP
	Log                *slog.Logger // nil: nothing is logged
}

// Sentinel names the primary that sentinels watch, and the user as whom they are asked ("": nobody).
type Sentinel struct {
	Primary            string // "": Addrs are no sentinels
	Username, Password string
}

// Client is the connection. It is safe for concurrent use.
type Client struct {
	rueidis.Client
	prefix      string
	secure      *dialer // nil: plain TCP
	incarnation atomic.Pointer[Incarnation]
}

// refreshEvery is how often a cluster or the sentinels are asked which servers are primaries.
const refreshEvery = time.Second

// Open connects to Redis; it fails if Redis does not answer. Close ends the connections.
func Open(cfg Config) (*Client, error) {
	option := rueidis.ClientOption{
		InitAddress:       cfg.Addrs,
		ClientName:        clientName(cfg.Prefix),
		ClientSetInfo:     rueidis.DisableClientSetInfo, // an ACL of Redis 7.0 cannot name that command
		Username:          cfg.Username,
		Password:          cfg.Password,
		DisableCache:      true,
		DisableRetry:      true,
		ForceSingleClient: len(cfg.Addrs) == 1 && cfg.Sentinel.Primary == "",
		RingScaleEachConn: 8,
		BlockingPoolSize:  64,
		ConnWriteTimeout:  Timeout,
		Dialer:            net.Dialer{Timeout: Timeout},
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: refreshEvery},
		// A sentinel's word of a promotion may be missed, so they are asked again.
		Sentinel: rueidis.SentinelOption{MasterSet: cfg.Sentinel.Primary, Username: cfg.Sentinel.Username, Password: cfg.Sentinel.Password,
			Dialer: net.Dialer{Timeout: Timeout}, TopologyRefreshInterval: refreshEvery},
	}
	c := &Client{prefix: cfg.Prefix}
	c.Use("")
	var err error
	if cfg.TLS != nil {
		if c.secure, err = newDialer(*cfg.TLS, cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))); err != nil {
			return nil, fmt.Errorf("redis, TLS: %w", err)
		}
	}
	option.DialCtxFn = c.dial
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

// dial connects. Its failpoints lie between the call of a script and the reading of its answer.
func (c *Client) dial(ctx context.Context, addr string, plain *net.Dialer, _ *tls.Config) (conn net.Conn, err error) {
	if c.secure != nil {
		conn, err = c.secure.dial(ctx, addr, plain)
	} else {
		conn, err = plain.DialContext(ctx, "tcp", addr)
	}
	if err != nil || !failpoint.Enabled {
		return conn, err
	}
	conn = failpoint.Sent("api.script-sent", conn, func(b []byte) bool { return bytes.Contains(b, []byte(c.Incarnation().Reserve.SHA)) })
	return failpoint.Sent("cart.script-sent", conn, func(b []byte) bool { return bytes.Contains(b, []byte(c.Incarnation().Lock.SHA)) }), nil
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

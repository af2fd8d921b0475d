package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// Call runs a script and returns its reply, each member as text, nil as ""; a reply that is no list has one
// member. A script that Redis does not have is sent whole, but for those of an incarnation: then the error is ErrRestarted.
func (c *Client) Call(ctx context.Context, script lua.Script, keys []string, args ...string) (lua.Reply, error) {
	return CallOn(ctx, c, script, keys, args...)
}

// CallOn is Call over a connection that is held.
func CallOn(ctx context.Context, conn rueidis.CoreClient, script lua.Script, keys []string, args ...string) (lua.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	r := conn.Do(ctx, conn.B().Evalsha().Sha1(script.SHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	if noScript(r) && !script.InIncarnation {
		r = conn.Do(ctx, conn.B().Eval().Script(script.Source).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	return Reply(r)
}

// Args is one call of several: they may be for different slots of a cluster.
type Args struct{ Keys, Args []string }

// CallAll runs a script of an incarnation once for each of calls, in one pipeline, and returns the replies in their order. An
// error may leave some of them done, so the calls must be idempotent.
func (c *Client) CallAll(ctx context.Context, script lua.Script, calls []Args) ([]lua.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands := make(rueidis.Commands, len(calls))
	for i, a := range calls {
		commands[i] = c.B().Evalsha().Sha1(script.SHA).Numkeys(int64(len(a.Keys))).Key(a.Keys...).Arg(a.Args...).Build()
	}
	replies := make([]lua.Reply, len(calls))
	for i, r := range c.DoMulti(ctx, commands...) {
		var err error
		if replies[i], err = Reply(r); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// Multi runs commands for one slot in one MULTI, and returns what each answered.
func Multi(ctx context.Context, c rueidis.DedicatedClient, commands ...rueidis.Completed) ([]rueidis.RedisMessage, error) {
	all := append(append(rueidis.Commands{c.B().Multi().Build()}, commands...), c.B().Exec().Build())
	rs := c.DoMulti(ctx, all...)
	for _, r := range rs {
		if err := r.Error(); err != nil {
			return nil, err
		}
	}
	return rs[len(rs)-1].ToArray()
}

func noScript(r rueidis.RedisResult) bool {
	e, ok := rueidis.IsRedisErr(r.Error())
	return ok && e.IsNoScript()
}

// Reply reads what a script replied, as Call does.
func Reply(r rueidis.RedisResult) (lua.Reply, error) {
	if noScript(r) {
		return nil, ErrRestarted
	}
	m, err := r.ToMessage()
	if err != nil {
		return nil, err
	}
	list := []rueidis.RedisMessage{m}
	if m.IsArray() {
		if list, err = m.ToArray(); err == nil && len(list) == 0 {
			err = errors.New("it is empty")
		}
	}
	out := make(lua.Reply, len(list))
	for i := 0; err == nil && i < len(list); i++ {
		switch {
		case list[i].IsNil():
		case list[i].IsInt64():
			var n int64
			n, err = list[i].AsInt64()
			out[i] = strconv.FormatInt(n, 10)
		default:
			out[i], err = list[i].ToString()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("a script's reply: %w", err)
	}
	return out, nil
}

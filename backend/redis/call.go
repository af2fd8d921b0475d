package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// Call runs a script and returns its answer, each member as text, nil as ""; an answer that is no list has one
// member. A script that Redis does not have is sent whole, but for those of an incarnation: then the error is ErrRestarted.
func (c *Client) Call(ctx context.Context, script lua.Script, keys []string, args ...string) ([]string, error) {
	return CallOn(ctx, c, script, keys, args...)
}

// CallOn is Call over a connection that is held.
func CallOn(ctx context.Context, conn rueidis.CoreClient, script lua.Script, keys []string, args ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	r := conn.Do(ctx, conn.B().Evalsha().Sha1(script.SHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	if noScript(r) && !script.InIncarnation {
		r = conn.Do(ctx, conn.B().Eval().Script(script.Source).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	return Answer(r)
}

// Args is one call of several: they may be for different slots of a cluster.
type Args struct{ Keys, Args []string }

// CallAll runs a script of an incarnation once for each of calls, in one pipeline, and returns the answers in their order. An
// error may leave some of them done, so the calls must be idempotent.
func (c *Client) CallAll(ctx context.Context, script lua.Script, calls []Args) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands := make(rueidis.Commands, len(calls))
	for i, a := range calls {
		commands[i] = c.B().Evalsha().Sha1(script.SHA).Numkeys(int64(len(a.Keys))).Key(a.Keys...).Arg(a.Args...).Build()
	}
	answers := make([][]string, len(calls))
	for i, r := range c.DoMulti(ctx, commands...) {
		var err error
		if answers[i], err = Answer(r); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func noScript(r rueidis.RedisResult) bool {
	e, ok := rueidis.IsRedisErr(r.Error())
	return ok && e.IsNoScript()
}

// Answer reads what a script answered, as Call does.
func Answer(r rueidis.RedisResult) ([]string, error) {
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
	out := make([]string, len(list))
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
		return nil, fmt.Errorf("a script's answer: %w", err)
	}
	return out, nil
}

package reserve

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// Call runs a script and returns its answer, each member as text. A script that Redis does not know is sent whole.
func (s *Store) Call(ctx context.Context, script lua.Script, keys []string, args ...string) ([]string, error) {
	r, err := s.run(ctx, script, keys, args)
	if err != nil {
		return nil, err
	}
	return words(r)
}

// Args is one call of several: they may be for different slots of a cluster.
type Args struct{ Keys, Args []string }

// CallAll runs a script once for each of calls, in one pipeline, and returns the answers in their order. It is for
// the scripts of a life whose calls are idempotent: an error may leave some of them done.
func (s *Store) CallAll(ctx context.Context, script lua.Script, calls []Args) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = s.client.B().Evalsha().Sha1(script.SHA).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
	}
	answers := make([][]string, len(calls))
	for i, r := range s.client.DoMulti(ctx, commands...) {
		if e, ok := rueidis.IsRedisErr(r.Error()); ok && e.IsNoScript() {
			return nil, ErrRestarted
		}
		var err error
		if answers[i], err = words(r); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func words(r rueidis.RedisResult) ([]string, error) {
	list, err := r.ToArray()
	if err == nil && len(list) == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("a script's answer: %w", err)
	}
	out := make([]string, len(list))
	for i, m := range list {
		if !m.IsInt64() {
			if out[i], err = m.ToString(); err != nil {
				return nil, fmt.Errorf("a script's answer: %w", err)
			}
			continue
		}
		n, err := m.AsInt64()
		if err != nil {
			return nil, fmt.Errorf("a script's answer: %w", err)
		}
		out[i] = strconv.FormatInt(n, 10)
	}
	return out, nil
}

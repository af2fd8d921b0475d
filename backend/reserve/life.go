package reserve

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"floodgate.internal/lua"
)

// Armed reports whether every Redis node knows the reserve.lua of the life that is believed in: one that does not was started
// or has taken over since, and the gates of its sales must be closed before Arm.
func (s *Store) Armed(ctx context.Context) (bool, error) {
	l := s.Life()
	defer l.End()
	return l.Armed(ctx)
}

// Arm is a Life's, which is believed in then, whatever MySQL has, and the life's reduce.lua: for who is alone with this store.
func (s *Store) Arm(ctx context.Context) error {
	l := s.Life()
	defer l.End()
	name, err := l.Arm(ctx)
	if err != nil {
		return err
	}
	s.Believe(name)
	return l.Teach(ctx, lua.ReduceIn(name))
}

// Life is the present life of every Redis node, held by a connection to each: when one is restarted, everything fails.
// So a gate that was closed before an Arm that ends well was closed in the life that it names.
type Life struct {
	store *Store
	nodes []node
}

type node struct {
	addr string
	c    rueidis.DedicatedClient
	end  func()
}

// Life begins to hold; End must be called.
func (s *Store) Life() *Life {
	l := Life{store: s}
	for addr, n := range s.client.Nodes() {
		c, end := n.Dedicate()
		l.nodes = append(l.nodes, node{addr, c, end})
	}
	return &l
}

// End lets go.
func (l *Life) End() {
	for _, n := range l.nodes {
		n.end()
	}
}

// Armed is the Store's.
func (l *Life) Armed(ctx context.Context) (bool, error) {
	return l.Knows(ctx, l.store.life.Load().reserve)
}

// Knows reports whether every node knows a script.
func (l *Life) Knows(ctx context.Context, script lua.Script) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	all := true
	for _, n := range l.nodes {
		known, err := n.c.Do(ctx, n.c.B().ScriptExists().Sha1(script.SHA).Build()).AsIntSlice()
		if err != nil {
			return false, fmt.Errorf("redis %s: SCRIPT EXISTS: %w", n.addr, err)
		}
		all = all && known[0] == 1
	}
	return all, nil
}

// Arm gives this life a name that no other has, and loads its adopt.lua and then its reserve.lua into every node. Only for a
// reconciler, after it has closed the gate of every live sale. Nobody calls them before the life is believed in.
func (l *Life) Arm(ctx context.Context) (name string, err error) {
	name = uuid.NewString()
	if err := l.Teach(ctx, lua.AdoptIn(name)); err != nil {
		return "", err
	}
	return name, l.Teach(ctx, lua.ReserveIn(name))
}

// Teach loads a script into every node.
func (l *Life) Teach(ctx context.Context, script lua.Script) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for _, n := range l.nodes {
		if err := n.c.Do(ctx, n.c.B().ScriptLoad().Script(script.Source).Build()).Error(); err != nil {
			return fmt.Errorf("redis %s: SCRIPT LOAD: %w", n.addr, err)
		}
	}
	return nil
}

//go:build servers

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/e2e/world"
	"floodgate.internal/shared/ports"
)

// galeraNode is one of three MariaDBs that have every transaction. All nodes know all others' addresses.
type galeraNode struct {
	*stack.Servers
	members string // gcomm://...
}

// galeraCluster are the nodes. The backends use the first.
type galeraCluster []*galeraNode

const (
	galeraNodes   = 3
	galeraLibrary = "/usr/lib/galera/libgalera_smm.so"
	galeraAborts  = 5 // transactions that another node makes the written one abort, at least
	anywhere      = "00000000-0000-0000-0000-000000000000:-1"
)

// newGalera starts the nodes, one after the other.
func newGalera(t *testing.T, g *ground) (c galeraCluster) {
	t.Helper()
	scripts := filepath.Join(g.Dir, "galera-scripts")
	world.Must(t, writeCopyScript(scripts))
	free, err := ports.Free(3 * galeraNodes)
	world.Must(t, err)
	at := func(i int) string { return fmt.Sprint("127.0.0.1:", free[i]) }
	first := world.OpenServers(t, filepath.Join(g.Dir, "galera-1"))
	for i := range galeraNodes {
		n := &galeraNode{Servers: first, members: fmt.Sprintf("gcomm://%s,%s,%s", at(0), at(1), at(2))}
		if i > 0 {
			n.Servers, err = first.Sibling(filepath.Join(g.Dir, fmt.Sprint("galera-", i+1)))
			world.Must(t, err)
			world.KillAfter(t, n.Servers)
		}
		n.MySQL.With([]string{"PATH=" + scripts + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, []string{
			"--wsrep-on=ON", "--wsrep-provider=" + galeraLibrary, "--wsrep-cluster-name=floodgate", fmt.Sprint("--wsrep-node-name=node-", i+1), "--wsrep-node-address=" + at(i),
			fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://%s;ist.recv_addr=%s", at(i), at(galeraNodes+i)),
			"--wsrep-sst-receive-address=" + at(2*galeraNodes+i), "--wsrep-sst-method=" + copyMethod,
			"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", fmt.Sprint("--server-id=", i+1)}, nil)
		if i == 0 {
			world.Must(t, n.found(t.Context(), anywhere))
		} else {
			world.Must(t, n.join(t.Context(), anywhere))
		}
		c = append(c, n)
	}
	return c
}

// copyMethod is Debian's rsync, but that the files keep their owner: an rsync that root starts would write them as nobody's.
const copyMethod = "rsync_unchanged_user"

// writeCopyScript makes the script by which a node that is new gets the data of another.
func writeCopyScript(dir string) error {
	const packaged, before = "/usr/bin", "\nread only = no\n"
	b, err := os.ReadFile(filepath.Join(packaged, "wsrep_sst_rsync"))
	if err != nil {
		return err
	}
	if n := strings.Count(string(b), before); n != 1 {
		return fmt.Errorf("%s/wsrep_sst_rsync has %q %d times, not once", packaged, before, n)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(packaged, "wsrep_sst_common"), filepath.Join(dir, "wsrep_sst_common")); err != nil {
		return err
	}
	text := strings.Replace(string(b), before, fmt.Sprintf("%suid = %d\ngid = %d\n", before, os.Getuid(), os.Getgid()), 1)
	return os.WriteFile(filepath.Join(dir, "wsrep_sst_"+copyMethod), []byte(text), 0o755)
}

// found starts the node as the first of a cluster, and join as one of a cluster that runs. It has the data of that position, or asks its
// own data (anywhere).
func (n *galeraNode) found(ctx context.Context, position string) error {
	return n.start(ctx, "gcomm://", position)
}

func (n *galeraNode) join(ctx context.Context, position string) error {
	return n.start(ctx, n.members, position)
}

func (n *galeraNode) start(ctx context.Context, cluster, position string) error {
	n.MySQL.With(nil, []string{"--wsrep-cluster-address=" + cluster, "--wsrep-start-position=" + position}, nil) // the last counts
	if err := n.MySQL.Start(ctx); err != nil {
		return err
	}
	return world.Await(ctx, func(ctx context.Context) error { return n.says(ctx, "wsrep_local_state_comment", "Synced") })
}

// schema is the DSN of the system's schema on the node, past the system's link.
func (n *galeraNode) schema(s *trial) string {
	s.Helper()
	dsn, err := world.DSN(n.MySQLDSN(), s.w.Name)
	world.Must(s.T, err)
	return dsn
}

// status is one of the node's counters or states.
func (n *galeraNode) status(ctx context.Context, name string) (value string, err error) {
	err = ask(ctx, n.MySQLDSN(), "SHOW GLOBAL STATUS LIKE '"+name+"'", nil, new(string), &value)
	return value, err
}

func (n *galeraNode) says(ctx context.Context, name, want string) error {
	value, err := n.status(ctx, name)
	if err == nil && value != want {
		err = fmt.Errorf("%s is %s", name, value)
	}
	return err
}

// aborted is how many transactions the node has aborted for those of others.
func (n *galeraNode) aborted(ctx context.Context) (sum int, err error) {
	for _, name := range []string{"wsrep_local_bf_aborts", "wsrep_local_cert_failures"} {
		value, err := n.status(ctx, name)
		if err != nil {
			return 0, err
		}
		count, err := strconv.Atoi(value)
		if err != nil {
			return 0, err
		}
		sum += count
	}
	return sum, nil
}

var recovered = regexp.MustCompile(`Recovered position: ([0-9a-f-]+):(-?[0-9]+)`)

// position is up to where the data of a node goes that was killed.
func (n *galeraNode) position(ctx context.Context) (position string, number int, err error) {
	tables := filepath.Join(n.MySQL.DataDir(), "tables")
	args := []string{"--no-defaults", "--datadir=" + tables, "--tmpdir=" + n.MySQL.DataDir(), "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
		"--wsrep-on=ON", "--wsrep-provider=" + galeraLibrary, "--wsrep-cluster-address=gcomm://", "--skip-networking", "--socket=recover.sock", "--wsrep-recover"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	out, err := exec.CommandContext(ctx, stack.MariaDB(), args...).CombinedOutput()
	found := recovered.FindStringSubmatch(string(out))
	if err != nil || found == nil {
		return "", 0, fmt.Errorf("mariadbd --wsrep-recover: %w\n%s", err, out)
	}
	number, err = strconv.Atoi(found[2])
	return found[1] + ":" + found[2], number, err
}

// galera are a cluster of which one node is written to, behind an address of its own.
func galera(t *testing.T, g *ground) {
	c := newGalera(t, g)
	w := g.system(t, options{linked: true, mysql: c[0].Servers, batch: smallBatch})
	w.group(t, partMySQL,
		disorder{
			what: "galera: another node writes the same rows", injected: fmt.Sprintf("UPDATEs of the stock row on another node, until %d transactions or more were aborted for them", galeraAborts), twice: true,
			strike: func(s *trial) { c.conflict(s) },
			heal:   func(*trial) {},
		},
		disorder{
			what: "galera: a node dies that nobody uses", injected: "SIGKILL", twice: true,
			strike: func(s *trial) { world.Must(s.T, c[2].MySQL.Kill(s.ctx)); s.lasts() },
			heal:   func(s *trial) { world.Must(s.T, c[2].join(s.ctx, anywhere)) },
		},
		disorder{
			what: "galera: the written node is left alone", injected: "SIGKILL of both others; it refuses every statement (1047) until it is told to be the cluster", twice: true,
			strike: func(s *trial) {
				world.Must(s.T, c[1].MySQL.Kill(s.ctx))
				world.Must(s.T, c[2].MySQL.Kill(s.ctx))
				s.until("it is left alone", func(ctx context.Context) error { return c[0].says(ctx, "wsrep_cluster_status", "non-Primary") })
				if err := ask(s.ctx, c[0].schema(s), "SELECT COUNT(*) FROM orders", nil, new(int)); !refusedBy(err, 1047) {
					s.Errorf("it answers %v, not 1047", err)
				}
				s.lasts()
			},
			heal: func(s *trial) {
				on(s.T, s.ctx, c[0].MySQLDSN(), "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
				world.Must(s.T, c[1].join(s.ctx, anywhere))
				world.Must(s.T, c[2].join(s.ctx, anywhere))
			},
		},
		disorder{
			what: "galera: the written node dies", injected: "SIGKILL; another is written to", twice: true,
			strike: func(s *trial) {
				world.Must(s.T, c[0].MySQL.Kill(s.ctx))
				c[0], c[1] = c[1], c[0]
				s.moved(address(s.T, c[0].Servers), c[0].schema(s))
				s.nothingForgotten()
			},
			heal: func(s *trial) { world.Must(s.T, c[1].join(s.ctx, anywhere)) },
		},
		disorder{
			what: "galera: all nodes die", injected: "SIGKILL of each within a second; the one that has the most begins a new cluster", twice: true,
			strike: func(s *trial) {
				for _, n := range slices.Backward(c) {
					world.Must(s.T, n.MySQL.Kill(s.ctx))
				}
			},
			heal: func(s *trial) { c.revive(s) },
		},
	)
	w.drained(t)
}

// refusedBy reports whether MySQL answered with that error.
func refusedBy(err error, number uint16) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == number
}

// conflict changes the sale's stock row on a node that the backends do not use, as they change it on theirs.
func (c galeraCluster) conflict(s *trial) {
	s.Helper()
	before, err := c[0].aborted(s.ctx)
	world.Must(s.T, err)
	db, err := world.OpenMySQL(c[1].schema(s))
	world.Must(s.T, err)
	defer db.Close()
	stop := make(chan struct{})
	var writer errgroup.Group
	writer.Go(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if _, err := db.ExecContext(s.ctx, "UPDATE sale_stock SET version = version + 1 WHERE sale_id = ?", s.sale); err != nil && !refusedBy(err, 1213) {
				return err
			}
		}
	})
	s.until("transactions are aborted", func(ctx context.Context) error {
		n, err := c[0].aborted(ctx)
		if err == nil && n < before+galeraAborts {
			err = fmt.Errorf("%d so far", n-before)
		}
		return err
	})
	close(stop)
	world.Must(s.T, writer.Wait())
}

// revive makes a cluster of nodes that were all killed. The one that has the most is written to from then on.
func (c galeraCluster) revive(s *trial) {
	s.Helper()
	positions := map[*galeraNode]string{}
	numbers := map[*galeraNode]int{}
	for _, n := range c {
		position, number, err := n.position(s.ctx)
		world.Must(s.T, err)
		positions[n], numbers[n] = position, number
	}
	s.Logf("the nodes are at %d, %d and %d", numbers[c[0]], numbers[c[1]], numbers[c[2]])
	slices.SortStableFunc(c, func(a, b *galeraNode) int { return numbers[b] - numbers[a] })
	state := filepath.Join(c[0].MySQL.DataDir(), "tables", "grastate.dat")
	b, err := os.ReadFile(state)
	world.Must(s.T, err)
	world.Must(s.T, os.WriteFile(state, bytes.Replace(b, []byte("safe_to_bootstrap: 0"), []byte("safe_to_bootstrap: 1"), 1), 0o600))
	for i, n := range c {
		begin := n.join
		if i == 0 {
			begin = n.found
		}
		world.Must(s.T, begin(s.ctx, positions[n]))
	}
	s.moved(address(s.T, c[0].Servers), c[0].schema(s))
	s.nothingForgotten()
}

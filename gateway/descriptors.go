package gateway

import (
	"fmt"
	"sort"
	"syscall"

	"floodgate.internal/gateway/edge"
)

// reservedFiles is the descriptors for all but the public's connections and those to the backends: listeners, operators'
// connections, the configuration, its watcher, the log, and the files that another process inherits.
const reservedFiles = 64

// leastConnections is the fewest connections with which a gateway starts, where the file asks for as many.
const leastConnections = 32

// openFiles raises the limit on open files to the most that this process may have, and returns it.
func openFiles() (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("read the limit on open files: %w", err)
	}
	if files.Cur < files.Max {
		raised := syscall.Rlimit{Cur: files.Max, Max: files.Max}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil { // else the soft limit is what there is
			files = raised
		}
	}
	return int(min(files.Cur, 1<<30)), nil
}

// filesOf is the open files that n connections may need: their own, those of refused ones that are left to read their answer, those
// to the backends, and the reserve. A request at a backend is a connection's, but for those of the gateway itself: feed, records,
// checks, and pages that are fetched behind the scenes.
func (c *Config) filesOf(n, closing int) int {
	own := 4 + 2*len(c.Backends)
	if len(c.Listen.TLS.Certificates) > 0 || c.Listen.ProxyProtocol {
		own += edge.MaxRefusing
	}
	return n + closing + min(c.Upstream.MaxInFlight+c.Upstream.MaxWaiting, n) + own + reservedFiles
}

// fewerClosing is how many refused connections are left to read their answer where open files are short.
func fewerClosing(n int) int { return min(edge.MaxClosing, max(16, n/8)) }

// fitFiles returns the bound on connections, and on refused ones that are left to read their answer, that fit into so many open
// files. Fewer than leastConnections are an
// error, where c asks for more.
func (c *Config) fitFiles(limit int) (connections, closing int, err error) {
	want := c.Server.MaxConnections
	needed := c.filesOf(want, edge.MaxClosing)
	if needed <= limit {
		return want, edge.MaxClosing, nil
	}
	fit := min(want, sort.Search(want+1, func(n int) bool { return c.filesOf(n, fewerClosing(n)) > limit })-1)
	if fit < min(leastConnections, want) {
		return 0, 0, fmt.Errorf("server.max_connections: %d may need %d open files in all, the system allows this process %d, and they suffice for %d: "+
			"raise the limit (ulimit -Hn, LimitNOFILE=)", want, needed, limit, max(0, fit))
	}
	return fit, fewerClosing(fit), nil
}

// fit is fitFiles with the limit that the process has, and a warning where the bound is lowered.
func (r *process) fit(c Config) (edge.Bounds, error) {
	limit, err := openFiles()
	if err != nil {
		return edge.Bounds{}, err
	}
	connections, closing, err := c.fitFiles(limit)
	if err != nil {
		return edge.Bounds{}, err
	}
	if connections < c.Server.MaxConnections {
		r.log.Warn("the limit on open files does not suffice for server.max_connections: fewer are taken", "max_connections", c.Server.MaxConnections,
			"taken", connections, "open_files", limit, "needed", c.filesOf(c.Server.MaxConnections, edge.MaxClosing))
	}
	return edge.Bounds{Max: connections, Closing: closing, PerAddress: c.Server.MaxConnectionsPerIP, BodyMemory: c.Server.MaxBodyMemory}, nil
}

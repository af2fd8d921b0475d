package bench

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/stack"
)

const (
	spareFiles  = 2000 // of this process and of the gateway, for anything but connections
	settling    = 3    // windows until what was left to do of the new sales is done, and looks at them have become rare
	idleWindows = 3
)

// connections is what an idle keep-alive connection costs in the gateway: resident memory, after a page and an order that was refused.
func (b *bench) connections(ctx context.Context) error {
	n, fewer := b.Connections, ""
	// One end of each is this process's, one the gateway's, which inherits the limit.
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	if want := uint64(n + spareFiles); files.Max < want {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: want, Max: want}); err != nil { // only root may
			n = int(files.Max) - spareFiles
			fewer = fmt.Sprintf(": this machine allows a process %d open files", files.Max)
		}
	}
	stand := Peer{Kind: backend, Sales: sampleSales()}
	if _, err := b.peer(ctx, "idle-backend-peer", &stand, b.start); err != nil {
		return err
	}
	gate, public, tokens, err := b.startGateway(ctx, "idle-gateway", stand.Listen, "", "server: {max_connections: 40000, max_connections_per_ip: 40000, idle_timeout: 10m}\nupstream: {max_in_flight: 64, max_waiting: 64}\n")
	if err != nil {
		return err
	}
	page := []byte("GET /v1/sales HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n\r\n")
	order := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: shop.example\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"quantity\":1}", ordersPath(goneSale), tokens[0])
	in := bufio.NewReaderSize(nil, 16<<10)
	visit := func() (net.Conn, error) {
		conn, err := net.Dial("tcp", public)
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return conn, err
		}
		in.Reset(conn)
		for request, status := range map[string]int{string(page): 200, string(order): 409} {
			if _, err := conn.Write([]byte(request)); err != nil {
				return conn, err
			}
			var answer fasthttp.Response
			if err := answer.Read(in); err != nil {
				return conn, err
			}
			if answer.StatusCode() != status {
				return conn, fmt.Errorf("answered %d, not %d: %.300s", answer.StatusCode(), status, answer.Body())
			}
		}
		return conn, nil
	}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.(*net.TCPConn).SetLinger(0) // so that no port waits
			_ = c.Close()
		}
	}()
	var before int64
	for i := range n + 1 {
		conn, err := visit()
		if conn != nil {
			open = append(open, conn)
		}
		if err != nil {
			return fmt.Errorf("connection %d: %w", i+1, err)
		}
		if i == 0 { // all that is made once is there
			if before, err = b.settledMemory(ctx, gate.PID()); err != nil {
				return err
			}
		}
	}
	after, err := b.settledMemory(ctx, gate.PID())
	if err != nil {
		return err
	}
	b.plain(Row{What: fmt.Sprintf("an idle keep-alive connection, one of %d", n), Goal: 8, Limit: AtMost, Unit: "KiB resident",
		Unequal: "after a page and a refused order each; the kernel's own memory for sockets is not in it" + fewer}, float64(after-before)/1024/float64(n))
	return nil
}

// settledMemory is the resident memory of a process once it has not changed by a hundredth in three looks, or after twenty, with a fifth of
// a window between them.
func (b *bench) settledMemory(ctx context.Context, pid int) (bytes int64, err error) {
	same := 0
	for range 20 {
		now, err := residentMemory(pid)
		if err != nil {
			return 0, err
		}
		if d := now - bytes; max(d, -d) <= now/100 {
			same++
		} else {
			same = 0
		}
		if bytes = now; same == 3 {
			break
		}
		if err := rest(ctx, b.Window/5); err != nil {
			return 0, err
		}
	}
	return bytes, nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

var residentLine = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

func residentMemory(pid int) (int64, error) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	m := residentLine.FindSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("process %d: no resident memory in its status", pid)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kib * 1024, err
}

// idle is what the system costs while nobody comes: Redis and a backend with every role, with a gateway that follows its feed.
func (b *bench) idle(ctx context.Context) error {
	s := &shop{bench: b}
	var err error
	if s.redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{b.Redis}, DisableCache: true, ForceSingleClient: true}); err != nil {
		return err
	}
	defer s.redis.Close()
	process, at, err := s.run(ctx, "resting", "api,relay,consumer,timer")
	if err != nil {
		return err
	}
	db, err := sql.Open("mysql", b.MySQL)
	if err != nil {
		return err
	}
	defer db.Close()
	live := 0 // that another part has left
	if err := db.QueryRowContext(ctx, `SELECT COUNT(*) FROM sales WHERE archived_at IS NULL`).Scan(&live); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(lanes)
	for i := range b.Sales - live {
		g.Go(func() error {
			_, err := at.create(ctx, fmt.Sprintf("Resting %d", i), 100)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	b.Progress("%d sales are open", b.Sales)
	if _, _, _, err := b.startGateway(ctx, "resting-gateway", at.internal, "", ""); err != nil {
		return err
	}
	var redis, backend, asked []float64
	for window := range settling + idleWindows {
		began := time.Now()
		before, err := s.usage(ctx, process)
		if err != nil {
			return err
		}
		if err := rest(ctx, 2*s.Window); err != nil { // twice, since some is done each 10 s
			return err
		}
		after, err := s.usage(ctx, process)
		if err != nil {
			return err
		}
		if took := time.Since(began).Seconds(); window >= settling {
			redis, backend = append(redis, 100*(after.redis-before.redis)/took), append(backend, 100*(after.process-before.process)/took)
			asked = append(asked, (after.commands-before.commands)/took)
		}
	}
	what := fmt.Sprintf("idle, %d open sales, a gateway follows: ", b.Sales)
	b.plain(Row{What: what + "Redis", Goal: 2, Limit: AtMost, Unit: "% of a core", Unequal: "Redis's own accounting (INFO cpu)"}, redis...)
	b.plain(Row{What: what + "the backend with every role", Goal: 5, Limit: AtMost, Unit: "% of a core"}, backend...)
	b.plain(Row{What: what + "commands that Redis gets", Goal: 1000, Limit: AtMost, Unit: "a second"}, asked...)
	return process.Stop(ctx)
}

// spent is what Redis and a process have used since they began: seconds of CPU time, and Redis's commands.
type spent struct{ redis, process, commands float64 }

func (s *shop) usage(ctx context.Context, p *stack.Process) (u spent, err error) {
	into := map[string]*float64{"used_cpu_sys": &u.redis, "used_cpu_user": &u.redis, "total_commands_processed": &u.commands}
	found := 0
	for _, section := range []string{"cpu", "stats"} {
		info, err := s.redis.Do(ctx, s.redis.B().Info().Section(section).Build()).ToString()
		if err != nil {
			return u, err
		}
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if sum := into[name]; sum != nil {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return u, fmt.Errorf("INFO %s: %s: %w", section, line, err)
				}
				*sum, found = *sum+v, found+1
			}
		}
	}
	if found != len(into) {
		return u, fmt.Errorf("INFO cpu and stats have %d of %d figures", found, len(into))
	}
	cpu, err := cpuOf(p.PID())
	u.process = cpu.Seconds()
	return u, err
}

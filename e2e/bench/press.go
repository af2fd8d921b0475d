package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"floodgate.internal/e2e/stack"
)

// side is one of the programs that are compared.
type side struct {
	process  *stack.Process
	addr     string
	status   int                  // that every request is answered with
	requests func(n int) [][]byte // the next n
}

// the same requests over and over.
func always(requests ...[]byte) func(n int) [][]byte {
	return func(n int) [][]byte {
		all := make([][]byte, n)
		for i := range all {
			all[i] = requests[i%len(requests)]
		}
		return all
	}
}

// lanes is how many connections ask at once, one request at a time each. Requests that repeat after so many are the same ones on
// each connection.
const lanes = 16

// cpuOfEach asks every side in turn, n requests a round, and returns what a request cost each in each round, in microseconds of its
// process's CPU time, and load, what one cost this process. The first round is not counted: it opens the connections and fills caches.
func (b *bench) cpuOfEach(ctx context.Context, n int, sides ...side) (costs [][]float64, load float64, err error) {
	crowds := make([]*crowd, len(sides))
	for i, s := range sides {
		crowds[i] = &crowd{addr: s.addr}
		defer crowds[i].close()
	}
	costs = make([][]float64, len(sides))
	var spent time.Duration
	for round := range b.Rounds + 1 {
		for i, s := range sides {
			requests := s.requests(n)
			pid := s.process.PID()
			before, err := cpuOf(pid)
			if err != nil {
				return nil, 0, err
			}
			mine, err := cpuOf(os.Getpid())
			if err != nil {
				return nil, 0, err
			}
			if err := crowds[i].press(ctx, requests, s.status); err != nil {
				return nil, 0, fmt.Errorf("%s: %w", s.process.Name(), err)
			}
			since, err := cpuOf(os.Getpid())
			if err != nil {
				return nil, 0, err
			}
			after, err := cpuOf(pid)
			if err != nil {
				return nil, 0, err
			}
			if round > 0 {
				spent += since - mine
				costs[i] = append(costs[i], float64((after-before).Nanoseconds())/float64(n)/1000)
			}
		}
	}
	return costs, float64(spent.Nanoseconds()) / float64(b.Rounds*len(sides)*n) / 1000, nil
}

// cpuOf is the CPU time that a process has used, all its threads together: its own accounting, by clock_getcpuclockid(3)'s clock.
func cpuOf(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED, of the whole process
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, fmt.Errorf("the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// crowd is clients of one address, who keep their connections.
type crowd struct {
	addr  string
	conns []net.Conn
	ins   []*bufio.Reader
}

// press sends requests over the lanes and reads the answers; one with another status is an error.
func (c *crowd) press(ctx context.Context, requests [][]byte, status int) error {
	for len(c.conns) < lanes {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			return err
		}
		c.conns, c.ins = append(c.conns, conn), append(c.ins, bufio.NewReader(conn))
	}
	deadline := time.Now().Add(time.Minute)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	var g errgroup.Group
	for lane, conn := range c.conns {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		g.Go(func() error {
			var answer fasthttp.Response
			for i := lane; i < len(requests); i += lanes {
				if _, err := conn.Write(requests[i]); err != nil {
					return err
				}
				if err := answer.Read(c.ins[lane]); err != nil {
					return err
				}
				if answer.StatusCode() != status {
					return fmt.Errorf("answered %d, not %d: %.300s", answer.StatusCode(), status, answer.Body())
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// ask sends one request and returns the answer.
func (c *crowd) ask(request []byte) (*fasthttp.Response, error) {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	var answer fasthttp.Response
	return &answer, answer.Read(bufio.NewReader(conn))
}

func (c *crowd) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

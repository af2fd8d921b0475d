package ports

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// TestPortIsHeldAcrossProcesses: while another process holds a port, though nobody listens on it, it is given to nobody here.
func TestPortIsHeldAcrossProcesses(t *testing.T) {
	if os.Getenv("FLOODGATE_HOLDS_A_PORT") != "" { // the other process
		ports, err := Free(1)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString(strconv.Itoa(ports[0]) + "\n")
		io.Copy(io.Discard, os.Stdin)
		return
	}
	other := exec.Command(os.Args[0], "-test.run=^TestPortIsHeldAcrossProcesses$")
	other.Env = append(os.Environ(), "FLOODGATE_HOLDS_A_PORT=1")
	other.Stderr = os.Stderr
	hold, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	port, err := strconv.Atoi(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Hold(port); err != nil || got {
		t.Errorf("port %d, which another process holds: got %v, %v; want false", port, got, err)
	}
	hold.Close()
	io.Copy(io.Discard, out)
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := Hold(port); err != nil || !got {
		t.Errorf("port %d, whose holder has ended: got %v, %v; want true", port, got, err)
	}
	if got, err := Hold(port); err != nil || got {
		t.Errorf("port %d, which this process holds: got %v, %v; want false", port, got, err)
	}
}

// TestWhoListensHasItsPort: an address is taken while somebody listens there, by IPv4, by IPv6, or everywhere.
func TestWhoListensHasItsPort(t *testing.T) {
	for listen, asked := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "::1", "": "127.0.0.1"} {
		port := strconv.Itoa(mustFree(t, 1)[0])
		l, err := net.Listen("tcp", net.JoinHostPort(listen, port))
		if err != nil && listen == "::1" {
			t.Logf("there is no IPv6: %v", err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !Taken(net.JoinHostPort(asked, port)) {
			t.Errorf("%q listens on port %s, and it is said to be free", listen, port)
		}
		l.Close()
		if Taken(net.JoinHostPort(asked, port)) {
			t.Errorf("nobody listens on port %s, and it is said to be taken", port)
		}
	}
}

// TestLookingAtAPortDoesNotTakeIt: who starts a server after Taken said that its port is free finds it free, although children are
// started all the time. A socket that Taken opened would live on in a child until its exec is over.
func TestLookingAtAPortDoesNotTakeIt(t *testing.T) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(mustFree(t, 1)[0]))
	ctx, stop := context.WithCancel(t.Context())
	var children sync.WaitGroup
	for range 4 {
		children.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 300 {
		if Taken(addr) {
			t.Error("it is taken, and nobody listens")
			break
		}
		func() { // waits for forks that are under way, as whoever starts the server does
			syscall.ForkLock.Lock()
			defer syscall.ForkLock.Unlock()
		}()
		if Taken(addr) {
			t.Error("somebody listens after it was looked at")
			break
		}
	}
	stop()
	children.Wait()
}

// TestFreePortsDiffer: what was given once is not given again.
func TestFreePortsDiffer(t *testing.T) {
	var all []int
	for range 20 {
		all = append(all, mustFree(t, 10)...)
	}
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 200 {
		t.Errorf("got %d different ports, want 200", n)
	}
}

func mustFree(t *testing.T, n int) []int {
	t.Helper()
	got, err := Free(n)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

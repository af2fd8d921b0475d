package gateway

import (
	"bufio"
	"net"
	"syscall"
	"testing"
	"time"
)

// While it delays its end the gateway is not ready, and takes connections as before. A second signal ends the delay.
func TestShutdownDelay(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with("server: {", "server: {shutdown_delay: 10m, "))
	g.cancel()
	g.log.await(t, "still accepting")
	if a := g.do("GET", "http://"+g.ops+"/-/ready"); a.code != 503 {
		t.Errorf("got %v, want it not ready", a)
	}
	for range 3 {
		c := g.raw()
		if status, last, err := askOn(c, bufio.NewReader(c), timeRequest); status != 200 || last || err != nil {
			t.Errorf("got %d, last: %v, %v", status, last, err)
		}
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil { // it is caught as long as the delay lasts
		t.Fatal(err)
	}
	select {
	case err := <-g.done:
		g.done <- err
	case <-time.After(patience):
		t.Fatal("a second signal does not end the delay")
	}
	if c, err := net.Dial("tcp", g.public); err == nil {
		c.Close()
		t.Error("it still accepts")
	}
}

// A delay ends by itself.
func TestShutdownDelayEnds(t *testing.T) {
	p := newPeer(t)
	g := run(t, []string{p.addr}, with("server: {", "server: {shutdown_delay: 1ms, "))
	g.cancel()
	g.log.await(t, "msg=stopped")
}

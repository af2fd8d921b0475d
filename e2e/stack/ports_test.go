package stack

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestPortIsHeldAcrossProcesses: while another process holds a port, though nobody listens on it, it is given to nobody here.
func TestPortIsHeldAcrossProcesses(t *testing.T) {
	if os.Getenv("FLOODGATE_HOLDS_A_PORT") != "" { // the other process
		ports, err := FreePorts(1)
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
	if got, err := holdPort(port); err != nil || got {
		t.Errorf("port %d, which another process holds: got %v, %v; want false", port, got, err)
	}
	hold.Close()
	io.Copy(io.Discard, out)
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := holdPort(port); err != nil || !got {
		t.Errorf("port %d, whose holder has ended: got %v, %v; want true", port, got, err)
	}
	if got, err := holdPort(port); err != nil || got {
		t.Errorf("port %d, which this process holds: got %v, %v; want false", port, got, err)
	}
}

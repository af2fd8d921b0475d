package ports

import (
	"fmt"
	"net"
	"strconv"
	"sync"
)

// held are the names that hold ports, one for each port that this process has chosen. They are kept so that none is collected, which
// would close it.
var held struct {
	mu    sync.Mutex // guards names
	names map[int]net.PacketConn
}

// hold holds a port by an abstract socket name. The kernel keeps those in the same namespace as the ports, gives each to one process
// alone, whoever runs it, and takes it back when the process ends. syscall.EADDRINUSE is the error where somebody has it.
func hold(port int) (release func(), err error) {
	held.mu.Lock()
	defer held.mu.Unlock()
	name, err := net.ListenPacket("unixgram", "@floodgate-port-"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("hold port %d: %w", port, err)
	}
	if held.names == nil {
		held.names = map[int]net.PacketConn{}
	}
	held.names[port] = name
	return func() {
		held.mu.Lock()
		defer held.mu.Unlock()
		delete(held.names, port)
		name.Close()
	}, nil
}

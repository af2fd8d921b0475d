//go:build !linux

package ports

import (
	"fmt"
	"sync"
	"syscall"
)

var held struct {
	mu    sync.Mutex // guards ports
	ports map[int]bool
}

// hold holds a port within this process alone: the launcher of real servers, and its tests, need Linux.
func hold(port int) (release func(), err error) {
	held.mu.Lock()
	defer held.mu.Unlock()
	if held.ports[port] {
		return nil, fmt.Errorf("hold port %d: %w", port, syscall.EADDRINUSE)
	}
	if held.ports == nil {
		held.ports = map[int]bool{}
	}
	held.ports[port] = true
	return func() {
		held.mu.Lock()
		defer held.mu.Unlock()
		delete(held.ports, port)
	}, nil
}

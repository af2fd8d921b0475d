package edge

import (
	"io"
	"net"
	"syscall"
)

// writeNow writes what the system takes of b without waiting.
func writeNow(c net.Conn, b []byte) (n int, err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return c.Write(b)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno error
	if err := raw.Write(func(fd uintptr) bool {
		n, errno = syscall.Write(int(fd), b)
		return true
	}); err != nil {
		return 0, err
	}
	if n = max(n, 0); errno == nil && n < len(b) {
		errno = io.ErrShortWrite
	}
	return n, errno
}

//go:build !failpoint

package failpoint

import "net"

// Enabled reports whether this binary has failpoints.
const Enabled = false

// Hit ends the process here, if this point is the one that was named.
func Hit(string) {}

// Halfway writes the first half of b to c and then is Hit.
func Halfway(string, net.Conn, []byte) {}

// Sent returns c. Its writes that match are followed by Hit: what was written is on its way, and no answer was read.
func Sent(_ string, c net.Conn, _ func([]byte) bool) net.Conn { return c }

// Wrote is Hit where b, which was just written to a connection, holds needle.
func Wrote(string, []byte, string) {}

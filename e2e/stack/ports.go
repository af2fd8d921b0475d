package stack

import (
	"strconv"

	"floodgate.internal/shared/ports"
)

// FreePorts is ports.Free, for those who start servers.
func FreePorts(n int) ([]int, error) { return ports.Free(n) }

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

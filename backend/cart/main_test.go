//go:build servers

package cart

import (
	"testing"

	"go.uber.org/goleak"
)

// A client of a Redis Cluster that has seen its nodes change closes the connections to those that went 5 s later.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

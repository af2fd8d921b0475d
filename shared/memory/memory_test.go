package memory

import (
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const child = "FLOODGATE_TEST_MEMORY"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		Limit(slog.New(slog.NewTextHandler(os.Stdout, nil)))
		os.Stdout.WriteString(strconv.FormatInt(debug.SetMemoryLimit(-1), 10))
		return
	}
	os.Exit(m.Run())
}

// A process has nine tenths of its group's limit, and what GOMEMLIMIT says where that is set; it logs nothing.
func TestLimit(t *testing.T) {
	want := int64(math.MaxInt64)
	if group, err := memlimit.FromCgroup(); err == nil {
		want = int64(float64(group) * 0.9)
	}
	for _, c := range []struct {
		env  string
		want int64
	}{{"", want}, {"GOMEMLIMIT=123MiB", 123 << 20}} {
		cmd := exec.Command(os.Args[0])
		for _, e := range append(os.Environ(), child+"=1", c.env) {
			if c.env != "" || !strings.HasPrefix(e, "GOMEMLIMIT=") {
				cmd.Env = append(cmd.Env, e)
			}
		}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != strconv.FormatInt(c.want, 10) {
			t.Errorf("%q: got %s, %v; want %d", c.env, out, err, c.want)
		}
	}
}

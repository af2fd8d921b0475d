package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// memory is what a refusal allocates, and what a remembered user costs, by the limiter's own benchmark: in a process that holds nothing else.
func (b *bench) memory(ctx context.Context) error {
	if err := b.allocations(ctx); err != nil {
		return err
	}
	const nginxs = 128 // bytes of a state of limit_req on 64-bit platforms, by nginx's documentation
	m, err := b.goBench(ctx, "./gateway/limit", "Memory$")
	if err != nil {
		return err
	}
	b.add(Row{What: "live heap for each user and rule, 1,000,000 users", Against: "the 128 bytes of nginx's limit_req", Goal: 200.0 / nginxs, Limit: AtMost, Unit: "bytes", Unequal: "nginx's shared memory, by its documentation, has no index of the user in it"}, []float64{m["B/key"]}, []float64{nginxs})
	b.add(Row{What: "the same, after ten times as many users", Against: "before them", Goal: 1.1, Limit: AtMost, Unit: "bytes"}, []float64{m["B/key-rotated"]}, []float64{m["B/key"]})
	return nil
}

// allocations is what a refusal allocates: the most of all kinds, by the test that asserts it.
func (b *bench) allocations(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "^TestRefusalsDoNotAllocate$", "./gateway/edge")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	m := mostAllocations.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s: no figure in\n%s", strings.Join(cmd.Args, " "), out)
	}
	most, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return err
	}
	b.plain(Row{What: "an order refused, by the gate or a limit", Goal: 0, Limit: AtMost, Unit: "allocations", Unequal: "but for carts, JSON bodies and pages; asserted by TestRefusalsDoNotAllocate"}, most)
	return nil
}

// mostAllocations is the line of TestRefusalsDoNotAllocate.
var mostAllocations = regexp.MustCompile(`at most ([0-9.]+) allocations a request`)

// overload is what a backend that is asked ten times what it can do does, by the gateway's own benchmark.
func (b *bench) overload(ctx context.Context) error {
	m, err := b.goBench(ctx, "./gateway", "Overload/^10x$")
	if err != nil {
		return err
	}
	b.add(Row{What: "goodput at ten times the backend's capacity", Against: "its own peak", Goal: 0.9, Limit: AtLeast, Unit: "requests/s", Unequal: "the backend is a stand-in with a fixed capacity"}, []float64{m["goodput/s"]}, []float64{m["peak/s"]})
	return nil
}

// goBench runs one benchmark of the checkout once, and returns its figures by their units.
func (b *bench) goBench(ctx context.Context, pkg, name string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", name, "-benchtime", "1x", "-timeout", "10m", pkg)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.Bytes())
	}
	m, err := figures(out)
	if err != nil {
		return nil, fmt.Errorf("%s: %w in\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return m, nil
}

// figures reads the one result of a benchmark's output: its name, how often it ran, and pairs of a value and its unit.
func figures(out []byte) (map[string]float64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		m := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, err
			}
			m[fields[i+1]] = v
		}
		return m, nil
	}
	return nil, errors.New("there is no result")
}

package rehearse

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"floodgate.internal/e2e/stack"
)

// load is the processor time that the machine spent while the crowd was there, over all processors.
type load struct {
	Passed time.Duration // of all processors, idle or not
	Busy   time.Duration
	Crowd  time.Duration // part of Busy: this process
	System time.Duration // part of Busy: backend, gateway and the servers, but for a second at most before each death
}

// measure counts until ctx ends.
func (r *rehearsal) measure(ctx context.Context) (l load, err error) {
	servers := r.system.Servers
	processes := []*stack.Process{servers.Redis, servers.RabbitMQ, servers.MySQL, r.system.Backend, r.system.Gateway}
	last := map[int]time.Duration{} // by process id
	look := func() {
		for _, p := range processes {
			used, pid := p.CPU()
			l.System += used - last[pid]
			last[pid] = used
		}
	}
	passed, busy, err := machine()
	if err != nil {
		return load{}, err
	}
	crowd := own()
	look()
	l.System = 0 // what was before
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		look()
	}
	passedNow, busyNow, err := machine()
	l.Passed, l.Busy, l.Crowd = passedNow-passed, busyNow-busy, own()-crowd
	return l, err
}

// machine is the processor time since the machine's start, and the part that was spent by anybody, its host included.
func machine() (passed, busy time.Duration, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal ...
	if len(f) < 9 {
		return 0, 0, fmt.Errorf("/proc/stat: unknown form: %q", line)
	}
	if passed, err = stack.Ticks(f[1:9]); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	idle, err := stack.Ticks(f[4:6])
	return passed, passed - idle, err
}

// own is the processor time of this process.
func own() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("BUG: getrusage: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// others is the part of Busy that neither the crowd nor the system had.
func (l load) others() time.Duration { return max(l.Busy-l.Crowd-l.System, 0) }

// Words is whose time it was.
func (l load) Words() string {
	part := func(d time.Duration) string { return fmt.Sprintf("%.0f %%", 100*float64(d)/float64(max(l.Passed, 1))) }
	return fmt.Sprintf("The processors were busy %s of the time: the crowd %s, the system %s, other programs %s.",
		part(l.Busy), part(l.Crowd), part(l.System), part(l.others()))
}

// Bound says what kept the sale from promising more, or sooner.
func (r *Result) Bound() string {
	told, times := r.crowd.total()
	took, queued := r.crowd.spent()
	presses := 0
	for _, n := range told {
		presses += n
	}
	if presses == 0 {
		return "The crowd: nobody pressed."
	}
	took, queued = took/time.Duration(presses), queued/time.Duration(presses)
	for _, u := range r.Units {
		if u.Available == 0 && u.At > 0 {
			return fmt.Sprintf("The stock: every unit was taken %s after the start. Of the %s of a press, %s were spent waiting for one of the crowd's %d connections.", brief(u.At), brief(took), brief(queued), connections)
		}
	}
	switch {
	case queued > took/2 && took > time.Second:
		return fmt.Sprintf("The crowd, not the system: of the %s of a press, %s were spent waiting for one of the crowd's %d connections. Come with fewer shoppers, for longer, or on a machine with less to do.",
			brief(took), brief(queued), connections)
	case told[limited]+told[busy]+told[silent] > presses/2:
		return fmt.Sprintf("Refusals: %d of %d presses were too fast, refused as busy or not answered.", told[limited]+told[busy]+told[silent], presses)
	case times.quantile(0.5) > time.Second && r.Load.others() > r.Load.Passed/2:
		return "The machine: other programs had most of its processors."
	case times.quantile(0.5) > time.Second:
		return fmt.Sprintf("The system: half of the presses took longer than %s.", brief(times.quantile(0.5)))
	}
	return "The crowd: fewer wanted a unit than there were."
}

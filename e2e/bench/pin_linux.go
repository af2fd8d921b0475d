package bench

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// cores are those that this process may run on.
func cores() (all []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	for c := 0; len(all) < set.Count(); c++ {
		if set.IsSet(c) {
			all = append(all, c)
		}
	}
	return all, nil
}

func maskOf(cores []int) (set unix.CPUSet) {
	for _, c := range cores {
		set.Set(c)
	}
	return set
}

// on does something on a thread that is bound to cores. A process that it starts has the thread's cores.
func on(cores []int, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		set := maskOf(cores)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

// bind binds every thread of this process to cores. Those to come have the mask of one that is there, so it looks until it finds none
// that is not bound.
func bind(cores []int) error {
	set := maskOf(cores)
	for again := true; again; {
		again = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return err
			}
			var now unix.CPUSet
			if err := unix.SchedGetaffinity(id, &now); err == unix.ESRCH || err == nil && now == set {
				continue
			}
			again = true
			if err := unix.SchedSetaffinity(id, &set); err != nil && err != unix.ESRCH {
				return err
			}
		}
	}
	return nil
}

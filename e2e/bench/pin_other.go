//go:build !linux

package bench

// cores is empty: processes are bound to cores on Linux alone.
func cores() ([]int, error) { return nil, nil }

func on([]int, func() error) error { panic("BUG: there are no cores to bind to") }

func bind([]int) error { panic("BUG: there are no cores to bind to") }

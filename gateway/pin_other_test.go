//go:build !linux

package gateway

// halves is two empty halves: processes are bound to cores on Linux alone.
func halves() (first, second []int) { return nil, nil }

func on([]int, func() error) error { panic("BUG: there are no halves") }

func bind([]int) error { panic("BUG: there are no halves") }

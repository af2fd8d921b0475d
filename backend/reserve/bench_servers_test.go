//go:build servers

package reserve_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"floodgate.internal/backend/reserve"
	"floodgate.internal/lua"
)

// What one Redis decides, asked for 512 orders at once by this process, which shares the machine with it. us/decision is Redis's own CPU
// time; Redis decides with one thread, so a core of its own decides 1e6/(us/decision) a second at most.
func BenchmarkNode(b *testing.B) {
	b.Run("accepted", func(b *testing.B) {
		s := loaded(b, func(l *reserve.Loaded) { l.Stock, l.Total = 1<<40, 1<<40 })
		decide(b, s, lua.Reserved, func(n int64) reserve.Request { return request(fmt.Sprint("u", n), 1) })
	})
	b.Run("ordered already", func(b *testing.B) {
		s := loaded(b, func(l *reserve.Loaded) { l.Limit = 1 })
		if v, err := s.Reserve(b.Context(), request("u", 1)); err != nil || v.Answer != lua.Reserved {
			b.Fatalf("got %+v, %v", v, err)
		}
		decide(b, s, lua.AlreadyOrdered, func(int64) reserve.Request { return request("u", 1) })
	})
	b.Run("sold out", func(b *testing.B) {
		s := loaded(b, func(l *reserve.Loaded) { l.Stock = 0 })
		decide(b, s, lua.SoldOut, func(n int64) reserve.Request { return request(fmt.Sprint("u", n), 1) })
	})
}

func decide(b *testing.B, s *reserve.Store, want lua.Answer, next func(int64) reserve.Request) {
	var n atomic.Int64
	b.SetParallelism(512 / runtime.GOMAXPROCS(0))
	before := cpu(b, s)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if v, err := s.Reserve(b.Context(), next(n.Add(1))); err != nil || v.Answer != want {
				b.Errorf("got %+v, %v; want %s", v, err, want)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric((cpu(b, s)-before)*1e6/float64(b.N), "us/decision")
}

// cpu is the seconds of CPU time that Redis has used.
func cpu(b *testing.B, s *reserve.Store) (seconds float64) {
	c := s.Client()
	info, err := c.Do(b.Context(), c.B().Info().Section("cpu").Build()).ToString()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			seconds += v
		}
	}
	return seconds
}

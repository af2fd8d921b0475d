package embedded

import (
	"net"
	"strings"
	"testing"
)

func TestInUseNamesTheAddress(t *testing.T) {
	a, err := FreeAddrs()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.InUse(); err != nil {
		t.Errorf("free addresses: got %v", err)
	}
	l, err := net.Listen("tcp", a.Internal)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := a.InUse()
	if got == nil || !strings.Contains(got.Error(), a.Internal) || strings.Contains(got.Error(), a.Public) {
		t.Errorf("got %v; want it to name %s alone", got, a.Internal)
	}
}

func TestFreeAddrsDiffer(t *testing.T) {
	a, err := FreeAddrs()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{a.Public: true, a.Ops: true, a.Internal: true, a.Admin: true}
	if len(seen) != 4 {
		t.Errorf("got %+v; want four different addresses", a)
	}
}

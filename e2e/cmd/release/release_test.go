package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// build builds the gateway from a copy of its sources, and returns the binary.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, module := range []string{"gateway", "shared"} {
		if err := os.CopyFS(filepath.Join(dir, module), os.DirFS(filepath.Join("../../..", module))); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin", "gateway")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", bin, "./cmd/gateway")
	cmd.Dir = filepath.Join(dir, "gateway")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// Two builds in two directories are the same to the byte, packed at two times from files of two times; the bill names what is in them.
func TestTwoBuildsAreEqual(t *testing.T) {
	first, second := build(t), build(t)
	if err := os.Chtimes(second, time.Unix(5, 0), time.Unix(5, 0)); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	var a, b bytes.Buffer
	if err := pack(&a, "root", []entry{{"bin/gateway", first, 0o755}, {"a", "release_test.go", 0o644}}, at); err != nil {
		t.Fatal(err)
	}
	if err := pack(&b, "root", []entry{{"a", "release_test.go", 0o644}, {"bin/gateway", second, 0o755}}, at); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two archives of the same sources differ")
	}
	one, err := bill("v1", at, []string{first})
	if err != nil {
		t.Fatal(err)
	}
	two, err := bill("v1", at, []string{second})
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("two bills of the same binary differ (%v)", err)
	}
	var d document
	decoder := json.NewDecoder(bytes.NewReader(one))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatal(err)
	}
	refs := map[string]bool{d.Metadata.Component.Ref: true}
	for _, c := range d.Components {
		if refs[c.Ref] || c.Version == "" || strings.Contains(c.Ref, "floodgate.internal") {
			t.Errorf("the component %+v is there twice, has no version, or is our own", c)
		}
		refs[c.Ref] = true
	}
	for _, use := range d.Dependencies {
		for _, ref := range append(use.DependsOn, use.Ref) {
			if !refs[ref] {
				t.Errorf("%s depends on %s, which is no component", use.Ref, ref)
			}
		}
	}
	if !refs["pkg:golang/stdlib@"+strings.TrimPrefix(runtime.Version(), "go")] || !bytes.Contains(one, []byte(`"pkg:golang/github.com/valyala/fasthttp@v`)) {
		t.Errorf("the bill lacks Go's library or fasthttp:\n%s", one)
	}
}

func TestPack(t *testing.T) {
	var b bytes.Buffer
	if err := pack(&b, "root", []entry{{"z", "pack.go", 0o644}, {"bin/x", "main.go", 0o755}}, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %o %d %d %d", h.Name, h.Mode, h.Uid, h.Gid, h.ModTime.Unix()))
	}
	if want := []string{"root/bin/x 755 0 0 1700000000", "root/z 644 0 0 1700000000"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := pack(io.Discard, "root", []entry{{"a", "not there", 0o644}}, time.Now()); err == nil {
		t.Error("a file that is not there is packed")
	}
	if _, err := bill("v1", time.Now(), []string{"pack.go"}); err == nil || !strings.Contains(err.Error(), "pack.go") {
		t.Errorf("a bill of what is no binary: %v", err)
	}
}

func TestSums(t *testing.T) {
	got := string(sums(map[string][]byte{"b": []byte("2"), "a": []byte("1")}))
	if want := fmt.Sprintf("%x  a\n%x  b\n", sha256.Sum256([]byte("1")), sha256.Sum256([]byte("2"))); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Command release makes a release: for each platform an archive with both binaries, samples, units and pages, its SBOM, and the checksums
// of all of them. It builds and packs everything twice, and fails if a byte differs. It runs in the checkout; see make dist.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"floodgate.internal/shared/cli"
)

var platforms = []string{"amd64", "arm64"}

// What is packed beside the binaries, as patterns of files, by the directory in the archive.
var packed = map[string][]string{
	"":                 {"README.md", "CHANGELOG.md", "LICENSE*"},
	"configs/":         {"configs/*"},
	"configs/grafana/": {"configs/grafana/*"},
	"systemd/":         {"deploy/systemd/*.service"},
	"docs/":            {"docs/*.md", "docs/*.yaml", "docs/*.svg"},
}

type grammar struct {
	Version string `required:"" help:"The release: a tag, or what git describe says."`
	Epoch   int64  `required:"" help:"The time of its commit, seconds since 1970: that of every file in the archives."`
	Ldflags string `help:"Passed on to go build."`
	Out     string `default:"build/dist" help:"Where to; what was there is removed."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
	}
	os.Exit(cli.ExitCode(err))
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var g grammar
	if kc, err := cli.Parse(&g, args, out, out); err != nil || kc == nil {
		return err
	}
	first, err := g.release(ctx)
	if err != nil {
		return err
	}
	second, err := g.release(ctx)
	if err != nil {
		return err
	}
	for name, b := range first {
		if !bytes.Equal(b, second[name]) {
			return fmt.Errorf("%s: two builds of it differ", name)
		}
	}
	if err := os.RemoveAll(g.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(g.Out, 0o755); err != nil {
		return err
	}
	first["SHA256SUMS"] = sums(first)
	for _, name := range slices.Sorted(maps.Keys(first)) {
		if err := os.WriteFile(filepath.Join(g.Out, name), first[name], 0o644); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s  %d bytes\n", filepath.Join(g.Out, name), len(first[name]))
	}
	return nil
}

// release builds and packs everything, in a directory of its own, and returns the files.
func (g grammar) release(ctx context.Context) (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "floodgate-dist-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files := map[string][]byte{}
	for _, arch := range platforms {
		bin := filepath.Join(dir, arch)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", g.Ldflags, "-o", bin+"/", "./gateway/cmd/gateway", "./backend/cmd/backend")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, text)
		}
		binaries := []string{filepath.Join(bin, "backend"), filepath.Join(bin, "gateway")}
		entries := []entry{{name: "bin/backend", from: binaries[0], mode: 0o755}, {name: "bin/gateway", from: binaries[1], mode: 0o755}}
		for to, patterns := range packed {
			for _, pattern := range patterns {
				names, err := filepath.Glob(pattern)
				if err != nil {
					return nil, err
				}
				for _, name := range names {
					if info, err := os.Stat(name); err != nil || info.IsDir() {
						continue
					}
					entries = append(entries, entry{name: to + filepath.Base(name), from: name, mode: 0o644})
				}
			}
		}
		name := "floodgate-" + g.Version + "-linux-" + arch
		var archive bytes.Buffer
		if err := pack(&archive, name, entries, time.Unix(g.Epoch, 0)); err != nil {
			return nil, err
		}
		files[name+".tar.gz"] = archive.Bytes()
		if files[name+".cdx.json"], err = bill(g.Version, time.Unix(g.Epoch, 0), binaries); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// sums is what sha256sum -c reads.
func sums(files map[string][]byte) []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	return b.Bytes()
}

// Package powercut takes from a server that was killed what a power cut would have taken: all that it had written and not synced.
//
// A library that is loaded into the server (preload/preload.c) notes each write, sync, rename and removal under its directory. It
// keeps in a second directory, the shadow, what was synced. Cut puts that back in place of the files.
package powercut

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed preload/preload.c
var source []byte

// Build compiles the library into a directory and returns its path. It takes gcc.
func Build(dir string) (library string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	from, library := filepath.Join(dir, "preload.c"), filepath.Join(dir, "powercut.so")
	if err := os.WriteFile(from, source, 0o644); err != nil {
		return "", err
	}
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", library, from, "-ldl", "-lpthread").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gcc: %w: %s (`build/stack install race` installs it)", err, out)
	}
	return library, nil
}

// Disk is the directory of one server, and what a power cut would leave of it.
type Disk struct {
	// Library is what Build has made.
	Library string
	// Dir holds the server's files. Sub-directories are taken as durable, their files are not.
	Dir string
	// Shadow is where the disk is kept: a directory beside Dir, on a file system that notes births (ext4, XFS, tmpfs).
	Shadow string
	// Journal: any sync makes all earlier changes of names durable, as ext4 and XFS do. Else only a sync of the directory does, or,
	// for the name of a file, a sync of that file, which is all that POSIX promises.
	Journal bool
	// Only is a file under Dir: the others keep all that was written, as if it had been written back in time. "": every file is cut.
	Only string
	// Lies: the disk ignores every sync, so that a cut takes all that was written since Begin or Settle.
	Lies bool
}

// Env is what the server needs in its environment.
func (d *Disk) Env() []string {
	names := "strict"
	if d.Journal {
		names = "journal"
	}
	env := []string{"LD_PRELOAD=" + d.Library, "POWERCUT_DIR=" + d.Dir, "POWERCUT_SHADOW=" + d.Shadow, "POWERCUT_NAMES=" + names}
	if d.Lies {
		env = append(env, "POWERCUT_LIES=1")
	}
	return env
}

func (d *Disk) data() string { return filepath.Join(d.Shadow, "data") }

// Begin takes everything in the directory as synced. To be called before each start of the server.
func (d *Disk) Begin() error {
	if err := os.RemoveAll(d.Shadow); err != nil {
		return err
	}
	if err := os.MkdirAll(d.data(), 0o755); err != nil {
		return err
	}
	var names bytes.Buffer
	if err := d.take(&names, copyFile, func(string) {}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.Shadow, "names"), names.Bytes(), 0o600)
}

// take copies every file to the shadow and notes its name, as the library does. A file that is removed meanwhile is left out.
func (d *Disk) take(names *bytes.Buffer, copy func(from, to string) error, taken func(path string)) error {
	for path, err := range d.files() {
		if err != nil {
			return err
		}
		from := filepath.Join(d.Dir, path)
		key, err := keyOf(from)
		if err == nil {
			err = copy(from, filepath.Join(d.data(), key))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		taken(path)
		fmt.Fprintf(names, "L\t%s\t\t%s\n", key, path)
	}
	return nil
}

// Settle takes everything in the directory as synced while the server runs, as what was written half a minute ago is: Linux
// writes back by then what nobody synced. The server must be idle. Only with Journal.
func (d *Disk) Settle() error {
	before, err := d.names()
	if err != nil {
		return err
	}
	var names bytes.Buffer
	if err := d.take(&names, addTo, func(path string) { delete(before, path) }); err != nil {
		return err
	}
	for path, key := range before {
		fmt.Fprintf(&names, "U\t%s\t\t%s\n", key, path)
	}
	f, err := os.OpenFile(filepath.Join(d.Shadow, "names"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(names.Bytes())
	return errors.Join(err, f.Close())
}

// addTo makes a copy of a file equal to it, and never shorter than it is: the library may add to the copy at the same time.
func addTo(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = out.WriteAt(b, 0)
	if had, err2 := out.Stat(); err == nil && err2 == nil && had.Size() > info.Size() {
		err = out.Truncate(int64(len(b)))
	}
	return errors.Join(err, out.Close())
}

// files are the regular files under the directory, relative to it.
func (d *Disk) files() func(yield func(string, error) bool) {
	return func(yield func(string, error) bool) {
		stop := errors.New("stop")
		err := filepath.WalkDir(d.Dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			rel, err := filepath.Rel(d.Dir, path)
			if err == nil && !yield(rel, nil) {
				err = stop
			}
			return err
		})
		if err != nil && err != stop {
			yield("", err)
		}
	}
}

// keyOf names a file as the library does: no other file of this file system has or had that name.
func keyOf(path string) (string, error) {
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &x); err != nil {
		return "", fmt.Errorf("statx %s: %w", path, err)
	}
	if x.Mask&unix.STATX_BTIME == 0 {
		return "", fmt.Errorf("%s: its file system notes no births", path)
	}
	return fmt.Sprintf("%d.%d.%09d", x.Ino, x.Btime.Sec, x.Btime.Nsec), nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close())
}

// Loss is what a power cut took.
type Loss struct {
	Bytes   int64    // that were appended and not synced
	Changed []string // files of which something was lost, or that were not there, or are there again
}

func (l Loss) String() string {
	if len(l.Changed) == 0 {
		return "nothing was unsynced"
	}
	return fmt.Sprintf("%d bytes off the ends of files, of %d files something: %s", l.Bytes, len(l.Changed), strings.Join(l.Changed[:min(len(l.Changed), 30)], ", "))
}

// Cut leaves of the files what was synced. The server must have been killed, and not run. It fails where the server did
// something that the library does not follow.
func (d *Disk) Cut() (Loss, error) {
	var l Loss
	if b, err := os.ReadFile(filepath.Join(d.Shadow, "unseen")); err == nil {
		return l, fmt.Errorf("what is synced in %s is not known; process and what it did:\n%s", d.Dir, b)
	}
	names, err := d.names()
	if err != nil {
		return l, err
	}
	for path, err := range d.files() {
		if err != nil {
			return l, err
		}
		if _, ok := names[path]; ok || d.Only != "" && path != d.Only {
			continue
		}
		l.Changed = append(l.Changed, path+" (not there)")
		info, err := os.Stat(filepath.Join(d.Dir, path))
		if err != nil {
			return l, err
		}
		l.Bytes += info.Size()
		if err := os.Remove(filepath.Join(d.Dir, path)); err != nil {
			return l, err
		}
	}
	for path, key := range names {
		if d.Only != "" && path != d.Only {
			continue
		}
		if err := d.restore(path, key, &l); err != nil {
			return l, err
		}
	}
	return l, nil
}

// restore makes one file what it was when it was synced.
func (d *Disk) restore(path, key string, l *Loss) error {
	to, from := filepath.Join(d.Dir, path), filepath.Join(d.data(), key)
	want, err := os.ReadFile(from)
	mode := fs.FileMode(0o600)
	if errors.Is(err, fs.ErrNotExist) { // the name was synced, and never a byte of it
		err = nil
	} else if err == nil {
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		mode = info.Mode().Perm()
	}
	if err != nil {
		return err
	}
	got, err := os.ReadFile(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.Changed = append(l.Changed, path+" (there again)")
	case err != nil:
		return err
	case bytes.Equal(got, want):
		return nil
	default:
		l.Changed = append(l.Changed, path)
		l.Bytes += max(0, int64(len(got)-len(want)))
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, want, mode)
}

// names are the files that are there after a power cut, and their keys.
func (d *Disk) names() (map[string]string, error) {
	b, err := os.ReadFile(filepath.Join(d.Shadow, "names"))
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the kill fell into it
		}
		f := strings.Split(strings.TrimSuffix(string(line), "\n"), "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("%s/names: %q", d.Shadow, line)
		}
		key, from, to := f[1], f[2], f[3]
		switch f[0] {
		case "L":
			names[to] = key
		case "U":
			if names[to] == key {
				delete(names, to)
			}
		case "R":
			if names[from] == key {
				delete(names, from)
			}
			names[to] = key
		}
	}
	return names, nil
}

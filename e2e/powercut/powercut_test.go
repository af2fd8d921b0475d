//go:build servers

package powercut

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program writes, syncs and renames as its arguments say, and ends without closing anything.
const program = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int n, char **a) {
	int fd = -1;
	FILE *s = NULL;
	for (int i = 1; i < n; i++) {
		char *v = strchr(a[i], '=') + 1;
		v[-1] = 0;
		int r = 0;
		if (!strcmp(a[i], "open")) r = fd = open(v, O_RDWR | O_CREAT, 0600);
		else if (!strcmp(a[i], "dsync")) r = fd = open(v, O_RDWR | O_CREAT | O_DSYNC, 0600);
		else if (!strcmp(a[i], "append")) r = fd = open(v, O_WRONLY | O_CREAT | O_APPEND, 0600);
		else if (!strcmp(a[i], "fopen")) { s = fopen(v, "w"); fd = fileno(s); }
		else if (!strcmp(a[i], "write")) r = write(fd, v, strlen(v));
		else if (!strcmp(a[i], "print")) { fputs(v, s); fflush(s); }
		else if (!strcmp(a[i], "pwrite")) r = pwrite(fd, v + 2, strlen(v + 2), atoi(v));
		else if (!strcmp(a[i], "truncate")) r = ftruncate(fd, atoi(v));
		else if (!strcmp(a[i], "allocate")) r = -posix_fallocate(fd, 0, atoi(v));
		else if (!strcmp(a[i], "sync")) r = fdatasync(fd);
		else if (!strcmp(a[i], "dir")) { int d = open(v, O_RDONLY | O_DIRECTORY); r = fsync(d); close(d); }
		else if (!strcmp(a[i], "unlink")) r = unlink(v);
		else if (!strcmp(a[i], "rename")) { char *to = strchr(v, ','); *to = 0; r = rename(v, to + 1); }
		else if (!strcmp(a[i], "fork")) { if (fork()) wait(NULL); else { fd = open(v, O_RDWR | O_CREAT, 0600); write(fd, v, strlen(v)); fsync(fd); _exit(0); } }
		else r = -1;
		if (r < 0) { perror(a[i]); return 1; }
	}
	_exit(0);
}
`

// A file is after the cut what it was when it was synced, and has the name that was synced.
func TestCut(t *testing.T) {
	tools := t.TempDir()
	library, err := Build(tools)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tools, "program.c"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(tools, "program")
	if out, err := exec.Command("gcc", "-o", binary, filepath.Join(tools, "program.c")).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for _, c := range []struct {
		does    string
		strict  string // the files that are left, and what is in them
		journal string // the same; "" as strict
	}{
		{"open=new write=abc", "old=0123456789", ""},
		{"open=new write=abc sync=", "new=abc old=0123456789", ""},
		{"open=new write=abc sync= write=def", "new=abc old=0123456789", ""},
		{"open=new write=abc sync= write=def sync= write=g", "new=abcdef old=0123456789", ""},
		{"append=old write=abc", "old=0123456789", ""},
		{"append=old write=abc sync= write=d", "old=0123456789abc", ""},
		{"open=old pwrite=2,xy", "old=0123456789", ""},
		{"open=old pwrite=2,xy sync= pwrite=2,zz pwrite=8,zz", "old=01xy456789", ""},
		{"open=old truncate=3", "old=0123456789", ""},
		{"open=old truncate=3 sync= pwrite=3,z", "old=012", ""},
		{"open=new allocate=3 sync= pwrite=0,a", "new=\x00\x00\x00 old=0123456789", ""},
		{"dsync=old pwrite=0,ab", "old=ab23456789", ""},
		{"fopen=new print=abc", "old=0123456789", ""},
		{"fopen=new print=abc sync= print=d", "new=abc old=0123456789", ""},
		{"open=new write=abc dir=.", "new= old=0123456789", "old=0123456789 new="},
		{"unlink=old", "old=0123456789", ""},
		{"unlink=old dir=.", "", ""},
		{"open=new write=abc sync= rename=new,old", "new=abc old=0123456789", ""},
		{"open=new write=abc sync= rename=new,old dir=.", "old=abc", ""},
		{"open=new write=abc sync= rename=new,old sync=", "old=abc", ""},
		{"open=new write=abc sync= rename=new,old open=other sync=", "new=abc old=0123456789 other=", "old=abc other="},
		{"unlink=old open=old write=new", "old=0123456789", ""},
		{"unlink=old open=old write=new sync=", "old=new", ""},
		{"open=sub/new write=abc sync=", "old=0123456789 sub/new=abc", ""},
		{"open=new write=abc fork=child sync= write=d", "child=child new=abc old=0123456789", ""},
	} {
		for _, journal := range []bool{false, true} {
			want := c.strict
			if journal && c.journal != "" {
				want = c.journal
			}
			dir := t.TempDir()
			d := &Disk{Library: library, Dir: filepath.Join(dir, "files"), Shadow: filepath.Join(dir, "shadow"), Journal: journal}
			if err := os.MkdirAll(filepath.Join(d.Dir, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d.Dir, "old"), []byte("0123456789"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := d.Begin(); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(binary, strings.Fields(c.does)...)
			cmd.Dir, cmd.Env = d.Dir, d.Env()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", c.does, err, out)
			}
			if _, err := d.Cut(); err != nil {
				t.Fatalf("%s: %v", c.does, err)
			}
			got := []string{}
			for path, err := range d.files() {
				b, err2 := os.ReadFile(filepath.Join(d.Dir, path))
				if err != nil || err2 != nil {
					t.Fatal(err, err2)
				}
				got = append(got, path+"="+string(b))
			}
			expected := strings.Fields(want)
			slices.Sort(got)
			slices.Sort(expected)
			if !slices.Equal(got, expected) {
				t.Errorf("%s, journal %t: got %q, want %q", c.does, journal, got, expected)
			}
		}
	}
}

// What the library cannot follow is an error, not a wrong answer.
func TestUnseen(t *testing.T) {
	library, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := &Disk{Library: library, Dir: filepath.Join(dir, "files"), Shadow: filepath.Join(dir, "shadow")}
	if err := os.MkdirAll(filepath.Join(d.Dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.Begin(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("mv", "sub", "other")
	cmd.Dir, cmd.Env = d.Dir, d.Env()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := d.Cut(); err == nil || !strings.Contains(err.Error(), "a directory was renamed") {
		t.Errorf("got %v, want that a directory was renamed", err)
	}
}

// The others keep what they have where one file alone is cut.
func TestCutOnlyOne(t *testing.T) {
	tools := t.TempDir()
	library, err := Build(tools)
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{Library: library, Dir: filepath.Join(tools, "files"), Shadow: filepath.Join(tools, "shadow"), Only: "log"}
	if err := os.Mkdir(d.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"log", "data", "gone"} {
		if err := os.WriteFile(filepath.Join(d.Dir, name), []byte("0123"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Begin(); err != nil {
		t.Fatal(err)
	}
	write := exec.Command("sh", "-c", "printf 4567 >>log; printf 4567 >>data; rm gone; printf a >new")
	write.Dir, write.Env = d.Dir, append(os.Environ(), d.Env()...)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	loss, err := d.Cut()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(loss.Changed, []string{"log"}) || loss.Bytes != 4 {
		t.Errorf("lost: got %+v, want the end of log", loss)
	}
	for name, want := range map[string]string{"log": "0123", "data": "01234567", "new": "a"} {
		if got, err := os.ReadFile(filepath.Join(d.Dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone is there again: %v", err)
	}
}

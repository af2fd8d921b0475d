package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string
	from string // the file that it is read from
	mode int64
}

// pack writes a tar.gz of the entries under a directory called root. The same entries make the same bytes: they are sorted, belong to
// root, and all are of the time at.
func pack(w io.Writer, root string, entries []entry, at time.Time) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	entries = slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range entries {
		b, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: root + "/" + e.name, Mode: e.mode, Size: int64(len(b)), ModTime: at.UTC(), Uname: "root", Gname: "root", Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(b); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

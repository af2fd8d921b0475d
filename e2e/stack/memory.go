package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// memory is a file system in memory, on Linux.
	memory = "/dev/shm"
	// memoryNeeded is what must be free there, in bytes: four times what a whole run of the tests has had at most.
	memoryNeeded = 1 << 30
)

// dataInMemory lets the servers of a directory have their data in memory, where there is room enough: the directory's data is
// a link to it then. Processes may die as on a disk, and nothing is lost of what the kernel has; only syncing costs nothing.
func dataInMemory(dir string, report func(format string, args ...any)) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || uint64(fs.Bavail)*uint64(fs.Bsize) < memoryNeeded {
		report("the data are on the disk: %s has no %d GiB left", memory, memoryNeeded>>30)
		return nil
	}
	data, err := os.MkdirTemp(memory, "floodgate-")
	if err != nil {
		return fmt.Errorf("data in memory: %w", err)
	}
	// The servers may run as users of their own, who get directories of their own below it.
	if err := errors.Join(os.Chmod(data, 0o711), os.Symlink(data, filepath.Join(dir, "data"))); err != nil {
		return errors.Join(fmt.Errorf("data in memory: %w", err), os.RemoveAll(data))
	}
	return nil
}

// removeData removes a directory's data, wherever it is.
func removeData(dir string) error {
	link := filepath.Join(dir, "data")
	if data, err := os.Readlink(link); err == nil && filepath.Dir(data) == memory {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
	}
	return os.RemoveAll(link)
}

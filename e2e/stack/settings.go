package stack

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"floodgate.internal/shared/ports"
)

// settings is what was chosen once for a directory.
type settings struct {
	// Engine is "native" or "docker", "" until the servers have started once.
	Engine         string `json:"engine"`
	RedisPort      int    `json:"redis_port"`
	MySQLPort      int    `json:"mysql_port"`
	AMQPPort       int    `json:"amqp_port"`
	ManagementPort int    `json:"management_port"`
	DistPort       int    `json:"dist_port"`
	EPMDPort       int    `json:"epmd_port"`
	User           string `json:"user"`
	Password       string `json:"password"`
	Cookie         string `json:"cookie"`
}

func settingsFile(dir string) string { return filepath.Join(dir, "settings.json") }

// loadSettings reads the settings of a directory; fs.ErrNotExist where nothing was ever started.
func loadSettings(dir string) (settings, error) {
	var s settings
	b, err := os.ReadFile(settingsFile(dir))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w (stop what runs under %s and remove that file)", settingsFile(dir), err, dir)
	}
	return s, nil
}

func (s settings) save(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic("BUG: settings do not encode: " + err.Error())
	}
	return writeFile(settingsFile(dir), append(b, '\n'))
}

// openSettings reads the settings of a directory or chooses them.
func openSettings(dir string) (settings, error) {
	s, err := loadSettings(dir)
	if err == nil {
		for _, port := range []int{s.RedisPort, s.MySQLPort, s.AMQPPort, s.ManagementPort, s.DistPort, s.EPMDPort} {
			if _, err := ports.Hold(port); err != nil { // one that somebody else holds is found to be in use, or not, at the start
				return s, err
			}
		}
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	p, err := ports.Free(6)
	if err != nil {
		return s, err
	}
	s = settings{
		RedisPort: p[0], MySQLPort: p[1], AMQPPort: p[2], ManagementPort: p[3], DistPort: p[4], EPMDPort: p[5],
		User: "floodgate", Password: randomHex(), Cookie: randomHex(),
	}
	if err := makeDirs(dir); err != nil {
		return s, err
	}
	return s, s.save(dir)
}

func randomHex() string {
	b := make([]byte, 12)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// writeFile puts b into path for the owner's eyes only, whole or not at all, and leaves a file that already holds b alone.
func writeFile(path string, b []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(b) {
		return nil
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Lock keeps other launchers out of a directory until unlock is called or the process ends. It does not wait.
func Lock(dir string) (unlock func(), err error) {
	if err := makeDirs(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is locked: another launcher works in %s; wait for it to end", path, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

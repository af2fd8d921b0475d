package stack

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	ports, err := FreePorts(6)
	if err != nil {
		return s, err
	}
	s = settings{
		RedisPort: ports[0], MySQLPort: ports[1], AMQPPort: ports[2], ManagementPort: ports[3], DistPort: ports[4], EPMDPort: ports[5],
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

// given are the ports that FreePorts has returned: what is to listen there may not do so yet.
var given struct {
	mu    sync.Mutex // guards ports
	ports map[int]bool
}

// FreePorts returns n loopback TCP ports on which nobody listens, and which it has not returned before. They lie below the range from which the kernel takes
// the ports of outgoing connections, so that a server that was killed finds its port free when it comes back.
func FreePorts(n int) ([]int, error) {
	high := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			if low, err := strconv.Atoi(f[0]); err == nil && low > 12000 {
				high = low
			}
		}
	}
	const low = 10240
	given.mu.Lock()
	defer given.mu.Unlock()
	if given.ports == nil {
		given.ports = map[int]bool{}
	}
	var ports []int
	var held []net.Listener // until all are chosen, so that none is chosen twice
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := low + mathrand.IntN(high-low)
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		given.ports[port] = true
		held = append(held, l)
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d on 127.0.0.1", n, low, high)
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

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

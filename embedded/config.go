package embedded

import (
	"fmt"
	"os"
	"path/filepath"

	"floodgate.internal/shared/development"
)

// writeConfigs writes backend.yaml and gateway.yaml into dir, each whole or not at all.
func writeConfigs(dir string, a Addrs, redis, dsn, level string) error {
	stores := fmt.Sprintf(`redis:
  addrs: ["%s"]
  prefix: "fg:"

mysql:
  dsn: "%s"
  max_open: 1 # the in-memory server runs one transaction at a time

queue:
  driver: redis-stream # no broker
`, redis, dsn)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "backend.yaml"), development.Backend(development.Addrs(a), stores, level)); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "gateway.yaml"), development.Gateway(development.Addrs(a), level))
}

// writeFile replaces a file with one for the owner's eyes only.
func writeFile(path string, text []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

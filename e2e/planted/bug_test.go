package planted

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/e2e/stack"
)

// bug is one patch file.
type bug struct {
	name string // of the file, without .patch
	file string // absolute

	what  string
	pkg   string // of the test, as ./backend/order
	test  string // its name, with the subtest's after a slash
	says  string
	day   string // "" for none
	finds string
	alone bool
}

// The days.
const (
	rabbitMQ    = "rabbitmq"
	redisStream = "redis-stream"
	confirm     = "confirm" // RabbitMQ, and every 202 waits for its confirm
)

// bugs reads every patch file.
func bugs(t *testing.T) []bug {
	t.Helper()
	root := root(t)
	files, err := filepath.Glob(filepath.Join(root, "e2e", "planted", "*.patch"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no patch file: %v", err)
	}
	list := make([]bug, len(files)) // sorted by Glob
	for i, file := range files {
		if list[i], err = read(file); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var (
	packageName = regexp.MustCompile(`^\./[a-z0-9/]+$`)
	testName    = regexp.MustCompile(`^Test\w+(/\S+)?$`)
)

func read(file string) (bug, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return bug{}, err
	}
	b := bug{name: strings.TrimSuffix(filepath.Base(file), ".patch"), file: file}
	wrong := func(format string, args ...any) (bug, error) {
		return bug{}, fmt.Errorf("%s: %s; the fields of the head stand in e2e/planted/doc.go", file, fmt.Sprintf(format, args...))
	}
	head, diff, ok := strings.Cut(string(text), "\n\n")
	if !ok || !strings.HasPrefix(diff, "diff --git a/") {
		return wrong("after the head and an empty line it must go on with the output of git diff")
	}
	seen := map[string]bool{}
	for _, line := range strings.Split(head, "\n") {
		name, value, ok := strings.Cut(line, ": ")
		if value = strings.TrimSpace(value); !ok || value == "" || seen[name] {
			return wrong("%q is no field with a value, or is there twice", line)
		}
		seen[name] = true
		switch name {
		case "Bug":
			b.what = value
		case "Test":
			b.pkg, b.test, _ = strings.Cut(value, " ")
			if !packageName.MatchString(b.pkg) || !testName.MatchString(b.test) {
				return wrong("Test: %s: want a package and a test, as ./backend/order TestName/subtest", value)
			}
		case "Says":
			b.says = value
		case "Day":
			if b.day = value; !slices.Contains([]string{rabbitMQ, redisStream, confirm}, value) {
				return wrong("Day: %s: want %s, %s or %s", value, rabbitMQ, redisStream, confirm)
			}
		case "Finds":
			b.finds = value
		case "Alone":
			b.alone = true
		default:
			return wrong("%s is no field", name)
		}
	}
	for _, name := range []string{"Bug", "Test", "Says"} {
		if !seen[name] {
			return wrong("%s is missing", name)
		}
	}
	if (b.day == "") != (b.finds == "") {
		return wrong("Day and Finds come together")
	}
	return b, nil
}

// copyTree copies what belongs to the checkout; what was built in it stays behind.
func copyTree(t *testing.T) (dir string) {
	t.Helper()
	from, dir := root(t), t.TempDir()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		switch {
		case slices.Contains([]string{".git", "build", ".run"}, name):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(to, b, 0o644)
		default:
			return nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// stale says what to do with a patch whose surroundings have changed.
func (b bug) stale(err error) error {
	return fmt.Errorf(`e2e/planted/%s.patch no longer applies: plant the bug anew, by hand or with git apply --reject, put the output of git diff
below the head of the file, and take the change out of the tree again; if the bug can no longer be made, remove the file and its line of docs/planted.md:
%w`, b.name, err)
}

// apply puts a patch into the tree at dir, or takes it out again; with "--check" it only tries.
func apply(dir, patch string, flags ...string) error {
	cmd := exec.Command("git", append(append([]string{"apply", "--whitespace=nowarn"}, flags...), patch)...)
	cmd.Dir = dir
	for _, v := range os.Environ() { // another repository's, where a hook runs this
		if !strings.HasPrefix(v, "GIT_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), dir, err, out)
	}
	return nil
}

// has reports whether a package has a test of this name.
func has(dir, test string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return false, err
	}
	top, _, _ := strings.Cut(test, "/")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || bytes.Contains(text, []byte("\nfunc "+top+"(t *testing.T)")) {
			return true, err
		}
	}
	return false, nil
}

// TestEveryPatchIsWhole is the fast part: the heads are in order, the patches fit the tree, the tests that they name are
// there, and docs/planted.md tells of each.
func TestEveryPatchIsWhole(t *testing.T) {
	dir, all := copyTree(t), bugs(t)
	days := 0
	for _, b := range all {
		if err := apply(dir, b.file, "--check"); err != nil {
			t.Errorf("%v", b.stale(err))
		}
		if ok, err := has(filepath.Join(dir, b.pkg), b.test); err != nil || !ok {
			t.Errorf("e2e/planted/%s.patch: there is no %s in %s, %v: name the test that catches the bug now", b.name, b.test, b.pkg, err)
		}
		if b.day != "" {
			days++
		}
	}
	if days < 6 {
		t.Errorf("the auditor is shown %d bugs, want at least 6", days)
	}
	const doc = "docs/planted.md"
	text, err := os.ReadFile(filepath.Join(dir, doc))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, b := range all {
		rows[b.row()] = false
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| [") {
			continue
		}
		cells := strings.Split(line, " | ")
		row := strings.Join(cells[:min(3, len(cells))], " | ") // without what was said
		if told, ok := rows[row]; !ok || told {
			t.Errorf("%s tells of what is no bug, or tells of it twice: %s", doc, row)
		}
		rows[row] = true
	}
	for row, told := range rows {
		if !told {
			t.Errorf("%s does not tell of: %s", doc, row)
		}
	}
	if t.Failed() {
		t.Logf("the tests with servers write build/planted.md: copy it to %s", doc)
	}
}

package planted

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

const (
	rabbitMQ    = "rabbitmq"
	redisStream = "redis-stream"
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
			if b.day = value; value != rabbitMQ && value != redisStream {
				return wrong("Day: %s: want %s or %s", value, rabbitMQ, redisStream)
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

// refresh is what to do with a patch whose surroundings have changed.
const refresh = `plant the bug anew: git apply --reject %[1]s, put what was rejected in by hand, git diff into the file below its head, and take
the change back (git apply -R %[1]s); if the bug can no longer be made, remove the file and its line of docs/planted.md`

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

// TestEveryPatchApplies is the fast part: the heads are whole, the patches fit the tree, and docs/planted.md tells of each.
func TestEveryPatchApplies(t *testing.T) {
	root, all := root(t), bugs(t)
	days := 0
	for _, b := range all {
		if err := apply(root, b.file, "--check"); err != nil {
			t.Errorf("%s no longer applies: %v"+refresh, b.file, err, filepath.Join("e2e", "planted", b.name+".patch"))
		}
		if b.day != "" {
			days++
		}
	}
	if days < 6 {
		t.Errorf("the auditor is shown %d bugs, want at least 6", days)
	}
	const doc = "docs/planted.md"
	text, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	var rows []string // without what was said
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| [") {
			cells := strings.Split(line, " | ")
			rows = append(rows, strings.Join(cells[:min(3, len(cells))], " | "))
		}
	}
	var want []string
	for _, b := range all {
		want = append(want, b.row())
	}
	if got, want := strings.Join(rows, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("%s tells of other bugs than the patch files; run the tests with servers and copy build/planted.md there\ngot\n%s\nwant\n%s", doc, got, want)
	}
}

package planted

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/e2e/stack"
)

// bug is one file NAME.bug, whose form doc.go describes.
type bug struct {
	name  string // the file's, without .bug
	what  string
	pkg   string // of the test, as ./backend/order
	test  string // its name, with the subtest's after a slash
	says  string
	day   string // "" for none
	finds string
	alone bool
	edits []edit
}

// edit replaces whole lines by others. Lines are compared without the space around them.
type edit struct{ stood, stands []string }

// The days.
const (
	rabbitMQ    = "rabbitmq"
	redisStream = "redis-stream"
	confirm     = "confirm" // RabbitMQ, and every 202 waits for its confirm
)

// bugs reads every bug, sorted by name.
func bugs(t *testing.T) (list []bug) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), "e2e", "planted", "*.bug"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no bugs: %v", err)
	}
	tests := testsOf(t)
	for _, file := range files { // Glob sorts
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := parse(strings.TrimSuffix(filepath.Base(file), ".bug"), string(text), tests)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
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
	testName = regexp.MustCompile(`^(\./[a-z0-9/]+ )?(Test\w+(?:/\S+)?)$`)
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

// testsOf returns the packages, as ./backend/order, that have a test of a name.
func testsOf(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	walk(t, root(t), func(name string) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = append(tests[string(m[1])], "./"+filepath.ToSlash(filepath.Dir(name)))
		}
	})
	return tests
}

func parse(name, text string, tests map[string][]string) (bug, error) {
	b := bug{name: name}
	wrong := func(format string, args ...any) (bug, error) {
		return bug{}, fmt.Errorf("e2e/planted/%s.bug: %s; doc.go describes the form", name, fmt.Sprintf(format, args...))
	}
	head, body, ok := strings.Cut(text, "\n\n--- stood\n")
	if !ok {
		return wrong("after the head it must go on with an empty line and --- stood")
	}
	seen := map[string]bool{}
	for _, line := range strings.Split(head, "\n") {
		field, value, ok := strings.Cut(line, ": ")
		if value = strings.TrimSpace(value); !ok || value == "" || seen[field] {
			return wrong("%q is no field with a value, or is there twice", line)
		}
		seen[field] = true
		switch field {
		case "Bug":
			b.what = value
		case "Test":
			m := testName.FindStringSubmatch(value)
			if m == nil {
				return wrong("Test: %s: want TestName or TestName/subtest, after its package where several have one of that name", value)
			}
			b.pkg, b.test = strings.TrimSpace(m[1]), m[2]
			top, _, _ := strings.Cut(b.test, "/")
			in := tests[top]
			if b.pkg == "" && len(in) == 1 {
				b.pkg = in[0]
			}
			if !slices.Contains(in, b.pkg) {
				return wrong("Test: %s: want a test that is in one package, or before it that package; it is in %q", value, in)
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
			return wrong("%s is no field", field)
		}
	}
	for _, field := range []string{"Bug", "Test", "Says"} {
		if !seen[field] {
			return wrong("%s is missing", field)
		}
	}
	if (b.day == "") != (b.finds == "") {
		return wrong("Day and Finds come together")
	}
	for _, part := range strings.Split(strings.TrimSuffix(body, "\n"), "\n\n--- stood\n") {
		stood, stands, ok := strings.Cut(part+"\n", "\n--- stands\n")
		if !ok || strings.TrimSpace(stood) == "" {
			return wrong("after --- stood come the lines as they are, then --- stands and the lines that replace them")
		}
		b.edits = append(b.edits, edit{stood: strings.Split(stood, "\n"), stands: strings.Split(strings.TrimSuffix(stands, "\n"), "\n")})
	}
	return b, nil
}

// walk calls f with the name of each file of a checkout, relative to dir; what was built in it is left out.
func walk(t *testing.T, dir string, f func(name string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case slices.Contains([]string{".git", "build", ".run"}, name):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			f(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a copy of the checkout, in which bugs are planted and go commands are run.
type tree struct {
	dir   string
	lines map[string][]string // of each file of production code, by its name
}

func newTree(t *testing.T) tree {
	t.Helper()
	from := root(t)
	r := tree{dir: t.TempDir(), lines: map[string][]string{}}
	walk(t, from, func(name string) {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]string{".go", ".lua", ".sql"}, filepath.Ext(name)) && !strings.HasSuffix(name, "_test.go") {
			r.lines[name] = strings.Split(string(text), "\n")
		}
	})
	return r
}

// find returns the one place of the tree where these lines stand.
func (r tree) find(lines []string) (file string, at int, err error) {
	var places []string
	for name, all := range r.lines {
		for i := range len(all) - len(lines) + 1 {
			if slices.EqualFunc(all[i:i+len(lines)], lines, func(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }) {
				file, at = name, i
				places = append(places, fmt.Sprintf("%s:%d", name, i+1))
			}
		}
	}
	if len(places) != 1 {
		return "", 0, fmt.Errorf("these lines must stand in one place and stand in %d %q:\n%s", len(places), places, strings.Join(lines, "\n"))
	}
	return file, at, nil
}

// planted returns the files as they are with the bug, by name.
func (r tree) planted(b bug) (map[string]string, error) {
	changed := map[string][]string{}
	type cut struct{ at, until int }
	cuts := map[string][]cut{}
	for _, e := range b.edits {
		file, at, err := r.find(e.stood)
		if err != nil {
			return nil, fmt.Errorf("e2e/planted/%s.bug: %w\nwrite what stands there now and how the bug is made of it; if it cannot be made any more, remove the file", b.name, err)
		}
		if changed[file] == nil {
			changed[file] = slices.Clone(r.lines[file])
		}
		until := at + len(e.stood)
		for _, c := range cuts[file] {
			if at < c.until && c.at < until {
				return nil, fmt.Errorf("e2e/planted/%s.bug: two edits overlap in %s", b.name, file)
			}
		}
		cuts[file] = append(cuts[file], cut{at, until})
		changed[file][at] = strings.Join(e.stands, "\n")
		for i := at + 1; i < until; i++ {
			changed[file][i] = gone
		}
	}
	texts := map[string]string{}
	for file, lines := range changed {
		texts[file] = strings.Join(slices.DeleteFunc(lines, func(l string) bool { return l == gone }), "\n")
	}
	return texts, nil
}

// gone marks a line that an edit takes out.
const gone = "\x00"

// plant puts a bug into the tree. The function that it returns takes it out again.
func (r tree) plant(b bug) (undo func() error, err error) {
	texts, err := r.planted(b)
	if err != nil {
		return nil, err
	}
	for file, text := range texts {
		if err := os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return func() error {
		for file := range texts {
			if err := os.WriteFile(filepath.Join(r.dir, file), []byte(strings.Join(r.lines[file], "\n")), 0o644); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// TestEveryBugHasItsPlace is the fast part: each bug's lines stand in one place, the test that it names is there, and docs/planted.md
// tells of each.
func TestEveryBugHasItsPlace(t *testing.T) {
	r, all := newTree(t), bugs(t)
	days := 0
	for _, b := range all {
		if _, err := r.planted(b); err != nil {
			t.Error(err)
		}
		if b.day != "" {
			days++
		}
	}
	if days < 6 {
		t.Errorf("the auditor is shown %d bugs, want at least 6", days)
	}
	const doc = "docs/planted.md"
	text, err := os.ReadFile(filepath.Join(r.dir, doc))
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

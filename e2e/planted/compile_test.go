package planted

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryBugCompiles type-checks the package that a bug changes, as it is with the bug. An edit that does not compile would
// otherwise show only in the tests with servers.
func TestEveryBugCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles what the packages with bugs import")
	}
	r, texts := newTree(t), map[string]map[string]string{} // by bug, then by file
	var dirs []string
	for _, b := range bugs(t) {
		changed, err := r.planted(b)
		if err != nil {
			t.Error(err)
			continue
		}
		texts[b.name] = changed
		for file := range changed {
			if dir := "./" + path.Dir(file); path.Ext(file) == ".go" && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	c := newCompiler(t, dirs)
	for bug, changed := range texts {
		t.Run(bug, func(t *testing.T) {
			for file := range changed {
				if path.Ext(file) != ".go" {
					continue
				}
				for _, err := range c.check(t, path.Dir(file), changed) {
					t.Error(err)
				}
			}
		})
	}
}

// compiler type-checks packages of the checkout, by their directory in it. What they import it takes from the build cache.
type compiler struct {
	root     string
	fset     *token.FileSet
	imports  types.Importer
	packages map[string]listed
	parsed   map[string]*ast.File // files without a bug
}

// listed is a package, as go list describes it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

func newCompiler(t *testing.T, dirs []string) *compiler {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}, dirs...)...)
	cmd.Dir, cmd.Stderr = root(t), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	c := &compiler{root: cmd.Dir, fset: token.NewFileSet(), packages: map[string]listed{}, parsed: map[string]*ast.File{}}
	exports := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if dir, err := filepath.Rel(c.root, p.Dir); err == nil {
			c.packages[filepath.ToSlash(dir)] = p
		}
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c
}

// check returns what a compiler says of the package in dir, with changed in place of the files of these names.
func (c *compiler) check(t *testing.T, dir string, changed map[string]string) (wrong []error) {
	t.Helper()
	p, ok := c.packages[dir]
	if !ok {
		t.Fatalf("go list does not know a package in %s", dir)
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		name = path.Join(dir, name)
		file, ok := c.parsed[name]
		if text, planted := changed[name]; planted {
			var err error
			if file, err = parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution); err != nil {
				return []error{err}
			}
		} else if !ok {
			var err error
			if file, err = parser.ParseFile(c.fset, filepath.Join(c.root, name), nil, parser.SkipObjectResolution); err != nil {
				t.Fatal(err)
			}
			c.parsed[name] = file
		}
		files = append(files, file)
	}
	conf := types.Config{Importer: c.imports, Error: func(err error) { wrong = append(wrong, err) }}
	conf.Check(p.ImportPath, c.fset, files, nil) // tells Error
	return wrong
}

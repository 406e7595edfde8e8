package shape_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostLines         = 400 // of a file
	mostFunctionLines = 60
)

// A file that is too long has two subjects, and a function too many steps without a name.
// Tests may have long functions: a story is read from its beginning to its end.
func TestFilesAndFunctionsAreShort(t *testing.T) {
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		files++
		source, err := os.ReadFile(path)
		if err == nil {
			shortEnough(t, strings.TrimPrefix(filepath.ToSlash(path), "../../"), source)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 500 {
		t.Errorf("only %d files were found", files)
	}
}

func shortEnough(t *testing.T, name string, source []byte) {
	t.Helper()
	if n := bytes.Count(source, []byte("\n")); n > mostLines {
		t.Errorf("%s has %d lines, more than %d: ask which two things it is, and give each a file", name, n, mostLines)
	}
	if strings.HasSuffix(name, "_test.go") {
		return
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		called := ""
		switch f := n.(type) {
		case *ast.FuncDecl:
			called = f.Name.Name
		case *ast.FuncLit: // the value of a variable; those within a function are its lines
			called = "a function without a name"
		default:
			return true
		}
		begins := set.Position(n.Pos()).Line
		if lines := set.Position(n.End()).Line - begins + 1; lines > mostFunctionLines {
			t.Errorf("%s:%d: %s has %d lines, more than %d: give a step of it a name, or let it do less", name, begins, called, lines, mostFunctionLines)
		}
		return false
	})
}

// Package words_test holds the strings of the program (errors, log lines, help) and the
// pages to the words of .vale/styles. Vale itself reads pages and comments, and no strings.
package words_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const root = "../.."

// rule is a word that is not written, and what is written instead.
type rule struct {
	is      *regexp.Regexp
	instead string
}

// rules are those of Vale's styles, which are the one source.
func rules(t *testing.T, styles ...string) []rule {
	t.Helper()
	var files []string
	for _, style := range styles {
		of, err := filepath.Glob(root + "/.vale/styles/" + style + "/*.yml")
		if err != nil || len(of) == 0 {
			t.Fatalf("no rules in %s: %v", style, err)
		}
		files = append(files, of...)
	}
	var all []rule
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Swap map[string]string }
		if err := yaml.Unmarshal(text, &r); err != nil || len(r.Swap) == 0 {
			t.Fatalf("%s has no swap: %v", file, err)
		}
		for word, instead := range r.Swap {
			all = append(all, rule{regexp.MustCompile(`(?i)\b(?:` + word + `)\b`), instead})
		}
	}
	return all
}

// exceptions are the folders that .vale.ini leaves out.
func exceptions(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(root + "/.vale.ini")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^\[(.+/)\*\*\]$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

// What the page says is in templates.
func TestNoTemplateOfThePageHasAWordThatIsNotOurs(t *testing.T) {
	all := rules(t, "Redrive")
	files, err := filepath.Glob(root + "/internal/webui/templates/*.html")
	if err != nil || len(files) < 5 {
		t.Fatalf("templates: %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			for _, r := range all {
				if found := r.is.FindString(line); found != "" {
					t.Errorf("%s:%d: %q: write %s", strings.TrimPrefix(file, root+"/"), n+1, found, r.instead)
				}
			}
		}
	}
}

// What a page says above the part that is written from the code, code left out.
func TestNoPageHasAWordThatIsNotOurs(t *testing.T) {
	all, seen := rules(t, "Redrive", "Pages"), 0
	code := regexp.MustCompile("(?s)```.*?\n *```|`[^`]*`|<!-- go test .* writes what follows -->.*")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		says := strings.Join(strings.Fields(code.ReplaceAllString(string(text), "…")), " ")
		for _, r := range all {
			for _, at := range r.is.FindAllStringIndex(says, -1) {
				t.Errorf("%s: %q: write %s", strings.TrimPrefix(filepath.ToSlash(path), root+"/"), says[max(0, at[0]-30):at[1]], r.instead)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 30 {
		t.Errorf("only %d pages were found", seen)
	}
}

func TestNoStringOfTheProgramHasAWordThatIsNotOurs(t *testing.T) {
	all, without, seen := rules(t, "Redrive"), exceptions(t), 0
	for _, dir := range []string{"cmd", "internal", "policy", "wire", "redrivetest", "redriveprom", "redriveotel"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
			for _, folder := range without {
				if strings.HasPrefix(name, folder) {
					return nil
				}
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				if !strings.ContainsAny(text, " \n") {
					return true // a name, not a sentence
				}
				seen++
				text = strings.Join(strings.Fields(text), " ") // help runs over lines
				for _, r := range all {
					if found := r.is.FindString(text); found != "" {
						t.Errorf("%s:%d: %q: write %s", name, fset.Position(literal.Pos()).Line, found, r.instead)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 2000 {
		t.Errorf("only %d strings were found", seen)
	}
}

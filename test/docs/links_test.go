// Package docs_test checks what the pages say against the tree, and who imports whom.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

const root = "../.."

// tree reads the text files of the repository, by their paths.
func tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && skipped.MatchString(d.Name()):
			return filepath.SkipDir
		case d.Type().IsRegular() && textual.MatchString(d.Name()):
			data, err := os.ReadFile(path)
			all[strings.TrimPrefix(filepath.ToSlash(path), root+"/")] = string(data)
			return err
		}
		return nil
	})
	expect.NoError(t, err)
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	expect.NoError(t, err)
	return string(data)
}

var (
	skipped = regexp.MustCompile(`^(\..*|bin|results|node_modules)$`)
	textual = regexp.MustCompile(`\.(md|go|ya?ml|json|html|txtar|txt)$|^Makefile$`)
	proof   = regexp.MustCompile("`(Test\\w+)`")
	tested  = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	linked  = regexp.MustCompile(`(?:\]\(|\b(?:href|src|srcset)=")([^)"\s]+)[)"]`)
	printed = regexp.MustCompile(`\bdocs/[\w./-]+\.(?:md|json|yaml|svg|png)(?:#[\w-]+)?`)
)

// anchors returns the fragments that GitHub gives the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		slug := strings.ToLower(regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(m[1], ""))
		slug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(slug, "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

// A relative link of a page, and a page that an error, a log line, --help, an alert or a
// comment names, leads to a file and to a heading of it. The index has each page.
func TestEachLinkResolves(t *testing.T) {
	files := tree(t)
	index := files["docs/README.md"]
	links, names := 0, 0
	leads := func(from, path, fragment string) {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("%s leads to %s, which does not exist", from, path)
		} else if fragment != "" && filepath.Ext(path) == ".md" && !anchors(files[path])[fragment] {
			t.Errorf("%s leads to %s#%s, and the page has no such heading", from, path, fragment)
		}
	}
	for file, text := range files {
		for _, name := range printed.FindAllString(text, -1) {
			names++
			path, fragment, _ := strings.Cut(name, "#")
			leads(file, path, fragment)
		}
		if filepath.Ext(file) != ".md" {
			continue
		}
		page, in := strings.CutPrefix(file, "docs/")
		if in && page != "README.md" && !strings.Contains(index, "]("+page+")") {
			t.Errorf("the index docs/README.md does not have %s", page)
		}
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			path, fragment, _ := strings.Cut(m[1], "#")
			if path = filepath.Join(filepath.Dir(file), path); m[1][0] == '#' {
				path = file
			}
			leads(file, path, fragment)
		}
	}
	if links < 100 || names < 50 {
		t.Errorf("only %d links and %d names of pages were found", links, names)
	}
}

// A test that a page names as proof of what it says.
func TestEachTestThatAPageNamesExists(t *testing.T) {
	files, defined := tree(t), map[string]bool{}
	for file, text := range files {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range tested.FindAllStringSubmatch(text, -1) {
				defined[m[1]] = true
			}
		}
	}
	named := 0
	for file, text := range files {
		if filepath.Ext(file) != ".md" {
			continue
		}
		for _, m := range proof.FindAllStringSubmatch(text, -1) {
			if named++; !defined[m[1]] {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names of tests were found", named)
	}
}

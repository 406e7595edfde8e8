package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tree calls see for each text file of the repository, with its path from the root.
func tree(t *testing.T, see func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != ".." && (strings.HasPrefix(name, ".") || name == "bin" || name == "node_modules" || name == "results" || name == "screenshots") {
				return filepath.SkipDir
			}
			return nil
		}
		kinds := []string{".md", ".go", ".yml", ".yaml", ".json", ".html", ".tmpl", ".txtar", ".txt"}
		if !d.Type().IsRegular() || !slices.Contains(kinds, filepath.Ext(name)) && name != "Makefile" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil {
			see(strings.TrimPrefix(filepath.ToSlash(path), "../"), string(data))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	linked  = regexp.MustCompile(`(?:\]\(|\b(?:href|src|srcset)=")([^)"\s]+)[)"]`)
	printed = regexp.MustCompile(`\bdocs/[\w./-]+\.(?:md|json|yaml|svg|png)(?:#[\w-]+)?`)
)

// anchors are the fragments that GitHub gives the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		slug := strings.ToLower(regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(m[1], ""))
		slug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(slug, "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

// leads reports what is wrong with a link to path#fragment, from the root.
func leads(t *testing.T, from, path, fragment string) {
	t.Helper()
	file := filepath.Join("..", path)
	if _, err := os.Stat(file); err != nil {
		t.Errorf("%s leads to %s, which does not exist", from, path)
		return
	}
	if fragment == "" || filepath.Ext(path) != ".md" {
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !anchors(string(text))[fragment] {
		t.Errorf("%s leads to %s#%s, and the page has no such heading", from, path, fragment)
	}
}

// Each relative link of each page leads to a file, and to a heading of it.
func TestEachLinkResolves(t *testing.T) {
	seen := 0
	tree(t, func(page, text string) {
		if filepath.Ext(page) != ".md" {
			return
		}
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			seen++
			path, fragment, _ := strings.Cut(m[1], "#")
			if path == "" {
				path = page
			} else {
				path = filepath.Join(filepath.Dir(page), path)
			}
			leads(t, page, path, fragment)
		}
	})
	if seen < 100 {
		t.Errorf("only %d links were found", seen)
	}
}

// Each page that an error, a log line, --help, an alert or a comment names exists.
func TestEachPageThatTheCodeNamesExists(t *testing.T) {
	seen := 0
	tree(t, func(file, text string) {
		for _, name := range printed.FindAllString(text, -1) {
			seen++
			path, fragment, _ := strings.Cut(name, "#")
			leads(t, file, path, fragment)
		}
	})
	if seen < 50 {
		t.Errorf("only %d names of pages were found", seen)
	}
}

// Each page is in the index, and so are the pages of deploy.
func TestTheIndexHasEachPage(t *testing.T) {
	index, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	tree(t, func(file, _ string) {
		page, in := strings.CutPrefix(file, "docs/")
		if in && filepath.Ext(page) == ".md" && page != "README.md" && !strings.Contains(string(index), "]("+page+")") {
			t.Errorf("docs/README.md does not have %s", page)
		}
	})
}

// Each test that a page names as proof exists.
func TestEachTestThatAPageNamesExists(t *testing.T) {
	defined, named := map[string]bool{}, map[string]string{}
	tree(t, func(file, text string) {
		switch {
		case strings.HasSuffix(file, "_test.go"):
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
				defined[m[1]] = true
			}
		case filepath.Ext(file) == ".md":
			for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(text, -1) {
				named[m[1]] = file
			}
		}
	})
	for test, page := range named {
		if !defined[test] {
			t.Errorf("%s names %s, which does not exist", page, test)
		}
	}
	if len(named) < 100 {
		t.Errorf("only %d names of tests were found", len(named))
	}
}

// An identifier that a page of docs/explanation or ARCHITECTURE.md names, as package.Name or
// package.Type.Name, is declared in that package.
func TestEachIdentifierThatAPageNamesExists(t *testing.T) {
	source, named := map[string]string{}, map[string]string{}
	tree(t, func(file, text string) {
		switch {
		case strings.HasSuffix(file, "_test.go"):
		case filepath.Ext(file) == ".go":
			source[filepath.Base(filepath.Dir(file))] += text
		case strings.HasPrefix(file, "docs/explanation/") || file == "ARCHITECTURE.md":
			for _, m := range regexp.MustCompile("`([a-z]+(?:\\.[A-Za-z]\\w*){1,2})`").FindAllStringSubmatch(text, -1) {
				named[m[1]] = file
			}
		}
	})
	found := 0
	for name, page := range named {
		parts := strings.Split(name, ".")
		code, isPackage := source[parts[0]]
		// Without a capital letter it may be a queue, a file or a key of the configuration.
		if !isPackage || parts[0] == "redrive" || strings.ToLower(name) == name && !strings.HasSuffix(page, "goroutines.md") {
			continue
		}
		found++
		for _, part := range parts[1:] {
			if !regexp.MustCompile(`(?m)^(func|type|var|const) (\([^)]*\) )?` + part + `\b|^\t` + part + `\b`).MatchString(code) {
				t.Errorf("%s names %s, and package %s declares no %s", page, name, parts[0], part)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d identifiers were found", found)
	}
}

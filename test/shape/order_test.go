package shape_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A package's comment gives the order in which to read its files: each file that it names is
// there.
func TestTheReadingOrderNamesFilesThatExist(t *testing.T) {
	named := regexp.MustCompile(`(^|[\s(])([a-z]\w*\.go)\b`)
	orders := 0
	for _, path := range sources(t) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		names := named.FindAllStringSubmatch(file.Doc.Text(), -1)
		if len(names) > 2 {
			orders++
		}
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), name[2])); err != nil {
				t.Errorf("%s: the reading order names %s: %v", path, name[2], err)
			}
		}
	}
	if orders < 8 {
		t.Errorf("only %d packages have a reading order", orders)
	}
}

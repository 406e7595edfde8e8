package shape_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each path of the table in CONTRIBUTING.md exists, once its {a,b} are written out; those with a
// word in capitals, such as NAME, are to be made.
func TestWhereToAddSomethingExists(t *testing.T) {
	data, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	several := regexp.MustCompile(`^(.*)\{(.*)\}(.*)$`)
	isPath := regexp.MustCompile(`^[\w./{},-]+(/|\.(go|html|yml|json|md))$`)
	toBeMade := regexp.MustCompile(`\b(NAME|WHAT_test\.go)\b`)
	seen := 0
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for i, quoted := range strings.Split(line, "`") {
			if i%2 == 0 || !isPath.MatchString(quoted) || toBeMade.MatchString(quoted) {
				continue
			}
			names := []string{quoted}
			if m := several.FindStringSubmatch(quoted); m != nil {
				names = nil
				for name := range strings.SplitSeq(m[2], ",") {
					names = append(names, m[1]+name+m[3])
				}
			}
			for _, name := range names {
				seen++
				if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
					t.Errorf("CONTRIBUTING.md says to add something to %s: %v", name, err)
				}
			}
		}
	}
	if seen < 80 {
		t.Errorf("only %d paths were found", seen)
	}
}

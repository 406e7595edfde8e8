package howto_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write the consumers into the pages")

// pages are all guides.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	if err != nil || len(names) < 2 {
		t.Fatalf("guides: %q, %v", names, err)
	}
	all := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

// The consumers in the pages are those that are run.
func TestThePagesShowTheConsumersThatAreRun(t *testing.T) {
	block := regexp.MustCompile("(?s)<!-- (clients/\\S+): [^>]*-->\n\n```(\\w+)\n(?:.*?\n)?```\n")
	shown := map[string]bool{}
	for name, text := range pages(t) {
		is := block.ReplaceAllStringFunc(text, func(was string) string {
			m := block.FindStringSubmatch(was)
			code, err := os.ReadFile(m[1])
			if err != nil {
				t.Fatal(err)
			}
			shown[m[1]] = true
			return "<!-- " + m[1] + ": go test ./docs/how-to -update writes it here -->\n\n```" + m[2] + "\n" + string(code) + "```\n"
		})
		if is == text {
			continue
		}
		if !*update {
			t.Errorf("%s differs from its consumer; go test ./docs/how-to -update writes it", name)
			continue
		}
		if err := os.WriteFile(name, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("clients/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !shown[file] {
			t.Errorf("no page shows %s", file)
		}
	}
}

package frameworks

import (
	"os"
	"strings"
	"testing"
)

// The page has each framework and each header that is read or removed.
func TestTheReference(t *testing.T) {
	data, err := os.ReadFile("../../docs/reference/frameworks.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	has := func(framework, header string) {
		short := strings.TrimPrefix(header, stamp)
		if short != header {
			short = "…" + short
		}
		if !strings.Contains(page, "`"+short) && !strings.Contains(page, short+"`") {
			t.Errorf("docs/reference/frameworks.md lacks %s of %s", header, framework)
		}
	}
	for _, name := range Names() {
		if !strings.Contains(page, "| "+name+" |") {
			t.Errorf("docs/reference/frameworks.md lacks %s", name)
		}
	}
	for _, p := range presets {
		for _, headers := range [][]string{p.markers, p.removed, p.prefixes} {
			for _, header := range headers {
				has(p.name, header)
			}
		}
	}
}

package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/query"
)

// fieldTable is what can be asked for, as people read it.
func fieldTable() string {
	var b strings.Builder
	b.WriteString("| field | what | value | such as |\n|---|---|---|---|\n")
	for _, f := range query.Fields() {
		name := f.Name
		switch name {
		case "header.":
			name = "header.NAME"
		case "body.":
			name = "body.PATH"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` |\n", name, f.Doc, f.Takes, f.Example)
	}
	return b.String()
}

func TestTheTableOfFields(t *testing.T) {
	written(t, "reference/query.md", "<!-- end of fields -->", fieldTable())
}

// Each query that the page shows is one.
func TestTheQueriesOfThePage(t *testing.T) {
	text, err := os.ReadFile("reference/query.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```")
	block, _, _ := strings.Cut(rest, "```")
	lines := regexp.MustCompile(`(?m)^\S.*$`).FindAllString(block, -1)
	if len(lines) < 5 {
		t.Fatalf("the page shows %q", lines)
	}
	for _, line := range lines {
		if _, err := query.Parse(strings.TrimSpace(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

package wire

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

var update = flag.Bool("update", false, "write docs/reference/headers.md")

// constants are the exported names in a file of this package whose values are written
// out, as rows of a table: each with its comment, or that of the one before it.
func constants(t *testing.T, name, prefix string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	expect.NoError(t, err)
	var rows, comment string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !ast.IsExported(spec.Names[0].Name) || !strings.HasPrefix(spec.Names[0].Name, prefix) {
			return true
		}
		if c := spec.Comment.Text() + spec.Doc.Text(); c != "" {
			comment = strings.TrimPrefix(strings.Join(strings.Fields(c), " "), spec.Names[0].Name+" ")
		}
		if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
			text, err := strconv.Unquote(value.Value)
			expect.NoError(t, err)
			rows += fmt.Sprintf("| `%s` | `%s` | %s |\n", text, spec.Names[0].Name, comment)
		}
		return true
	})
	return rows
}

// The reference has each name of this package, with its comment.
func TestTheReference(t *testing.T) {
	const page, begin = "../docs/reference/headers.md", "<!-- go test ./wire -run TestTheReference -update writes what follows -->\n"
	text, err := os.ReadFile(page)
	expect.NoError(t, err)
	before, is, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no place for the reference", page)
	}
	want := "\n## Headers\n\n| header | in `wire` | |\n|---|---|---|\n" + constants(t, "headers.go", "Header") +
		"\n## Reasons of a failure\n\n| reason | in `wire` | |\n|---|---|---|\n" + constants(t, "headers.go", "Reason") +
		"\n## Exchanges and queues\n\n| name | in `wire` | |\n|---|---|---|\n" + constants(t, "names.go", "") +
		fmt.Sprintf("| `%s` | `RetryExchange` | fanout, bound to that queue alone; a retry is published here |\n", RetryExchange("QUEUE")) +
		fmt.Sprintf("| `%s` | `LaneQueue` | due messages of one work queue stay here while it does not accept them |\n", LaneQueue("QUEUE")) +
		fmt.Sprintf("| `%s` | `MoveExchange` | while `redrive move` moves a queue |\n", MoveExchange("QUEUE")) +
		"\nA name over 255 bytes is shortened, and ends in a hash of the whole.\n"
	switch {
	case is == want:
	case *update:
		expect.NoError(t, os.WriteFile(page, []byte(before+begin+want), 0o644))
	default:
		t.Errorf("%s differs from the code: go test ./wire -run TestTheReference -update writes it", page)
	}
}

package headers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Each header of package wire is removed from what is published again: one that removed
// lacked would reach the next attempt as its publisher forged it.
func TestEveryHeaderOfWireIsRemoved(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../wire/headers.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	forged := amqp.Table{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if !strings.HasPrefix(name.Name, "Header") && !strings.HasPrefix(name.Name, "Annotation") || name.Name == "HeaderUnreadable" { // which replaces the message's own
				continue
			}
			header, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatalf("%s: %v", name.Name, err)
			}
			forged[header] = "forged"
		}
		return true
	})
	if len(forged) < 14 || forged[wire.HeaderParkReason] == nil || forged[wire.AnnotationPark] == nil {
		t.Fatalf("wire/headers.go has only the headers %v", forged)
	}
	for header, v := range (History{ID: "id", Queue: "q", Reason: "rejected"}).ApplyTo(wire.Message{Headers: forged}).Headers {
		if v == "forged" {
			t.Errorf("%s is still as its publisher forged it", header)
		}
	}
}

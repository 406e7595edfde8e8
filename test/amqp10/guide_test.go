package amqp10_test

import (
	"os"
	"strings"
	"testing"
)

// The guide has the code that these tests run.
func TestTheGuideHasThisCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/amqp10.md")
	must(t, err)
	code, err := os.ReadFile("consumer_test.go")
	must(t, err)
	_, functions, _ := strings.Cut(string(code), "// failed gives")
	if !strings.Contains(string(page), "// failed gives"+functions+"```") {
		t.Error("docs/how-to/amqp10.md lacks the functions of consumer_test.go")
	}
}

package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page of the library, in a module of its own that has nothing else, as
// a reader would try it.
func TestThePageOfTheLibraryBuildsInAFreshModule(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/how-to/library.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks of Go, and this test knows 2", len(blocks))
	}
	// What surrounds the blocks: their package, and what a reader has.
	program := `package main

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
)

func main() { _, _ = consume, settle }

func ship(context.Context, []byte) error { return nil }
func handle(amqp.Delivery) error         { return nil }

func consume(ctx context.Context) error {
` + blocks[0][1] + `}

func settle(ctx context.Context, client *redrive.Client, consumer redrive.Consumer, deliveries <-chan amqp.Delivery) error {
` + blocks[1][1] + `return nil
}
`
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string]string{
		"main.go": program,
		"go.mod":  "module example.com/shop\n\ngo 1.25.0\n\nrequire github.com/redrive-mq/redrive v0.0.0\n\nreplace github.com/redrive-mq/redrive => " + root + "\n",
		"go.sum":  string(sums),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing is fetched: what this module needs is here already.
	for _, args := range [][]string{{"build", "-mod=mod", "./..."}, {"vet", "-mod=mod", "./..."}} {
		c := exec.Command("go", args...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s\n%s", strings.Join(args, " "), err, out, program)
		}
	}
	needs, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, heavy := range []string{"pebble", "cobra", "prometheus", "yaml"} {
		if strings.Contains(string(needs), heavy) {
			t.Errorf("the reader's module needs %s:\n%s", heavy, needs)
		}
	}
}

package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The Go of the library's page compiles in a module of its own, as a reader would try it.
func TestThePageOfTheLibraryBuildsInAFreshModule(t *testing.T) {
	tree, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "docs/how-to/library.md"), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks of Go, and this test knows 2", len(blocks))
	}
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

func settle(ctx context.Context, client *redrive.Client, consumer redrive.Consumer,
	deliveries <-chan amqp.Delivery) error {
` + blocks[1][1] + `return nil
}
`
	dir := t.TempDir()
	mod := "module example.com/shop\n\ngo 1.25.0\n\nrequire " + module + " v0.0.0\n\n" +
		"replace " + module + " => " + tree + "\n"
	for name, data := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": read(t, "go.sum")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("go", "vet", "-mod=mod", ".")
	c.Dir = dir
	c.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off") // what it needs is here already
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
}

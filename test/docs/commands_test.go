package docs_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/testenv/expect"
)

var inline = regexp.MustCompile("`((?:bin/)?redrive [a-z][^`…]*)`")

// Each command that a page or --help prints exists, with its flags and as many arguments as it
// takes. What it does is tested elsewhere.
func TestCommandsOfPagesExist(t *testing.T) {
	found, pages := 0, tree(t)
	for name, text := range helpTexts(cli.Commands()) {
		pages[name+" --help.md"] = text
	}
	for page, text := range pages {
		if filepath.Ext(page) != ".md" || page == "CHANGELOG.md" {
			continue // that tells of earlier ones
		}
		for _, command := range commandsOf(text) {
			found++
			expect.Err(t, parses(command), nil, "%s: %s", page, command)
		}
	}
	if found < 150 {
		t.Errorf("only %d commands were found", found)
	}
}

// helpTexts returns the examples of c and all below it, as the shell blocks of a page.
func helpTexts(c *cobra.Command) map[string]string {
	all := map[string]string{c.CommandPath(): "```sh\n" + c.Example + "\n```\n"}
	for _, sub := range c.Commands() {
		maps.Copy(all, helpTexts(sub))
	}
	return all
}

// commandsOf returns the commands of a page: lines of its shell blocks, and what is in backquotes.
func commandsOf(page string) (all []string) {
	shell, block := false, false
	// Commands of a block begin with $ here, so that they are known from those in texts.
	for line := range strings.Lines(strings.ReplaceAll(page, "\\\n", " ")) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "```") {
			block = !block
			shell = block && (text == "```sh" || text == "```")
			continue
		}
		switch {
		case shell:
			text = strings.TrimPrefix(strings.TrimPrefix(text, "$ "), "bin/")
			if strings.HasPrefix(text, "redrive ") && !strings.HasPrefix(text, "redrive version ") {
				all = append(all, "$ "+text)
			}
		case !block:
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				all = append(all, strings.TrimPrefix(m[1], "bin/"))
			}
		}
	}
	return all
}

// parses returns why a command line would be refused before it does anything.
func parses(line string) error {
	root := cli.Commands()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(shellWords(strings.TrimPrefix(line, "$ "))[1:])
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if !c.HasParent() {
		return fmt.Errorf("there is no such command")
	}
	if c.HasSubCommands() && !c.Flags().HasFlags() && len(c.Flags().Args()) == 0 {
		return nil // the name of a group of commands
	}
	if len(c.Flags().Args()) == 0 && !strings.HasPrefix(line, "$") {
		return nil // its name in a text, perhaps with a flag
	}
	return c.ValidateArgs(c.Flags().Args())
}

var word = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"|>;&])+|[|>;&'"]`)

// shellWords returns the words of a command, up to a pipe, a redirection, another command or
// a comment.
func shellWords(line string) (words []string) {
	for _, w := range word.FindAllString(line, -1) {
		if strings.ContainsAny(w[:1], "|>;&#") {
			break
		}
		words = append(words, strings.NewReplacer("'", "", `"`, "").Replace(w))
	}
	return words
}

// The Go of the library's page compiles in a module of its own, as a reader would try it.
func TestThePageOfTheLibraryBuildsInAFreshModule(t *testing.T) {
	tree, err := filepath.Abs(root)
	expect.NoError(t, err)
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
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	c := exec.Command("go", "vet", "-mod=mod", ".")
	c.Dir = dir
	c.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off") // what it needs is here already
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
}

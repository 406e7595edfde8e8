package docs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/docs/commandline"
	"github.com/redrive-mq/redrive/internal/cli"
)

// eachPage visits all pages but the one that is made of the commands.
func eachPage(t *testing.T, visit func(page, text string)) {
	t.Helper()
	pages, err := filepath.Glob("*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md", "../README.md", "../deploy/README.md") {
		if page == "reference/cli.md" {
			continue
		}
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		visit(page, string(data))
	}
}

// Each command that a page prints is one, with flags that it has and as many arguments as it
// takes. docs/how-to has tests that run them.
func TestCommandsOfPagesExist(t *testing.T) {
	found := 0
	eachPage(t, func(page, text string) {
		for _, command := range commandline.Commands(text) {
			found++
			if _, err := parses(command); err != nil {
				t.Errorf("%s: %s: %v", page, command.Line, err)
			}
		}
	})
	if found < 150 {
		t.Errorf("only %d commands were found", found)
	}
}

// A command that reads the config file works as it is printed: the page exports REDRIVE_CONFIG, or
// the command has --config. A name in a text, without
// anything behind it, is none to run, nor is what pages that explain mention.
func TestPagesSayWhichConfigFileTheirCommandsRead(t *testing.T) {
	found := 0
	eachPage(t, func(page, text string) {
		for _, command := range commandline.Commands(text) {
			c, err := parses(command)
			explains := strings.HasPrefix(page, "explanation/") || strings.HasPrefix(page, "reference/")
			if err != nil || !command.Shell && (explains || c.Flags().NFlag()+len(c.Flags().Args()) == 0) {
				continue
			}
			if flag := c.Flags().Lookup("config"); flag == nil || flag.Changed {
				continue
			}
			if found++; !strings.Contains(text, "export REDRIVE_CONFIG=") {
				t.Errorf("%s: %s reads the config file: the page must say export REDRIVE_CONFIG=…, or the command --config", page, command.Line)
			}
		}
	})
	if found < 30 {
		t.Errorf("only %d commands were found", found)
	}
}

// parses returns the command of a line, and why it would be refused before it does anything.
func parses(line commandline.Command) (*cobra.Command, error) {
	words, err := commandline.Words(line.Line)
	if err != nil {
		return nil, err
	}
	root := cli.Commands()
	root.InitDefaultCompletionCmd()
	c, rest, err := root.Find(words[1:])
	if err != nil {
		return c, err
	}
	if err := c.ParseFlags(rest); err != nil {
		return c, err
	}
	if !c.HasParent() {
		return c, errors.New("there is no such command")
	}
	if c.HasSubCommands() && !c.Flags().HasFlags() && len(c.Flags().Args()) == 0 {
		return c, nil // the name of a group of commands
	}
	if len(c.Flags().Args()) == 0 && !line.Shell {
		return c, nil // its name in a text, perhaps with a flag
	}
	return c, c.ValidateArgs(c.Flags().Args())
}

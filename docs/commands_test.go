package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/cli"
)

var inline = regexp.MustCompile("`((?:bin/)?redrive [a-z][^`…]*)`")

// Each command that a page prints is one, with flags that it has and as many arguments as it
// takes. What it does is tested elsewhere.
func TestCommandsOfPagesExist(t *testing.T) {
	pages, err := filepath.Glob("*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "README.md", "../README.md", "../deploy/README.md") {
		if page == "reference/cli.md" {
			continue // made of the commands
		}
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range commandsOf(string(data)) {
			found++
			if err := parses(command); err != nil {
				t.Errorf("%s: %s: %v", page, command, err)
			}
		}
	}
	if found < 150 {
		t.Errorf("only %d commands were found", found)
	}
}

// commandsOf are the commands of a page: lines of its shell blocks, and what is in backquotes.
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
	words, err := shellWords(strings.TrimPrefix(line, "$ "))
	if err != nil {
		return err
	}
	root := cli.Commands()
	root.InitDefaultCompletionCmd()
	c, rest, err := root.Find(words[1:])
	if err != nil {
		return err
	}
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

// shellWords are the words of a command, up to a pipe, a redirection, another command or a comment.
func shellWords(line string) (words []string, err error) {
	word, in, quote := "", false, rune(0)
	for _, c := range line + " " {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word += string(c)
			}
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t' || strings.ContainsRune("|>;&", c) || c == '#' && !in:
			if in {
				words = append(words, word)
			}
			if word, in = "", false; c != ' ' && c != '\t' {
				return words, nil
			}
		default:
			word, in = word+string(c), true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	return words, nil
}

// Package commandline finds the commands that pages print, for the tests that run them.
package commandline

import (
	"errors"
	"regexp"
	"strings"
)

var inline = regexp.MustCompile("`((?:bin/)?redrive [a-z][^`…]*)`")

// Command is one that a page prints.
type Command struct {
	Line  string // without a prompt and the folder of the program
	Shell bool   // it is a line of a shell block; otherwise it stands in a text, perhaps as a name only
}

// Commands are those of a page: lines of its shell blocks, and what is in backquotes.
func Commands(page string) (all []Command) {
	shell, console, block, text := false, false, false, []string(nil)
	flush := func() { // what is in backquotes may go on in the next line
		for _, m := range inline.FindAllStringSubmatch(strings.Join(text, " "), -1) {
			all = append(all, Command{Line: strings.TrimPrefix(m[1], "bin/")})
		}
		text = nil
	}
	for line := range strings.Lines(strings.ReplaceAll(page, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			flush()
			block = !block
			console = block && line == "```console" // with what the commands print
			shell = block && (line == "```sh" || line == "```") || console
			continue
		}
		switch {
		case console && !strings.HasPrefix(line, "$ "):
		case shell:
			line = strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "bin/")
			if strings.HasPrefix(line, "redrive ") && !strings.HasPrefix(line, "redrive version ") {
				all = append(all, Command{line, true})
			}
		case !block && line == "":
			flush()
		case !block:
			text = append(text, line)
		}
	}
	flush()
	return all
}

// Words are the words of a command, up to a pipe, a redirection, another command or a comment.
func Words(line string) (words []string, err error) {
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
		return nil, errors.New("a quote is not closed")
	}
	return words, nil
}

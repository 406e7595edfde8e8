package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// operators are those of gremlins: which token becomes which.
var operators = map[string]map[string]string{
	"ARITHMETIC_BASE":         {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"},
	"CONDITIONALS_BOUNDARY":   {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
	"CONDITIONALS_NEGATION":   {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"},
	"INCREMENT_DECREMENT":     {"++": "--", "--": "++"},
	"INVERT_ASSIGNMENTS":      {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "%=": "%="}, // the last is no change
	"INVERT_BITWISE":          {"&": "|", "|": "&", "^": "&", "&^": "&", "<<": ">>", ">>": "<<"},
	"INVERT_BWASSIGN":         {"&=": "|=", "|=": "&=", "^=": "&=", "&^=": "&=", "<<=": ">>=", ">>=": "<<="},
	"INVERT_LOGICAL":          {"&&": "||", "||": "&&"},
	"INVERT_LOOPCTRL":         {"break": "continue", "continue": "break"},
	"INVERT_NEGATIVES":        {"-": "+"},
	"REMOVE_SELF_ASSIGNMENTS": {"+=": "=", "-=": "=", "*=": "=", "/=": "=", "%=": "=", "&=": "=", "|=": "=", "^=": "=", "&^=": "=", "<<=": "=", ">>=": "="},
}

// mutant is a change of one token.
type mutant struct {
	file     string // from the root of the tree
	line     int
	text     string // of the line
	old, new string
	source   string // the file with the change
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d: %s becomes %s in %s", m.file, m.line, m.old, m.new, m.text)
}

// found is what gremlins writes.
type found struct {
	Files []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Type         string
			Line, Column int
		}
	}
}

// findMutants has gremlins find the mutants of packages. It only finds them: run by itself it
// takes what does not compile for caught, and leaves out the conditions of a switch, since no
// coverage is known of them.
func findMutants(ctx context.Context, root string, packages []string) (all []mutant, err error) {
	dir, err := os.MkdirTemp("", "redrive-gremlins-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, tree := filepath.Join(dir, "gremlins"), filepath.Join(dir, "tree")
	if err := command(ctx, root, "go", "-C", "tools/gremlins", "build", "-o", binary, "github.com/go-gremlins/gremlins/cmd/gremlins"); err != nil {
		return nil, err
	}
	// It copies all that is in the tree: not the brokers.
	if err := copyTree(ctx, root, tree); err != nil {
		return nil, err
	}
	for _, in := range packages {
		output := filepath.Join(dir, "found.json")
		args := []string{"unleash", "--silent", "--dry-run", "--workers=1", "--output=" + output}
		for name := range operators {
			args = append(args, "--"+strings.ReplaceAll(strings.ToLower(name), "_", "-"))
		}
		if err := command(ctx, tree, binary, append(args, "./"+in)...); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(output)
		if err != nil {
			return nil, err
		}
		of, err := mutantsOf(root, in, data)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// copyTree copies what git knows of, and what it would add.
func copyTree(ctx context.Context, from, to string) error {
	c := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	c.Dir = from
	names, err := c.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o700) //nolint:gosec // some are scripts
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mutantsOf makes the mutants of a package of what gremlins has found, each once.
func mutantsOf(root, in string, data []byte) (all []mutant, err error) {
	var found found
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, fmt.Errorf("what gremlins found in %s: %w", in, err)
	}
	seen := map[string]bool{}
	for _, f := range found.Files {
		if strings.Contains(f.Name, "/") {
			continue // another package
		}
		source, err := os.ReadFile(filepath.Join(root, in, f.Name))
		if err != nil {
			return nil, err
		}
		for _, at := range f.Mutations {
			m := mutant{file: path.Join(in, f.Name), line: at.Line}
			if err := m.change(source, at.Column, operators[at.Type]); err != nil {
				return nil, fmt.Errorf("%s:%d:%d: %s: %w", m.file, at.Line, at.Column, at.Type, err)
			}
			if m.old != m.new && !seen[m.source] {
				all = append(all, m)
			}
			seen[m.source] = true
		}
	}
	return all, nil
}

// change changes the token at a column of the mutant's line.
func (m *mutant) change(source []byte, column int, tokens map[string]string) error {
	lines := bytes.SplitAfter(source, []byte("\n"))
	if m.line < 1 || m.line > len(lines) || column < 1 || column > len(lines[m.line-1]) {
		return fmt.Errorf("the file has no such place")
	}
	at := len(bytes.Join(lines[:m.line-1], nil)) + column - 1
	m.text = strings.TrimSpace(string(lines[m.line-1]))
	for old, with := range tokens {
		if bytes.HasPrefix(source[at:], []byte(old)) && len(old) > len(m.old) {
			m.old, m.new = old, with
		}
	}
	if m.old == "" {
		return fmt.Errorf("no such token in %s", m.text)
	}
	m.source = string(source[:at]) + m.new + string(source[at+len(m.old):])
	return nil
}

// order sorts mutants so that the first of them are a fair sample of all, the same each time.
func order(all []mutant) {
	slices.SortFunc(all, func(a, b mutant) int {
		return cmp.Or(cmp.Compare(sum(a.source), sum(b.source)), strings.Compare(a.file, b.file))
	})
}

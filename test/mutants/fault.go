package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// fault is one change of one file, which tests must catch.
type fault struct {
	name  string // what the code does wrong
	file  string // from the root of the tree
	old   string // stands in the file exactly once
	new   string // replaces it
	tests string // names, separated by spaces: at least one of them fails
	pkg   string // their folder; empty: the file's
}

// faults returns the whole list.
func faults() []fault {
	return slices.Concat(policyFaults, messageFaults, retryFaults, throttleFaults, storeFaults, accessFaults, operationFaults, configFaults, libraryFaults)
}

// in returns the folder of the tests.
func (f *fault) in() string {
	if f.pkg != "" {
		return f.pkg
	}
	return path.Dir(f.file)
}

// source returns the file with the fault.
func (f *fault) source(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, f.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(data), f.old); n != 1 || f.old == f.new {
		return "", fmt.Errorf("%s has %q %d times, to be replaced by %q; expected once, by something else", f.file, f.old, n, f.new)
	}
	return strings.Replace(string(data), f.old, f.new, 1), nil
}

// check returns all that is wrong with a list: it is of no use once the code has moved on.
func check(root string, list []fault) error {
	var wrong []error
	names := map[string]bool{}
	tests := map[string]string{} // the source of the tests in a folder
	for _, f := range list {
		if f.name == "" || names[f.name] {
			wrong = append(wrong, fmt.Errorf("two faults are called %q, or one is called nothing", f.name))
		}
		names[f.name] = true
		if _, err := f.source(root); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", f.name, err))
		}
		in := f.in()
		if _, read := tests[in]; !read {
			source, err := testsIn(filepath.Join(root, in))
			if err != nil {
				return err
			}
			tests[in] = source
		}
		for _, name := range strings.Fields(f.tests) {
			if !regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(t \*testing\.T\)`).MatchString(tests[in]) {
				wrong = append(wrong, fmt.Errorf("%s: %s has no test %q", f.name, in, name))
			}
		}
		if strings.TrimSpace(f.tests) == "" {
			wrong = append(wrong, fmt.Errorf("%s: no test must catch it", f.name))
		}
	}
	return errors.Join(wrong...)
}

// checkEquivalents returns all that is wrong with the list of equivalents.
func checkEquivalents(root string, list []equivalent) error {
	var wrong []error
	for _, e := range list {
		if _, err := e.source(root); err != nil {
			wrong = append(wrong, err)
		}
		if e.why == "" {
			wrong = append(wrong, fmt.Errorf("%s: %q is equivalent for no reason", e.file, e.new))
		}
	}
	return errors.Join(wrong...)
}

func testsIn(folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	var all strings.Builder
	for _, file := range files {
		source, readErr := os.ReadFile(file)
		all.Write(source)
		err = errors.Join(err, readErr)
	}
	return all.String(), err
}

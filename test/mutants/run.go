package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// runner runs go test in a tree.
type runner struct {
	root    string
	timeout time.Duration // of one run
}

type verdict int

const (
	survived verdict = iota
	caught
	hung   // ended by the timeout: caught too
	broken // it does not compile, or go test could not be run: an error of the list
)

// result is what became of a fault.
type result struct {
	verdict verdict
	by      string // the tests that failed; of a broken one, the output
}

func (r result) String() string {
	switch r.verdict {
	case caught:
		return r.by
	case hung:
		return r.by + " (hung until the timeout)"
	case broken:
		return "CANNOT BE RUN: " + r.by
	}
	return "SURVIVED"
}

// event is a line of go test -json.
type event struct {
	Action, Test, Output string
	Elapsed              float64 // seconds
}

// outcome is what a run of go test printed.
type outcome struct {
	passed, failed map[string]bool // tests, without subtests
	subtest        map[string]string
	timedOut       bool
	took           map[string]time.Duration // tests that passed
	flags          []string                 // of the test binary
	output         string                   // without that of tests
	err            error
}

// withoutFault returns an error if a test of the list does not pass without a fault.
func (r *runner) withoutFault(ctx context.Context, list []fault) error {
	packages := map[string][]string{}
	for _, f := range list {
		packages[f.in()] = append(packages[f.in()], strings.Fields(f.tests)...)
	}
	for _, in := range slices.Sorted(maps.Keys(packages)) {
		slices.Sort(packages[in])
		names := slices.Compact(packages[in])
		o := r.test(ctx, in, names, 5*r.timeout)
		if o.err != nil {
			return fmt.Errorf("%s fails without a fault: %s: %w\n%s", in, strings.Join(slices.Sorted(maps.Keys(o.failed)), " "), o.err, o.output)
		}
		for _, name := range names {
			if !o.passed[name] {
				return fmt.Errorf("%s: %s does not run without a fault", in, name)
			}
		}
	}
	return nil
}

// run runs the tests of a fault with it.
func (r *runner) run(ctx context.Context, f fault) result {
	dir, err := os.MkdirTemp("", "redrive-mutants-")
	if err != nil {
		return result{broken, err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source, err := f.source(r.root)
	if err != nil {
		return result{broken, err.Error()}
	}
	overlay, err := r.overlay(dir, f.file, source)
	if err != nil {
		return result{broken, err.Error()}
	}
	o := r.test(ctx, f.in(), strings.Fields(f.tests), r.timeout, "-failfast", "-overlay="+overlay)
	by := make([]string, 0, len(o.failed))
	for _, name := range slices.Sorted(maps.Keys(o.failed)) {
		by = append(by, name+o.subtest[name])
	}
	switch {
	case o.err == nil:
		return result{verdict: survived}
	case o.timedOut:
		return result{hung, strings.Join(by, " ")}
	case len(by) == 0: // no test has failed, but go test
		return result{broken, strings.Join(strings.Fields(o.output), " ")}
	}
	return result{caught, strings.Join(by, " ")}
}

// overlay writes a file's other source to dir, and what go test needs to read it in place of
// the tree's.
func (r *runner) overlay(dir, of, source string) (file string, err error) {
	original, err := filepath.Abs(filepath.Join(r.root, of))
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(of))
	if err := os.WriteFile(changed, []byte(source), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, replace, 0o600)
}

// test runs tests of one package, all if none are named.
func (r *runner) test(ctx context.Context, in string, names []string, timeout time.Duration, flags ...string) outcome {
	if len(names) > 0 {
		flags = append(flags, "-run=^("+strings.Join(names, "|")+")$")
	}
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-timeout=" + timeout.String()}, append(flags, "./"+in)...)
	var binaryFlags []string
	if source, _ := testsIn(filepath.Join(r.root, in)); strings.Contains(source, `"pgregory.net/rapid"`) {
		binaryFlags = []string{"-rapid.nofailfile"} // its reminder of a fault would stay in the tree
	}
	args = append(args, binaryFlags...)
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = r.root
	c.Env = append(os.Environ(), "WORLDS_TOGETHER=1") // or test/world would build itself once more, without the fault
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	o := read(stdout.Bytes())
	o.err, o.output, o.flags = err, o.output+stderr.String(), binaryFlags
	return o
}

// read reads the lines of go test -json.
func read(lines []byte) outcome {
	o := outcome{passed: map[string]bool{}, failed: map[string]bool{}, subtest: map[string]string{}, took: map[string]time.Duration{}}
	for line := range bytes.Lines(lines) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		name, subtest, isSubtest := strings.Cut(e.Test, "/")
		switch {
		case strings.HasPrefix(e.Output, "panic: test timed out after"):
			o.timedOut = true
		case e.Test == "" && e.Output != "" || e.Action == "build-output":
			o.output += e.Output
		case e.Action == "pass" && !isSubtest:
			o.passed[name] = true
			if name != "" {
				o.took[name] = time.Duration(e.Elapsed * float64(time.Second))
			}
		case e.Action == "fail" && isSubtest && o.subtest[name] == "": // the innermost is the first
			o.subtest[name] = "/" + subtest
		case e.Action == "fail" && name != "":
			o.failed[name] = true
		}
	}
	return o
}

// Command mutants runs tests on seeded faults, and says which test catches each, or that it survived:
//
//	go run ./test/mutants                   all of faults.txt
//	go run ./test/mutants -only 'park|due'  those whose file or name matches
//
// A fault replaces the source of one file by go test -overlay; the tree stays as it is. First the
// tests must pass without any. The exit code is 1 when a fault survives, 2 when one cannot be run.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed faults.txt
var faultsText string

// fault is one change of one file, which tests must catch.
type fault struct {
	name     string // what the code does wrong
	file     string // from the root of the tree
	in       string // folder of the tests
	tests    string // names, separated by |; all of the folder if empty
	old, new string
}

var place = regexp.MustCompile(`^(\S+)(?: in (\S+))?(?: run (\S+))?$`)

// parse reads faults; faults.txt says how they are written.
func parse(text string) (all []fault, err error) {
	for block := range strings.SplitSeq(text, "\n\n") {
		lines := slices.DeleteFunc(strings.Split(strings.Trim(block, "\n"), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
		if len(lines) == 0 || lines[0] == "" {
			continue
		}
		f := fault{name: lines[0]}
		if len(lines) < 2 || !place.MatchString(lines[1]) {
			return nil, fmt.Errorf("%s: expected FILE [in FOLDER] [run TEST|TEST] below", f.name)
		}
		m := place.FindStringSubmatch(lines[1])
		f.file, f.in, f.tests = m[1], m[2], m[3]
		if f.in == "" {
			f.in = path.Dir(f.file)
		}
		var before, after []string
		for _, line := range lines[2:] {
			if text, ok := strings.CutPrefix(line, "- "); ok && after == nil {
				before = append(before, text)
			} else if text, ok := strings.CutPrefix(line, "+ "); ok {
				after = append(after, text)
			} else {
				return nil, fmt.Errorf("%s: %q: expected lines that begin with - , then lines that begin with + ", f.name, line)
			}
		}
		f.old, f.new = strings.Join(before, "\n"), strings.Join(after, "\n")
		if f.old == "" || slices.ContainsFunc(all, func(g fault) bool { return g.name == f.name }) {
			return nil, fmt.Errorf("%s: it changes nothing, or another is called the same", f.name)
		}
		all = append(all, f)
	}
	return all, nil
}

// source returns the file with the fault.
func (f fault) source(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, f.file))
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.name, err)
	}
	if n := strings.Count(string(data), f.old); n != 1 || f.old == f.new {
		return "", fmt.Errorf("%s: %s has %q %d times, to be replaced by %q; expected once, by another text", f.name, f.file, f.old, n, f.new)
	}
	return strings.Replace(string(data), f.old, f.new, 1), nil
}

// check returns what no longer fits the code: each file, its text, and the tests that are named.
func check(root string, list []fault) error {
	var wrong []error
	for _, f := range list {
		_, err := f.source(root)
		wrong = append(wrong, err)
		tests := testsIn(filepath.Join(root, f.in))
		for name := range strings.SplitSeq(f.tests, "|") {
			if !strings.Contains(tests, "\nfunc "+name) {
				wrong = append(wrong, fmt.Errorf("%s: %s has no test %s", f.name, f.in, name))
			}
		}
	}
	return errors.Join(wrong...)
}

// testsIn returns the source of a folder's tests.
func testsIn(folder string) string {
	files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
	var all strings.Builder
	for _, file := range files {
		source, _ := os.ReadFile(file)
		all.Write(source)
	}
	return all.String()
}

const survived = "SURVIVED"

// errBroken is of a fault that no test could be run with.
var errBroken = errors.New("cannot be run")

// run runs the tests of a fault with it, and returns the one that failed, or that it survived.
func run(ctx context.Context, root string, f fault, timeout time.Duration) (by string, err error) {
	source, err := f.source(root)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "redrive-mutants-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	original, err := filepath.Abs(filepath.Join(root, f.file))
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, path.Base(f.file)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(changed, []byte(source), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	_, failed, output, err := test(ctx, root, f.in, f.tests, timeout, "-failfast", "-overlay="+overlay)
	switch {
	case err == nil:
		return survived, nil
	case len(failed) == 0: // no test has failed, but go test
		return "", fmt.Errorf("%w: %s", errBroken, strings.Join(strings.Fields(output), " "))
	}
	return failed[0], nil
}

// withoutFault returns an error if a test of the list does not pass without a fault.
func withoutFault(ctx context.Context, root string, list []fault, timeout time.Duration) error {
	folders := map[string][]string{}
	for _, f := range list {
		folders[f.in] = append(folders[f.in], f.tests)
	}
	for _, in := range slices.Sorted(maps.Keys(folders)) {
		tests := strings.Join(folders[in], "|")
		if slices.Contains(folders[in], "") {
			tests = "" // all
		}
		passed, failed, output, err := test(ctx, root, in, tests, timeout)
		if err == nil && passed == 0 {
			err = errors.New("there is none")
		}
		if err != nil {
			return fmt.Errorf("the tests of %s do not pass without a fault: %s: %w\n%s", in, strings.Join(failed, " "), err, output)
		}
	}
	return nil
}

// test runs tests of a folder, all if none are named.
func test(ctx context.Context, root, in, tests string, timeout time.Duration, flags ...string) (passed int, failed []string, output string, err error) {
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-timeout=" + timeout.String()}, flags...)
	if tests != "" {
		args = append(args, "-run=^("+tests+")$")
	}
	args = append(args, "./"+in)
	if strings.Contains(testsIn(filepath.Join(root, in)), `"pgregory.net/rapid"`) {
		args = append(args, "-rapid.nofailfile") // its record of a failure would stay in the tree
	}
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = root
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err = c.Run()
	for line := range bytes.Lines(stdout.Bytes()) {
		var e struct{ Action, Test, Output string }
		switch _ = json.Unmarshal(line, &e); {
		case e.Test == "": // of go test itself, or of the compiler
			output += e.Output
		case e.Action == "pass":
			passed++
		case e.Action == "fail": // the innermost subtest is the first
			failed = append(failed, e.Test)
		}
	}
	return passed, failed, output + stderr.String(), err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("only", "", "run faults whose file or name matches this `regexp`")
	timeout := flag.Duration("timeout", 5*time.Minute, "end the tests of one fault after `this long`; it counts as caught")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	var list []fault
	if err == nil {
		list, err = parse(faultsText)
	}
	list = slices.DeleteFunc(list, func(f fault) bool { return !pattern.MatchString(f.file + ": " + f.name) })
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no fault's file or name matches %q", *only)
	}
	if err == nil {
		fmt.Fprintf(os.Stderr, "%d faults; first their tests without any\n", len(list))
		err = errors.Join(check(".", list), withoutFault(ctx, ".", list, 2**timeout))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	os.Exit(all(ctx, os.Stdout, ".", list, *timeout))
}

// all runs each fault, prints what caught it, and returns the exit code.
func all(ctx context.Context, w io.Writer, root string, list []fault, timeout time.Duration) (code int) {
	alive := 0
	for i, f := range list {
		by, err := run(ctx, root, f, timeout)
		switch {
		case ctx.Err() != nil:
			return 2
		case err != nil:
			by, code = err.Error(), 2
		case by == survived:
			alive, code = alive+1, max(code, 1)
		}
		fmt.Fprintf(w, "%d/%d %s, %s: %s\n", i+1, len(list), f.in, f.name, by)
	}
	fmt.Fprintf(w, "%d faults, %d survived\n", len(list), alive)
	return code
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// suite is all tests of a package. The few that take most of the time run only on a mutant that
// no other has caught.
type suite struct {
	in    string // the folder
	slow  string // a regexp of their names; "" when there are none
	flags []string
	// How long the quick tests may take, and the slow ones: a mutant often makes a loop that
	// never ends, and most of those are found by the quick tests.
	quickTimeout, slowTimeout time.Duration
}

// suiteOf measures the tests of a package, without a mutant.
func (r *runner) suiteOf(ctx context.Context, in string) (suite, error) {
	o := r.test(ctx, in, nil, r.timeout)
	if o.err != nil {
		return suite{}, errors.New(in + " fails without a mutant: " + o.err.Error() + "\n" + o.output)
	}
	slow, quickTook, slowTook := slowest(o.took)
	limit := func(took time.Duration) time.Duration { return min(r.timeout, 10*time.Second+10*took) }
	s := suite{in: in, flags: o.flags, quickTimeout: limit(quickTook), slowTimeout: limit(slowTook)}
	if len(slow) > 0 {
		s.slow = "^(" + strings.Join(slow, "|") + ")$"
	}
	return s, nil
}

// slowest returns the few tests that take most of the time, none where all are quick, and the
// time of the others and of these.
func slowest(took map[string]time.Duration) (slow []string, quickTook, slowTook time.Duration) {
	total := time.Duration(0)
	for _, t := range took {
		total += t
	}
	names := slices.SortedFunc(maps.Keys(took), func(a, b string) int { return cmp.Or(cmp.Compare(took[b], took[a]), strings.Compare(a, b)) })
	for _, name := range names {
		if total < time.Second || slowTook >= total*4/5 {
			break
		}
		slow, slowTook = append(slow, name), slowTook+took[name]
	}
	return slow, total - slowTook, slowTook
}

// runAllOn runs all tests of a package with another source of one file.
func (r *runner) runAllOn(ctx context.Context, s suite, file, source string) result {
	dir, err := os.MkdirTemp("", "redrive-mutants-")
	if err != nil {
		return result{broken, err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := r.overlay(dir, file, source)
	if err != nil {
		return result{broken, err.Error()}
	}
	binary := filepath.Join(dir, "package.test")
	if err := command(ctx, r.root, "go", "test", "-c", "-vet=off", "-ldflags=-w -s", "-overlay="+overlay, "-o", binary, "./"+s.in); err != nil {
		return result{broken, strings.Join(strings.Fields(err.Error()), " ")}
	}
	if s.slow == "" {
		return r.execute(ctx, s, s.quickTimeout, binary)
	}
	if res := r.execute(ctx, s, s.quickTimeout, binary, "-test.skip="+s.slow); res.verdict != survived {
		return res
	}
	return r.execute(ctx, s, s.slowTimeout, binary, "-test.run="+s.slow)
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// execute runs a test binary until one of its tests fails.
func (r *runner) execute(ctx context.Context, s suite, timeout time.Duration, binary string, args ...string) result {
	args = append(append(args, "-test.failfast", "-test.timeout="+timeout.String()), s.flags...)
	c := exec.CommandContext(ctx, binary, args...)
	c.Dir = filepath.Join(r.root, s.in)
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	by := "a crash"
	if m := failedTest.FindSubmatch(out); m != nil {
		by = string(m[1])
	}
	switch {
	case err == nil:
		return result{verdict: survived}
	case bytes.Contains(out, []byte("panic: test timed out after")):
		return result{hung, by}
	}
	return result{caught, by}
}

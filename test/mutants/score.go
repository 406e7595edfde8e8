package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// scoring is what make mutation does: all mutants of packages, with all tests of theirs.
type scoring struct {
	runner
	packages []string
	only     *regexp.Regexp // those that are run
	least    float64        // per cent of a package's mutants that its tests must catch
	budget   time.Duration  // for all mutants
}

// tally is what became of the mutants of one package.
type tally struct {
	all, caught, survived, equivalent, notRun int
	hung                                      int // of those caught: their tests ran into the timeout
}

// percent returns the part of mutants that were caught, of those that could be.
func (t tally) percent() float64 {
	if t.caught+t.survived == 0 {
		return 0
	}
	return 100 * float64(t.caught) / float64(t.caught+t.survived)
}

// score runs the mutants, writes what survived and the score of each package, and returns the
// exit code.
func (s *scoring) score(ctx context.Context, w io.Writer) int {
	fmt.Fprintln(os.Stderr, "gremlins looks for mutants; then the tests run without any")
	all, err := findMutants(ctx, s.root, s.packages)
	if err != nil {
		return fail(err)
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return !s.only.MatchString(m.String()) })
	suites := map[string]suite{}
	for _, in := range s.packages {
		if suites[in], err = s.suiteOf(ctx, in); err != nil {
			return fail(err)
		}
	}
	order(all)
	limitMemory()
	results := s.runAll(ctx, all, suites)
	if ctx.Err() != nil {
		return fail(ctx.Err())
	}
	return s.report(w, all, results)
}

// notRun is the verdict on what the budget had no time for, and isEquivalent on what is listed.
const (
	notRun verdict = iota + 100
	isEquivalent
)

// runAll runs all mutants until the budget is used up, half as many at once as there are cores.
func (s *scoring) runAll(ctx context.Context, all []mutant, suites map[string]suite) []result {
	results := make([]result, len(all))
	end := time.Now().Add(s.budget)
	var wait sync.WaitGroup
	free := make(chan struct{}, max(1, runtime.NumCPU()/2))
	for i := range all {
		m := &all[i]
		if isListed(s.root, m) {
			results[i].verdict = isEquivalent
			continue
		}
		free <- struct{}{}
		if ctx.Err() != nil || time.Now().After(end) {
			results[i].verdict = notRun
			<-free
			continue
		}
		wait.Go(func() {
			defer func() { <-free }()
			results[i] = s.runAllOn(ctx, suites[path.Dir(m.file)], m.file, m.source)
			if v := results[i].verdict; v == survived || v == hung || i%50 == 49 {
				fmt.Fprintf(os.Stderr, "%d/%d %s: %s\n", i+1, len(all), m, results[i])
			}
		})
	}
	wait.Wait()
	return results
}

// report writes the survivors and the table, and returns 1 if a package has less than it must.
func (s *scoring) report(w io.Writer, all []mutant, results []result) (code int) {
	tallies := map[string]*tally{}
	for _, in := range s.packages {
		tallies[in] = &tally{}
	}
	var lines []string
	for i := range all {
		t := tallies[path.Dir(all[i].file)]
		t.all++
		switch results[i].verdict {
		case hung:
			t.caught, t.hung = t.caught+1, t.hung+1
		case caught:
			t.caught++
		case survived:
			t.survived++
			lines = append(lines, "SURVIVED "+all[i].String())
		case isEquivalent:
			t.equivalent++
		case notRun:
			t.notRun++
		case broken: // it does not compile, and is no mutant
			t.all--
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "package\tmutants\tcaught\thung\tsurvived\tequivalent\tnot run\tscore")
	for _, in := range s.packages {
		t := tallies[in]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f %%\n", in, t.all, t.caught, t.hung, t.survived, t.equivalent, t.notRun, t.percent())
		if t.percent() < s.least {
			code = 1
		}
	}
	_ = table.Flush()
	if code != 0 {
		fmt.Fprintf(w, "a package has less than %.0f %%\n", s.least)
	}
	return code
}

// isListed tells whether a mutant is among the equivalents.
func isListed(root string, m *mutant) bool {
	return slices.ContainsFunc(equivalents, func(e equivalent) bool {
		if e.file != m.file {
			return false
		}
		source, err := e.source(root)
		return err == nil && source == m.source
	})
}

func sum(text string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, text)
	return h.Sum64()
}

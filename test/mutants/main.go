// Command mutants runs tests on seeded faults, and tells which faults they miss:
//
//	go run ./test/mutants                   all of the list
//	go run ./test/mutants -only 'park|due'  those whose file or name matches
//	go run ./test/mutants -score policy     all mutants of a package, and its score
//
// A fault is one small change of one file, such as an attempt too many or a commit that is
// not synced, with the tests that must fail because of it. Read it in this order:
//
//	fault.go        what a fault is, and the check of the list
//	run.go          runs the tests with one fault, by an overlay, without a copy of the tree
//	…faults.go      the list, by subject
//	gremlins.go     the mutants of whole packages, which gremlins finds
//	score.go        runs them, and counts those that tests catch
//	binary.go       all tests of a package with a mutant, the quick ones first
//	equivalents.go  those that no test can catch, each with the reason
//
// Before the first fault, the tests of all must pass without any. The table on stdout says
// for each fault which test caught it, or that it survived; then the exit code is 1.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	only := flags.String("only", "", "run faults whose file or name matches this `regexp`")
	timeout := flags.Duration("timeout", 2*time.Minute, "end the tests of one fault after `this long`; it counts as caught")
	packages := flags.String("score", "", "instead of the list: all mutants of these `folders`, separated by spaces")
	least := flags.Float64("least", 90, "with -score: the exit code is 1 when a package has less `per cent`")
	budget := flags.Duration("budget", 2*time.Hour, "with -score: run mutants for `this long`; the score is then of a sample")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fail(err)
	}
	if *packages != "" {
		s := scoring{runner: runner{root: ".", timeout: *timeout}, packages: strings.Fields(*packages), only: pattern, least: *least, budget: *budget}
		return s.score(ctx, os.Stdout)
	}
	list := slices.DeleteFunc(slices.Clone(faults()), func(f fault) bool { return !pattern.MatchString(f.file + ": " + f.name) })
	if len(list) == 0 {
		return fail(fmt.Errorf("no fault's file or name matches %q", *only))
	}
	r := runner{root: ".", timeout: *timeout}
	if err := check(r.root, list); err != nil {
		return fail(err)
	}
	fmt.Fprintf(os.Stderr, "%d faults; first their tests without any\n", len(list))
	if err := r.withoutFault(ctx, list); err != nil {
		return fail(err)
	}
	var results []result
	for i, f := range list {
		began := time.Now()
		res := r.run(ctx, f)
		if ctx.Err() != nil {
			return fail(ctx.Err())
		}
		fmt.Fprintf(os.Stderr, "%d/%d %s: %s (%.1f s)\n", i+1, len(list), f.name, res, time.Since(began).Seconds())
		results = append(results, res)
	}
	return report(os.Stdout, list, results)
}

// report writes the table, and returns the exit code.
func report(w io.Writer, list []fault, results []result) (code int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "package\tfault\tcaught by")
	count := map[verdict]int{}
	for i, f := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.in(), f.name, results[i])
		count[results[i].verdict]++
	}
	_ = t.Flush()
	fmt.Fprintf(w, "%d faults: %d caught, %d survived, %d could not be run\n",
		len(list), count[caught]+count[hung], count[survived], count[broken])
	return cmp.Or(min(count[survived], 1), 2*min(count[broken], 1))
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	return 2
}

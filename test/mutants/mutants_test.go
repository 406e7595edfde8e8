package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The list stays true to the code without running it: each fault's text is there once, and its
// tests exist. make mutants runs it.
func TestTheListFitsTheCode(t *testing.T) {
	if err := check("../..", faults()); err != nil {
		t.Error(err)
	}
	if err := checkEquivalents("../..", equivalents); err != nil {
		t.Error(err)
	}
}

func TestAListThatDoesNotFitIsRefused(t *testing.T) {
	tree := sandbox(t)
	good := fault{"good", "sum.go", "a + b", "a - b", "TestSum", ""}
	for want, list := range map[string][]fault{
		"":               {good},
		"two faults":     {good, good},
		"0 times":        {{"no such text", "sum.go", "a * b", "a", "TestSum", ""}},
		"2 times":        {{"twice", "sum.go", "Sum", "Add", "TestSum", ""}},
		"something else": {{"no change", "sum.go", "a + b", "a + b", "TestSum", ""}},
		"no test":        {{"no such test", "sum.go", "a + b", "a", "TestSum TestProduct", ""}},
		"must catch it":  {{"no test at all", "sum.go", "a + b", "a", " ", ""}},
		"no such file":   {{"no such file", "product.go", "a + b", "a", "TestSum", ""}},
	} {
		err := check(tree, list)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestWhatBecomesOfAFault(t *testing.T) {
	r := runner{root: sandbox(t), timeout: 2 * time.Second}
	list := []fault{
		{"difference", "sum.go", "a + b", "a - b", "TestSum", ""},
		{"order", "sum.go", "a + b", "b + a", "TestSum", ""},
		{"endless", "sum.go", "return a", "for {}; return a", "TestSum", ""},
		{"not Go", "sum.go", "return a", "return a a", "TestSum", ""},
		{"panics", "sum.go", "return a", "panic(a); return a", "TestSum", ""},
	}
	if err := r.withoutFault(context.Background(), list); err != nil {
		t.Fatal(err)
	}
	var results []result
	for i, want := range []verdict{caught, survived, hung, broken, caught} {
		res := r.run(context.Background(), list[i])
		if res.verdict != want || res.String() == "" {
			t.Errorf("%s: %v (%d), want %d", list[i].name, res, res.verdict, want)
		}
		results = append(results, res)
	}
	if by := "TestSum/of_1_and_2"; results[0].by != by {
		t.Errorf("caught by %q, want %q", results[0].by, by)
	}
	var table strings.Builder
	if code := report(&table, list, results); code != 1 {
		t.Errorf("exit code %d with a fault that survived", code)
	}
	if end := "5 faults: 3 caught, 1 survived, 1 could not be run\n"; !strings.HasSuffix(table.String(), end) {
		t.Errorf("the table ends differently:\n%s", table.String())
	}
	if code := report(&table, list[:1], results[:1]); code != 0 {
		t.Errorf("exit code %d when all are caught", code)
	}
	if code := report(&table, list[3:4], results[3:4]); code != 2 {
		t.Errorf("exit code %d with a fault that cannot be run", code)
	}

	red := fault{"red", "sum.go", "a + b", "a", "TestRed", ""}
	if err := r.withoutFault(context.Background(), []fault{red}); err == nil {
		t.Error("a test that fails without a fault proves nothing, and was accepted")
	}
}

// sandbox makes a module with a function and its tests, and returns its folder.
func sandbox(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/sum\n\ngo 1.25.0\n",
		"sum.go": "package sum\n\n// Sum adds.\nfunc Sum(a, b int) int { return a + b }\n",
		"sum_test.go": `package sum

import "testing"

func TestSum(t *testing.T) {
	t.Run("of 1 and 2", func(t *testing.T) {
		if Sum(1, 2) != 3 {
			t.Error("not 3")
		}
	})
}

func TestRed(t *testing.T) { t.Error("always") }
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

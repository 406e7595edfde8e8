package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The list stays true to the code without running it; make mutants runs it.
func TestTheListFitsTheCode(t *testing.T) {
	list, err := parse(faultsText)
	if err != nil {
		t.Fatal(err)
	}
	if err := check("../..", list); err != nil {
		t.Error(err)
	}
	if len(list) > 60 {
		t.Errorf("%d faults, at most 60 are worth their time", len(list))
	}
}

func TestAListThatDoesNotFitIsRefused(t *testing.T) {
	tree := sandbox(t)
	for text, want := range map[string]string{
		"good\nsum.go run TestSum\n- a + b\n+ a - b":            "",
		"good\nsum.go\n- a + b":                                 "",
		"twice\nsum.go\n- a\n+ b\n\ntwice\nsum.go\n- a\n+ b":    "called the same",
		"no such text\nsum.go\n- a * b\n+ a":                    "0 times",
		"several\nsum.go\n- Sum\n+ Add":                         "2 times",
		"no change\nsum.go\n- a + b\n+ a + b":                   "another text",
		"no such test\nsum.go run TestSum|TestProduct\n- a + b": "no test TestProduct",
		"no such file\nproduct.go\n- a + b\n+ a":                "no such file",
		"no place":                                              "expected FILE",
		"neither old nor new\nsum.go\na + b":                    "expected lines",
		"new before old\nsum.go\n+ a + b\n- a - b":              "expected lines",
	} {
		list, err := parse(text)
		if err == nil {
			err = check(tree, list)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestWhatBecomesOfAFault(t *testing.T) {
	tree := sandbox(t)
	good := fault{"difference", "sum.go", ".", "TestSum", "a + b", "a - b"}
	list := []fault{good, {"order", "sum.go", ".", "TestSum", "a + b", "b + a"}, {"not Go", "sum.go", ".", "TestSum", "a + b", "a b"}}
	if err := withoutFault(t.Context(), tree, list, time.Minute); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	code := all(t.Context(), &out, tree, list, time.Minute)
	for _, want := range []string{"difference: TestSum/of_1_and_2\n", "order: SURVIVED\n", "not Go: cannot be run: ", "3 faults, 1 survived\n"} {
		if !strings.Contains(out.String(), want) || code != 2 {
			t.Errorf("exit code %d, and no %q in\n%s", code, want, out.String())
		}
	}
	for want, of := range map[int][]fault{0: list[:1], 1: list[:2]} {
		if code := all(t.Context(), &out, tree, of, time.Minute); code != want {
			t.Errorf("exit code %d of %v, want %d", code, of, want)
		}
	}
	red := good
	red.tests = "TestRed"
	if err := withoutFault(t.Context(), tree, []fault{red}, time.Minute); err == nil {
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

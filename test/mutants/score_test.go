package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// Gremlins names some mutants twice, and some that change nothing.
func TestEachMutantIsFoundOnce(t *testing.T) {
	tree := sandbox(t)
	const found = `{"files":[{"file_name":"sum.go","mutations":[
		{"type":"ARITHMETIC_BASE","line":4,"column":35},{"type":"ARITHMETIC_BASE","line":4,"column":35}]},
		{"file_name":"other/sum.go","mutations":[{"type":"ARITHMETIC_BASE","line":1,"column":1}]}]}`
	all, err := mutantsOf(tree, ".", []byte(found))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d mutants, %v", len(all), err)
	}
	if want := "sum.go:4: + becomes - in func Sum(a, b int) int { return a + b }"; all[0].String() != want || !strings.Contains(all[0].source, "a - b") {
		t.Errorf("%s, want %s", &all[0], want)
	}
	for _, wrong := range []string{`{"type":"ARITHMETIC_BASE","line":4,"column":36}`, `{"type":"ARITHMETIC_BASE","line":9,"column":1}`, `{"type":"ARITHMETIC_BASE","line":4,"column":99}`} {
		if all, err := mutantsOf(tree, ".", []byte(`{"files":[{"file_name":"sum.go","mutations":[`+wrong+`]}]}`)); err == nil {
			t.Errorf("%s is %v", wrong, all)
		}
	}
	m := mutant{line: 1}
	if err := m.change([]byte("a &^= b\n"), 3, operators["INVERT_BWASSIGN"]); err != nil || m.source != "a &= b\n" {
		t.Errorf("the longest token is not taken: %q, %v", m.source, err)
	}
}

func TestTheScore(t *testing.T) {
	s := scoring{runner: runner{root: sandbox(t), timeout: 2 * time.Second}, packages: []string{"."}, least: 60, budget: time.Minute}
	var all []mutant
	for _, becomes := range []string{"a - b", "b + a", "a + b + len(\"\"", "a * a + 1/(a-1)", "a + b + 0"} {
		source, err := (&fault{file: "sum.go", old: "a + b", new: becomes}).source(s.root)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, mutant{file: "sum.go", line: 4, old: "a + b", new: becomes, source: source})
	}
	of := suite{in: ".", quickTimeout: 2 * time.Second, slowTimeout: 2 * time.Second, slow: "^(TestRed)$"}
	results := s.runAll(context.Background(), all, map[string]suite{".": of})
	// TestRed fails always, and so the last word on a mutant is that of the slow tests.
	for i, want := range []string{"TestSum", "TestRed", "", "TestSum", "TestRed"} {
		if got := results[i]; want == "" && got.verdict != broken || want != "" && (got.verdict != caught || got.by != want) {
			t.Errorf("%s: %s, want %q", &all[i], got, want)
		}
	}
	results[1].verdict, results[3].verdict, results[4].verdict = survived, hung, isEquivalent
	var table strings.Builder
	if code := s.report(&table, all, results); code != 0 {
		t.Errorf("exit code %d with 2 of 3 caught", code)
	}
	for _, want := range []string{"SURVIVED sum.go:4: a + b becomes b + a", ".        4        2       1     1         1           0        66.7 %"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is missing in\n%s", want, table.String())
		}
	}
	if s.least = 67; s.report(&table, all, results) != 1 {
		t.Error("exit code 0 with less than the least")
	}
	s.budget = 0
	if results := s.runAll(context.Background(), all, map[string]suite{".": of}); results[0].verdict != notRun || s.report(&table, all, results) != 1 {
		t.Errorf("without time: %+v", results)
	}
}

// What a budget cuts off is a sample of all files, the same each time.
func TestTheOrderIsFairAndTheSame(t *testing.T) {
	var all []mutant
	for i := range 200 {
		all = append(all, mutant{file: map[bool]string{true: "a", false: "b"}[i < 100], line: i, source: strings.Repeat("x", i)})
	}
	order(all)
	first := 0
	for _, m := range all[:50] {
		if m.file == "a" {
			first++
		}
	}
	again := slices.Clone(all)
	slices.Reverse(again)
	order(again)
	if first < 10 || first > 40 || !slices.EqualFunc(all, again, func(a, b mutant) bool { return a.line == b.line }) {
		t.Errorf("%d of the first 50 are of the first file", first)
	}
}

func TestTheSlowTestsAreThoseThatTakeMostOfTheTime(t *testing.T) {
	took := map[string]time.Duration{"A": 3 * time.Second, "B": 2 * time.Second, "C": 500 * time.Millisecond, "D": 100 * time.Millisecond}
	if slow, quickTook, slowTook := slowest(took); !slices.Equal(slow, []string{"A", "B"}) || quickTook != 600*time.Millisecond || slowTook != 5*time.Second {
		t.Errorf("%q take %s, the others %s", slow, slowTook, quickTook)
	}
	if slow, _, _ := slowest(map[string]time.Duration{"A": 900 * time.Millisecond}); len(slow) != 0 {
		t.Errorf("%q are slow, and take less than a second", slow)
	}
}

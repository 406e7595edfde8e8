package doctor_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
)

// elsewhere are commands that other tests of this package run, as they are printed.
var elsewhere = map[printed]string{
	{"standing", "rabbitmqctl eval"}:     "TestAnotherLeaderIsWhatTheCommandMakes",
	{"replicas", "rabbitmq-queues grow"}: "TestAnotherLeaderIsWhatTheCommandMakes",
}

// printed is a command that a check prints: how it begins.
type printed struct{ check, command string }

// haveAll checks that each command that the source can print has been run, for each check that can
// print it.
func (r *commandsRun) haveAll(t *testing.T) {
	source := readSource(t)
	can := source.printed(t)
	var beginnings []string
	for p := range can {
		beginnings = append(beginnings, p.command)
	}
	ran := map[printed]bool{}
	for check, commands := range r.seen {
		for _, c := range commands {
			longest := longestOf(beginnings, c)
			if longest == "" {
				longest = longestOf(beginnings, kindOf(c))
			}
			if longest == "" {
				t.Errorf("%s printed %s, which the source does not make", check, c)
			}
			ran[printed{check, longest}] = true
		}
	}
	for p := range can {
		if test, ok := elsewhere[p]; ok && source.tests[test] {
			continue
		}
		if !ran[p] {
			t.Errorf("%s can print %s, and no case runs it", p.check, p.command)
		}
	}
	t.Logf("%d commands of %d checks were run as they are printed", len(ran), len(r.seen))
}

// longestOf is the longest of the beginnings of a command; "": it has none of them.
func longestOf(beginnings []string, command string) (longest string) {
	for _, b := range beginnings {
		if strings.HasPrefix(command, b) && len(b) > len(longest) {
			longest = b
		}
	}
	return longest
}

// source is the code of the package.
type source struct {
	functions map[string]*ast.FuncDecl // by name; the package has no two methods of one name
	checks    map[string][]string      // functions that run, by check
	tests     map[string]bool
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{functions: map[string]*ast.FuncDecl{}, checks: map[string][]string{}, tests: map[string]bool{}}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			switch {
			case !ok:
			case strings.HasSuffix(name, "_test.go"):
				s.tests[f.Name.Name] = true
			default:
				s.functions[f.Name.Name] = f
			}
		}
		if name == "checks.go" {
			ast.Inspect(file, s.check)
		}
	}
	if len(s.checks) != len(doctor.Checks) {
		t.Fatalf("checks.go has %d checks for this test, and %d", len(s.checks), len(doctor.Checks))
	}
	return s
}

// check remembers which functions a check has.
func (s *source) check(n ast.Node) bool {
	lit, ok := n.(*ast.CompositeLit)
	if !ok {
		return true
	}
	name, functions := "", []string{}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		switch key := kv.Key.(*ast.Ident).Name; key {
		case "Name":
			name, _ = strconv.Unquote(kv.Value.(*ast.BasicLit).Value)
		case "Run", "ByAMQP":
			if id, ok := kv.Value.(*ast.Ident); ok {
				functions = append(functions, id.Name)
			}
		}
	}
	if name != "" {
		s.checks[name] = functions
	}
	return false
}

// makers make commands, from how they begin.
var makers = map[string]string{"redrive": "redrive ", "enrollment": "redrive ", "rabbitmqctl": "rabbitmqctl ", "command": "", "curl": "curl ", "deleteCommand": "curl DELETE", "setPolicy": "rabbitmqctl set_"}

// kindOf is a command as the source makes it: a policy that is left with nothing is cleared, and
// curl has its user before the method.
func kindOf(command string) string {
	if _, method, ok := strings.Cut(command, " -X "); ok && strings.HasPrefix(command, "curl ") {
		return "curl " + method
	}
	for _, kind := range []string{"policy", "operator_policy"} {
		if rest, ok := strings.CutPrefix(command, "rabbitmqctl clear_"+kind+" "); ok {
			return "rabbitmqctl set_" + kind + " " + rest
		}
	}
	return command
}

// printed are the commands that checks can print.
func (s *source) printed(t *testing.T) map[printed]bool {
	all := map[printed]bool{}
	for check, functions := range s.checks {
		for command := range s.commandsOf(t, functions, map[string]bool{}) {
			all[printed{check, command}] = true
		}
	}
	return all
}

// commandsOf are those of functions, and of all that they call.
func (s *source) commandsOf(t *testing.T, functions []string, done map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, name := range functions {
		f := s.functions[name]
		if f == nil || done[name] || makers[name] != "" || name == "command" {
			continue
		}
		done[name] = true
		var calls []string
		ast.Inspect(f, func(n ast.Node) bool {
			if n, ok := n.(*ast.CallExpr); ok {
				if begins, ok := makers[called(n)]; ok {
					all[s.beginning(t, name, begins, n)] = true
				}
				calls = append(calls, called(n))
			}
			return true
		})
		maps.Copy(all, s.commandsOf(t, calls, done))
	}
	return all
}

func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// beginning is how a command begins, up to where it is no constant.
func (s *source) beginning(t *testing.T, in, begins string, call *ast.CallExpr) string {
	if begins == "curl DELETE" || begins == "rabbitmqctl set_" {
		return begins
	}
	var text func(e ast.Expr) (string, bool)
	text = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			v, err := strconv.Unquote(e.Value)
			return v, err == nil
		case *ast.BinaryExpr:
			left, ok := text(e.X)
			right, whole := text(e.Y)
			if ok && whole {
				return left + right, true
			}
			return left, false
		case *ast.CallExpr:
			if called(e) == "call" {
				return "redrive", true
			}
		}
		return "", false
	}
	literal, _ := text(call.Args[0])
	if literal == "" {
		t.Errorf("%s makes a command that begins with no constant", in)
	}
	return strings.TrimSpace(begins + literal)
}

package docs_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

const module = "github.com/redrive-mq/redrive"

type pkg struct {
	ImportPath       string
	Standard         bool
	GoFiles, Imports []string
}

// listed returns all packages and what they depend on, tests left out. Those of this module
// are named as on a command line: ./policy.
func listed(t *testing.T) map[string]pkg {
	t.Helper()
	c := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,GoFiles,Imports", "./...")
	c.Dir = root
	out, err := c.Output()
	expect.NoError(t, err)
	local := func(path string) string {
		if own, is := strings.CutPrefix(path, module); is {
			return "." + own
		}
		return path
	}
	all := map[string]pkg{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		for i := range p.Imports {
			p.Imports[i] = local(p.Imports[i])
		}
		all[local(p.ImportPath)] = p
	}
}

const (
	equipment = `/testenv/|/test/|/bench\b|/\w+test\b`
	basis     = `policy|wire|internal/(delay|throttle|headers|errorgroup)`
	desk      = basis + `|internal/(audit|auth|background|condition|decode|hint|query|retry|store)`
	engines   = `/internal/(broker|store/|httpapi|config)|^net/http$|pebble|rueidis`
	product   = `|(cmd|internal|policy|wire|redrive\w+)(/.*)?`
)

// Who imports whom. may is what a package imports of this module, not is what it never imports.
func TestImports(t *testing.T) {
	all := listed(t)
	isEquipment := regexp.MustCompile(`/\w+test\b`)
	for _, rule := range []struct{ why, of, may, not string }{
		{"policy is arithmetic", `policy`, `wire`, `\..*/.*/|^net/http$|^math/rand`},
		{"the basis knows nothing above it", basis, basis, `-`},
		{"retry logic sees no engine, no HTTP and no flags", `internal/retry`, `.*`, engines},
		{"stores know no policies", `internal/store(/\w+store)?`, `.*`, `/policy$|/internal/(retry|broker)`},
		{"inspect is below actions", `internal/inspect`, desk, `^net/http$`},
		{"actions is below operations", `internal/actions`, desk + `|internal/inspect`, `^net/http$`},
		{"operations is below page and API", `internal/operations`, desk + `|internal/(inspect|actions)`, `^net/http$`},
		{"the product has no equipment of tests", product, `.*`, equipment},
	} {
		of, seen := regexp.MustCompile(`^\./?(`+rule.of+`)$`), 0
		may, not := regexp.MustCompile(`^\./?(`+rule.may+`)$|^[^.]`), regexp.MustCompile(rule.not)
		for name, p := range all {
			if !of.MatchString(name) || rule.of == product && isEquipment.MatchString(name) {
				continue
			}
			seen++
			for _, i := range p.Imports {
				if !may.MatchString(i) || rule.not != "-" && not.MatchString(i) {
					t.Errorf("%s: %s imports %s", rule.why, name, i)
				}
			}
		}
		if seen == 0 {
			t.Errorf("%s: there is no package %s", rule.why, rule.of)
		}
	}
}

// A program with the library gains the AMQP client, ids, and what is our own: nothing of the
// service's.
func TestTheLibraryIsLight(t *testing.T) {
	all, seen := listed(t), map[string]bool{}
	light := regexp.MustCompile(`^(\.|github.com/(rabbitmq/amqp091-go|google/uuid)|\./(policy|wire|redrivetest|examples)` +
		`|\./internal/(broker|connect|headers|hint|delay(/\w+)?))$`)
	var visit func(name string)
	visit = func(name string) {
		if p := all[name]; !seen[name] && !p.Standard {
			seen[name] = true
			if !light.MatchString(name) {
				t.Errorf("the library pulls in %s", name)
			}
			for _, i := range p.Imports {
				visit(i)
			}
		}
	}
	for _, name := range []string{".", "./policy", "./redrivetest", "./examples"} {
		if len(all[name].GoFiles) == 0 {
			t.Errorf("there is no package %s", name)
		}
		visit(name)
	}
}

// What only some packages under internal have in their code.
func TestWhoWritesWhat(t *testing.T) {
	rules := []struct{ why, code, only string }{
		{"one package connects by AMQP; the demo's shop is somebody else's program", `amqp\.Dial`, `broker|demo`},
		{"clients of the management API have the configured credentials", `management\.New\(`, `config`},
		{"connections have the configured credentials", `broker\.Config\{URL: [^,]*, (?:[^C]|C[^r])`, `-`},
		{"others serve one virtual host alone", `\.PerVHost\(|\bVHosts\b|\bconfig\.VHost\b`, `cli|config|server|webui`},
	}
	files := 0
	for name, p := range listed(t) {
		of, internal := strings.CutPrefix(name, "./internal/")
		if !internal {
			continue
		}
		for _, file := range p.GoFiles {
			files++
			path := filepath.Join(name, file)
			text := read(t, path)
			for _, rule := range rules {
				only := regexp.MustCompile(`^(` + rule.only + `)(/|$)`)
				if regexp.MustCompile(rule.code).MatchString(text) && !only.MatchString(of) {
					t.Errorf("%s: %s", rule.why, path)
				}
			}
		}
	}
	if files < 100 {
		t.Errorf("only %d files were found", files)
	}
}

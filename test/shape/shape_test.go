// Package shape_test holds the tree to its architecture: who can import whom, that the
// file map tells the truth, and how long files and functions may be.
package shape_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/redrive-mq/redrive"

func list(t *testing.T, format string, args ...string) []string {
	t.Helper()
	c := exec.Command("go", append([]string{"list", "-f", format}, args...)...)
	c.Dir = "../.."
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// sources are the Go files under internal.
func sources(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".go") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// imports are the direct imports of a package, tests left out.
func imports(t *testing.T, pkg string) []string {
	return list(t, `{{join .Imports "\n"}}`, module+"/"+pkg)
}

func TestPolicyImportsNothingOfOurs(t *testing.T) {
	for _, i := range imports(t, "policy") {
		if strings.Contains(i, ".") || i == "net/http" || i == "math/rand" {
			t.Errorf("policy imports %s", i)
		}
	}
}

func TestRetrySeesNoEngineAndNoHTTP(t *testing.T) {
	for _, i := range imports(t, "internal/retry") {
		for _, no := range []string{"internal/broker", "internal/store/", "internal/httpapi", "internal/config", "net/http", "pebble", "rueidis"} {
			if strings.Contains(i, no) {
				t.Errorf("internal/retry imports %s", i)
			}
		}
	}
}

// What the path of a message is made of knows nothing above it.
func TestTheFoundationsImportNothingAboveThem(t *testing.T) {
	below := []string{"policy", "wire", "internal/delay", "internal/throttle", "internal/headers", "internal/errorgroup", "internal/rabbitmq/version"}
	for _, pkg := range below[2:] {
		for _, i := range imports(t, pkg) {
			if own, is := strings.CutPrefix(i, module+"/"); is && !slices.Contains(below, own) {
				t.Errorf("%s imports %s", pkg, own)
			}
		}
	}
}

// The product has none of the equipment of tests; the demo alone starts a RabbitMQ.
func TestOnlyTheDemoUsesTheTestEnvironment(t *testing.T) {
	equipment := []string{"internal/demo", "internal/server/servertest", "internal/webui/webtest", "internal/delay/delaytest", "internal/store/storetest"}
	for _, pkg := range list(t, "{{.ImportPath}}", "./internal/...", "./cmd/...", ".", "./policy", "./wire") {
		own := strings.TrimPrefix(pkg, module+"/")
		if pkg == module || slices.ContainsFunc(equipment, func(e string) bool { return own == e || strings.HasPrefix(own, e+"/") }) {
			continue
		}
		for _, i := range imports(t, own) {
			if strings.Contains(i, "/testenv/") {
				t.Errorf("%s imports %s", own, i)
			}
		}
	}
}

// What people see and do is three packages, each of which knows those before it; none knows
// the page and the API, which call it, nor the engines, which it is given.
func TestInspectActionsOperationsInThisOrder(t *testing.T) {
	order := []string{"internal/inspect", "internal/actions", "internal/operations"}
	allowed := []string{"internal/audit", "internal/auth", "internal/decode", "internal/delay", "internal/digits", "internal/errorgroup", "internal/frameworks", "internal/headers", "internal/hint", "internal/query", "internal/retry", "internal/store", "internal/throttle", "policy", "wire"}
	for n, pkg := range order {
		for _, i := range imports(t, pkg) {
			if own, is := strings.CutPrefix(i, module+"/"); is && !slices.Contains(allowed, own) && !slices.Contains(order[:n], own) || i == "net/http" {
				t.Errorf("%s imports %s", pkg, i)
			}
		}
	}
}

func TestStoresKnowNoPolicies(t *testing.T) {
	for _, pkg := range []string{"internal/store", "internal/store/diskstore", "internal/store/redisstore", "internal/store/memstore"} {
		for _, i := range imports(t, pkg) {
			if i == module+"/policy" || strings.Contains(i, "internal/retry") || strings.Contains(i, "internal/broker") {
				t.Errorf("%s imports %s", pkg, i)
			}
		}
	}
}

// Only one package speaks AMQP; others may use the client's header types.
func TestOnlyTheBrokerPackageConnects(t *testing.T) {
	for _, f := range sources(t) {
		if strings.Contains(f, "internal/broker/") || strings.Contains(f, "internal/demo/") || strings.HasSuffix(f, "_test.go") {
			continue // the demo's shop is somebody else's program
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "amqp.Dial") {
			t.Errorf("%s connects to a broker", f)
		}
	}
}

// That there are several virtual hosts, only those know who make one service of them,
// read them from a file, name one on a command line, or lead from page to page. All
// others serve one, so nothing of theirs can be of another.
func TestOnlyAFewKnowOfSeveralVirtualHosts(t *testing.T) {
	several := regexp.MustCompile(`\.PerVHost\(|\bVHosts\b|\bconfig\.VHost\b`)
	known := map[string]bool{}
	err := filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && several.Match(data) {
			dir, _, _ := strings.Cut(strings.TrimPrefix(path, "../../internal/"), "/")
			known[dir] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(known)); !slices.Equal(got, []string{"cli", "config", "server", "webui"}) {
		t.Errorf("these know of several virtual hosts: %s", got)
	}
}

// A program that imports the root package gains the AMQP client, ids, and what is
// our own: nothing of the service's.
func TestTheLibraryIsLight(t *testing.T) {
	allowed := []string{"github.com/rabbitmq/amqp091-go", "github.com/google/uuid"}
	ours := []string{"", "/policy", "/wire", "/internal/addresses", "/internal/broker", "/internal/credentials", "/internal/headers", "/internal/hint", "/internal/delay", "/internal/rabbitmq/version"}
	for _, dep := range list(t, `{{if not .Standard}}{{.ImportPath}}{{end}}`, "-deps", ".", "./policy", "./redrivetest", "./examples/levels") {
		if own, is := strings.CutPrefix(dep, module); is {
			if slices.Contains(ours, own) || own == "/redrivetest" || strings.HasPrefix(own, "/examples/") ||
				strings.HasPrefix(own, "/internal/delay/") {
				continue
			}
		}
		if !slices.Contains(allowed, dep) {
			t.Errorf("the library pulls in %s", dep)
		}
	}
}

// Each package is in the file map, and each path of the map exists.
func TestTheFileMap(t *testing.T) {
	data, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(data), "## File map")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no file map")
	}
	mapped := map[string]bool{}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, path := range strings.Split(cells[1], "`") {
			if path = strings.TrimSpace(path); path == "" || path == "path" || strings.HasPrefix(path, "-") {
				continue
			}
			mapped[strings.TrimSuffix(path, "/")] = true
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Errorf("the file map names %s: %v", path, err)
			}
		}
	}
	for _, pkg := range list(t, "{{.ImportPath}}", "./...") {
		if path := strings.TrimPrefix(pkg, module+"/"); path != module && !mapped[path] {
			t.Errorf("package %s is not in the file map of ARCHITECTURE.md", path)
		}
	}
	for _, pkg := range list(t, `{{range .GoFiles}}{{.}} {{end}}`, ".") {
		if !mapped[pkg] {
			t.Errorf("file %s is not in the file map", pkg)
		}
	}
}

// Whoever speaks to RabbitMQ does so with the credentials of the config: one that forgets
// them works until there is a CA, a client certificate or a changed password.
func TestWhoSpeaksToRabbitMQHasCredentials(t *testing.T) {
	for _, f := range sources(t) {
		if strings.HasSuffix(f, "_test.go") || strings.Contains(f, "internal/config/") {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "management.New(") {
			t.Errorf("%s makes a client of the management API without config.Broker.API", f)
		}
		for _, line := range strings.Split(string(data), "\n") {
			if strings.Contains(line, "broker.Config{") && !strings.Contains(line, "Credentials:") {
				t.Errorf("%s connects to RabbitMQ without config.Broker.Credentials: %s", f, strings.TrimSpace(line))
			}
		}
	}
}

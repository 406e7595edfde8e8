// Package docs_test checks what the pages say against the tree, and who imports whom.
package docs_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
)

const root = "../.."

// tree reads the text files of the repository, by their paths.
func tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && skipped.MatchString(d.Name()):
			return filepath.SkipDir
		case d.Type().IsRegular() && textual.MatchString(d.Name()):
			data, err := os.ReadFile(path)
			all[strings.TrimPrefix(filepath.ToSlash(path), root+"/")] = string(data)
			return err
		}
		return nil
	})
	expect.NoError(t, err)
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	expect.NoError(t, err)
	return string(data)
}

var (
	skipped = regexp.MustCompile(`^(\..*|bin|results|node_modules)$`)
	textual = regexp.MustCompile(`\.(md|go|ya?ml|json|html|txtar|txt)$|^Makefile$`)
	proof   = regexp.MustCompile("`(Test\\w+)`")
	tested  = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	linked  = regexp.MustCompile(`(?:\]\(|\b(?:href|src|srcset)=")([^)"\s]+)[)"]`)
	printed = regexp.MustCompile(`\bdocs/[\w./-]+\.(?:md|json|yaml|svg|png)(?:#[\w-]+)?`)
)

// anchors returns the fragments that GitHub gives the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		slug := strings.ToLower(regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(m[1], ""))
		slug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(slug, "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

// A relative link of a page, and a page that an error, a log line, --help, an alert or a
// comment names, leads to a file and to a heading of it. The index has each page.
func TestEachLinkResolves(t *testing.T) {
	files := tree(t)
	index := files["docs/README.md"]
	links, names := 0, 0
	leads := func(from, path, fragment string) {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("%s leads to %s, which does not exist", from, path)
		} else if fragment != "" && filepath.Ext(path) == ".md" && !anchors(files[path])[fragment] {
			t.Errorf("%s leads to %s#%s, and the page has no such heading", from, path, fragment)
		}
	}
	for file, text := range files {
		for _, name := range printed.FindAllString(text, -1) {
			names++
			path, fragment, _ := strings.Cut(name, "#")
			leads(file, path, fragment)
		}
		if filepath.Ext(file) != ".md" {
			continue
		}
		page, in := strings.CutPrefix(file, "docs/")
		if in && page != "README.md" && !strings.Contains(index, "]("+page+")") {
			t.Errorf("the index docs/README.md does not have %s", page)
		}
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			path, fragment, _ := strings.Cut(m[1], "#")
			if path = filepath.Join(filepath.Dir(file), path); m[1][0] == '#' {
				path = file
			}
			leads(file, path, fragment)
		}
	}
	if links < 100 || names < 50 {
		t.Errorf("only %d links and %d names of pages were found", links, names)
	}
}

// A test that a page names as proof of what it says.
func TestEachTestThatAPageNamesExists(t *testing.T) {
	files, defined := tree(t), map[string]bool{}
	for file, text := range files {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range tested.FindAllStringSubmatch(text, -1) {
				defined[m[1]] = true
			}
		}
	}
	named := 0
	for file, text := range files {
		if filepath.Ext(file) != ".md" {
			continue
		}
		for _, m := range proof.FindAllStringSubmatch(text, -1) {
			if named++; !defined[m[1]] {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names of tests were found", named)
	}
}

var inline = regexp.MustCompile("`((?:bin/)?redrive [a-z][^`…]*)`")

// Each command that a page or --help prints exists, with its flags and as many arguments as it
// takes. What it does is tested elsewhere.
func TestCommandsOfPagesExist(t *testing.T) {
	found, pages := 0, tree(t)
	for name, text := range helpTexts(cli.Commands()) {
		pages[name+" --help.md"] = text
	}
	for page, text := range pages {
		if filepath.Ext(page) != ".md" || page == "CHANGELOG.md" {
			continue // that tells of earlier ones
		}
		for _, command := range commandsOf(text) {
			found++
			expect.Err(t, parses(command), nil, "%s: %s", page, command)
		}
	}
	if found < 150 {
		t.Errorf("only %d commands were found", found)
	}
}

// helpTexts returns the examples of c and all below it, as the shell blocks of a page.
func helpTexts(c *cobra.Command) map[string]string {
	all := map[string]string{c.CommandPath(): "```sh\n" + c.Example + "\n```\n"}
	for _, sub := range c.Commands() {
		maps.Copy(all, helpTexts(sub))
	}
	return all
}

// commandsOf returns the commands of a page: lines of its shell blocks, and what is in backquotes.
func commandsOf(page string) (all []string) {
	shell, block := false, false
	// Commands of a block begin with $ here, so that they are known from those in texts.
	for line := range strings.Lines(strings.ReplaceAll(page, "\\\n", " ")) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "```") {
			block = !block
			shell = block && (text == "```sh" || text == "```")
			continue
		}
		switch {
		case shell:
			text = strings.TrimPrefix(strings.TrimPrefix(text, "$ "), "bin/")
			if strings.HasPrefix(text, "redrive ") && !strings.HasPrefix(text, "redrive version ") {
				all = append(all, "$ "+text)
			}
		case !block:
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				all = append(all, strings.TrimPrefix(m[1], "bin/"))
			}
		}
	}
	return all
}

// parses returns why a command line would be refused before it does anything.
func parses(line string) error {
	root := cli.Commands()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(shellWords(strings.TrimPrefix(line, "$ "))[1:])
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if !c.HasParent() {
		return fmt.Errorf("there is no such command")
	}
	if c.HasSubCommands() && !c.Flags().HasFlags() && len(c.Flags().Args()) == 0 {
		return nil // the name of a group of commands
	}
	if len(c.Flags().Args()) == 0 && !strings.HasPrefix(line, "$") {
		return nil // its name in a text, perhaps with a flag
	}
	return c.ValidateArgs(c.Flags().Args())
}

var word = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"|>;&])+|[|>;&'"]`)

// shellWords returns the words of a command, up to a pipe, a redirection, another command or
// a comment.
func shellWords(line string) (words []string) {
	for _, w := range word.FindAllString(line, -1) {
		if strings.ContainsAny(w[:1], "|>;&#") {
			break
		}
		words = append(words, strings.NewReplacer("'", "", `"`, "").Replace(w))
	}
	return words
}

// The Go of the library's page compiles in a module of its own, as a reader would try it.
func TestThePageOfTheLibraryBuildsInAFreshModule(t *testing.T) {
	tree, err := filepath.Abs(root)
	expect.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "docs/how-to/library.md"), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks of Go, and this test knows 2", len(blocks))
	}
	program := `package main

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
)

func main() { _, _ = consume, settle }

func ship(context.Context, []byte) error { return nil }
func handle(amqp.Delivery) error         { return nil }

func consume(ctx context.Context) error {
` + blocks[0][1] + `}

func settle(ctx context.Context, client *redrive.Client, consumer redrive.Consumer,
	deliveries <-chan amqp.Delivery) error {
` + blocks[1][1] + `return nil
}
`
	dir := t.TempDir()
	mod := "module example.com/shop\n\ngo 1.25.0\n\nrequire " + module + " v0.0.0\n\n" +
		"replace " + module + " => " + tree + "\n"
	for name, data := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": read(t, "go.sum")} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	c := exec.Command("go", "vet", "-mod=mod", ".")
	c.Dir = dir
	c.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOWORK=off") // what it needs is here already
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
}

var update = flag.Bool("update", false, "write the tables into the pages")

var ways = []struct {
	name string
	way  redrive.Way
}{
	{"Levels()", redrive.Levels()}, {"ClassicLevels()", redrive.ClassicLevels()}, {"Dynamic()", redrive.Dynamic()},
	{"MessageTTL()", redrive.MessageTTL()}, {"MixedMessageTTL()", redrive.MixedMessageTTL()},
	{"Binary(time.Second)", redrive.Binary(time.Second)}, {"Service()", redrive.Service()},
	{"DelayedExchange()", redrive.DelayedExchange()}, {"Native()", redrive.Native()},
}

// TestTheTableOfLimits writes what each way's Limits are.
func TestTheTableOfLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString("| way | longest wait | precision | survives | while a work queue is full or has no leader " +
		"| routing key | declares in RabbitMQ | needs |\n|---|---|---|---|---|---|---|---|\n")
	for _, w := range ways {
		l := w.way.Limits()
		longest, precision := policy.FormatDuration(l.Longest), policy.FormatDuration(l.Step)
		switch {
		case l.ServiceDecides:
			precision = "the service decides"
		case l.Linear:
			precision = "linear only: grows by the same step after each failure"
		case l.Levels != nil:
			precision = "the next level"
		}
		switch {
		case w.name == "MixedMessageTTL()":
			precision += "; a short wait ends no earlier than the longer ones before it"
		case l.Blocks:
			precision += "; the same wait each time"
		}
		unavailable, key := "its retries wait, no other queue's do", "its own"
		if l.DropsWhenFull {
			unavailable = "its retries that come due are lost"
		}
		if l.ChangesRoutingKey {
			key = "the queue's name"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n",
			w.name, longest, precision, l.Survives, unavailable, key, l.Declares, cmp.Or(l.Needs, "–"))
	}
	rows := b.String()
	declared := regexp.MustCompile(`(?m)^func ([A-Z]\w*)\(.*\) Way `)
	for _, m := range declared.FindAllStringSubmatch(read(t, "ways.go"), -1) {
		expect.Contains(t, rows, "the rows", "`"+m[1]+"(")
	}
	written(t, "docs/explanation/ways-to-wait.md", "<!-- end of limits -->", rows)
}

func TestTheTableOfFields(t *testing.T) {
	// What many fields take, the page explains once below the table.
	said := strings.NewReplacer("the whole, with `*` for any characters and `?` for one; or `/…/`", "pattern",
		"the whole, with `*` and `?`; or `/…/`; a number or a time also with `>` `>=` `<` `<=` or `a..b`", "pattern, number or time",
		"a part of it, in capitals or not; or `/…/`", "part",
		"a date such as `2026-11-21`, or a time such as `2026-11-21T10:00Z`; `>` `>=` `<` `<=`, or `a..b`", "time",
		"a number; `>` `>=` `<` `<=`, or `1..5`", "number")
	var b strings.Builder
	b.WriteString("| field | what | value | such as |\n|---|---|---|---|\n")
	for _, f := range query.Fields() {
		name := f.Name
		switch name {
		case "header.":
			name = "header.NAME"
		case "body.":
			name = "body.PATH"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` |\n", name, f.Doc, said.Replace(f.Takes), f.Example)
	}
	written(t, "docs/reference/query.md", "<!-- end of fields -->", b.String())
}

func TestTheQueriesOfThePageAreQueries(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "docs/reference/query.md"), "```")
	block, _, _ := strings.Cut(rest, "```")
	lines := regexp.MustCompile(`(?m)^\S.*$`).FindAllString(block, -1)
	if len(lines) < 5 {
		t.Fatalf("the page shows %q", lines)
	}
	for _, line := range lines {
		expect.Err(t, expect.ErrOf(query.Parse(line)), nil, "%s", line)
	}
}

// written compares the table of a page, which stands before end, with the one of the code.
func written(t *testing.T, file, end, table string) {
	t.Helper()
	const begin = "-update writes this table -->\n"
	text := read(t, file)
	before, rest, ok := strings.Cut(text, begin)
	is, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := "\n" + table + "\n"
	if is == want {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the code; go test ./test/docs -update writes it:\n%s", file, want)
	}
	expect.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(before+begin+want+end+after), 0o644))
}

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
	desk      = basis + `|internal/(audit|auth|background|condition|decode|hint|mask|query|retry|store)`
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

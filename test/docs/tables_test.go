package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
)

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
		if !strings.Contains(rows, "`"+m[1]+"(") {
			t.Errorf("%s has no row", m[1])
		}
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

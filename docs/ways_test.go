// Package docs_test holds the documentation to the code.
package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
)

var update = flag.Bool("update", false, "write the tables into the pages")

var ways = []struct {
	name string
	way  redrive.Way
}{
	{"Levels()", redrive.Levels()},
	{"ClassicLevels()", redrive.ClassicLevels()},
	{"Dynamic()", redrive.Dynamic()},
	{"MessageTTL()", redrive.MessageTTL()},
	{"MixedMessageTTL()", redrive.MixedMessageTTL()},
	{"Binary(time.Second)", redrive.Binary(time.Second)},
	{"Service()", redrive.Service()},
	{"DelayedExchange()", redrive.DelayedExchange()},
	{"Native()", redrive.Native()},
}

// table is the limits as people read them.
func table() string {
	var b strings.Builder
	b.WriteString("| way | longest wait | precision | survives | while a work queue is full or has no leader | routing key | declares in RabbitMQ | needs |\n|---|---|---|---|---|---|---|---|\n")
	for _, w := range ways {
		l := w.way.Limits()
		longest, precision := policy.FormatDuration(l.Longest), policy.FormatDuration(l.Step)
		makes := l.Declares
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
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", w.name, longest, precision, l.Survives, unavailable, key, makes, cmp.Or(l.Needs, "–"))
	}
	return b.String()
}

// Each way that there is has its row, and its place in the page.
func TestAllWaysAreInTheTable(t *testing.T) {
	code, err := os.ReadFile("../ways.go")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^func ([A-Z]\w*)\(.*\) Way `).FindAllStringSubmatch(string(code), -1)
	if len(all) != len(ways) {
		t.Errorf("%d ways, %d rows", len(all), len(ways))
	}
	rows := table()
	for _, m := range all {
		if !strings.Contains(rows, "`"+m[1]+"(") {
			t.Errorf("%s has no row", m[1])
		}
	}
}

func TestTheTableOfLimits(t *testing.T) {
	written(t, "explanation/ways-to-wait.md", "<!-- end of limits -->", table())
}

// written sees to it that a page has the table that the code gives, before end.
func written(t *testing.T, file, end, table string) {
	t.Helper()
	const begin = "-update writes this table -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	is, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := "\n" + table + "\n"
	if is == want {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the code; go test ./docs -update writes the table. It should be:\n%s", file, want)
	}
	if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

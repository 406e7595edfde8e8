package howto_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/docs/commandline"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Commands that change nothing, or do not with --dry-run.
var (
	readOnly = []string{"check", "doctor", "export", "groups", "ledger", "messages count", "messages list", "messages show", "ops list", "permissions", "queues", "status", "version"}
	dryRuns  = []string{"discard", "doctor", "enroll", "replay", "restore", "unenroll"}
)

// notRunHere are those that need what the service of this test does not have.
var notRunHere = map[string]string{
	"redrive check":         "a name in a text, without its file",
	"redrive messages show": "a name in a text, without its ID",
	"redrive messages show " + anID + " --type shop.Invoice --defaults": "Protobuf types",
	"redrive permissions --config redrive.yaml --vhost NAME":            "several virtual hosts",
	"redrive status --address https://tools.example.com/redrive":        "another machine",
}

// Commands of the pages that change nothing succeed on a service that has failed messages, as they
// are printed. Its config is that of the guide about rules.
func TestReadOnlyCommandsOfPages(t *testing.T) {
	lines, program := readOnlyCommands(t), build(t)
	if len(lines) < 35 {
		t.Errorf("only %d commands were found: %q", len(lines), lines)
	}
	guide, err := os.ReadFile("kinds-of-failure.md")
	if err != nil {
		t.Fatal(err)
	}
	policies := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(guide))[1]
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := (&script{}).scene(t, v, program, policies)
		s.serve("")
		for _, queue := range []string{"orders", "orders.created"} {
			v.Queue(queue, enrolled)
		}
		s.fail("orders", 1)         // parked, since no policy has it
		s.fail("orders.created", 1) // waits
		v.Publish(wire.ExchangeFailures, "orders.created", amqp.Publishing{Headers: amqp.Table{wire.HeaderError: "invalid IBAN"}})
		id := s.service.WaitParked(t, 2)[0].ID
		brokertest.Eventually(t, "one waits", func() bool { return s.count("state:waiting") == 1 })
		here := strings.NewReplacer("QUEUE", "orders", "NAME", "orders", "FILE", s.config, anID, id, "ID", id)
		for _, line := range lines {
			words, err := commandline.Words(here.Replace(line))
			if err != nil {
				t.Fatal(err)
			}
			c := exec.CommandContext(t.Context(), program, words[1:]...)
			c.Dir = filepath.Dir(s.config) // as redrive.yaml
			c.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+v.URL(), "REDRIVE_MANAGEMENT_URL="+v.Management, "REDRIVE_CONFIG="+s.config, "REDRIVE_ADDRESS="+s.service.Client.Addr)
			out, err := c.CombinedOutput()
			found := words[1] == "doctor" && c.ProcessState.ExitCode() == 3 || words[1] == "doctor" && c.ProcessState.ExitCode() == 5
			if err != nil && !found || len(out) == 0 {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
		if s.count("state:waiting") != 1 || s.count("state:parked") != 2 {
			t.Error("commands that change nothing have changed what waits or is parked")
		}
	})
}

// readOnlyCommands are those of all pages, each once.
func readOnlyCommands(t *testing.T) (lines []string) {
	t.Helper()
	pages, err := filepath.Glob("../*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	skipped := map[string]bool{}
	for _, page := range append(pages, "../README.md", "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commandline.Commands(string(text)) {
			if page == "../reference/cli.md" || slices.Contains(lines, c.Line) || !changesNothing(t, c.Line) {
				continue
			}
			if notRunHere[c.Line] != "" {
				skipped[c.Line] = true
				continue
			}
			lines = append(lines, c.Line)
		}
	}
	if len(skipped) != len(notRunHere) {
		t.Errorf("of %d commands that are not run here the pages print %d", len(notRunHere), len(skipped))
	}
	return lines
}

func changesNothing(t *testing.T, line string) bool {
	t.Helper()
	words, err := commandline.Words(line)
	if err != nil {
		t.Fatal(err)
	}
	name := words[1]
	if slices.Contains([]string{"messages", "ops"}, name) && len(words) > 2 {
		name += " " + words[2]
	}
	if slices.Contains(words, "--fix") || !slices.Contains(readOnly, name) {
		return slices.Contains(dryRuns, name) && slices.Contains(words, "--dry-run")
	}
	return true
}

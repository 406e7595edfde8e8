// Package monitoring_test holds what is in deploy/ to what the service shows: the
// Prometheus rules and the Grafana dashboard.
package monitoring_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/expect"
)

const (
	rulesFolder   = "../../deploy/prometheus"
	dashboardFile = "../../deploy/grafana/redrive.json"
	runbook       = "../../docs/how-to/alerts.md"
)

// program is a program of Prometheus's. Without it the test fails: rules that no one
// tried must not look right.
func program(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("REDRIVE_PROMETHEUS"); dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this needs Prometheus: run `make test`, or `make install-prometheus` once (%v)", err)
	}
	return path
}

type rule struct {
	Alert, Record, Expr string
	For                 string
	Labels              map[string]string
	Annotations         map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	read(t, filepath.Join(rulesFolder, "redrive.rules.yml"), &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	if err := yaml.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestTheRulesPassTheirTests(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "redrive.rules.yml"}, {"test", "rules", "redrive.rules.test.yml"}} {
		c := exec.Command(promtool, args...)
		c.Dir = rulesFolder
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert has a case in which it stays silent, then fires, then has ended, and says
// what it means and what to do.
func TestEachAlertIsTestedAndExplained(t *testing.T) {
	var tests struct {
		Tests []struct {
			Name  string
			Cases []struct {
				At     string `yaml:"eval_time"`
				Alert  string `yaml:"alertname"`
				Alerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	read(t, filepath.Join(rulesFolder, "redrive.rules.test.yml"), &tests)
	shown := map[string]bool{}
	for _, test := range tests.Tests {
		stage := map[string]int{} // silent, fires, has ended
		last := time.Duration(0)
		for _, c := range test.Cases {
			at, err := time.ParseDuration(c.At)
			if err != nil || at < last {
				t.Fatalf("%s: %q comes after %s: %v", test.Name, c.At, last, err)
			}
			last = at
			if fires := len(c.Alerts) > 0; fires == (stage[c.Alert] == 1) {
				stage[c.Alert]++
			}
			shown[c.Alert] = shown[c.Alert] || stage[c.Alert] >= 3
		}
	}
	text, err := os.ReadFile(runbook)
	must(t, err)
	severities := map[string]bool{"critical": true, "warning": true}
	alerts := 0
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts++
		if !shown[r.Alert] {
			t.Errorf("no test shows %s silent, then firing, then ended", r.Alert)
		}
		if !severities[r.Labels["severity"]] {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		for _, name := range []string{"summary", "description"} {
			if r.Annotations[name] == "" {
				t.Errorf("%s has no %s", r.Alert, name)
			}
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/how-to/alerts.md#"+strings.ToLower(r.Alert)) {
			t.Errorf("%s leads to %q", r.Alert, r.Annotations["runbook_url"])
		}
		_, section, ok := strings.Cut(string(text), "\n### "+r.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n##")
		for _, part := range []string{"**It means**", "**Look at**", "**Do**"} {
			if !ok || !strings.Contains(section, part) {
				t.Errorf("docs/how-to/alerts.md says nothing of %s under %s", part, r.Alert)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("only %d alerts were read", alerts)
	}
}

// RedriveOverdue is silent while a queue rightly waits: a person has paused it, or another
// alert speaks of it. A limit or an unreachable queue must not silence it.
func TestTheRulesKnowEachWaitReason(t *testing.T) {
	silences := map[throttle.WaitReason]bool{
		throttle.WhyPerson: true, throttle.WhyBreaker: true, throttle.WhyNoConsumer: true, throttle.WhyUnreachable: false,
	}
	var expected []string
	for _, why := range throttle.WaitReasons {
		silent, known := silences[why]
		if !known && !why.IsLimit() {
			t.Errorf("say whether %s silences RedriveOverdue", why)
		}
		if silent {
			expected = append(expected, string(why))
		}
	}
	label := regexp.MustCompile(`redrive_queue_paused\{why=~?"([^"]*)"\}`)
	for _, r := range rules(t) {
		for _, m := range label.FindAllStringSubmatch(r.Expr, -1) {
			named := strings.Split(m[1], "|")
			for _, why := range named {
				if !slices.Contains(throttle.WaitReasons, throttle.WaitReason(why)) {
					t.Errorf("%s names the reason %q, which does not exist", r.Alert, why)
				}
			}
			if r.Alert == "RedriveOverdue" && !slices.Equal(named, expected) {
				t.Errorf("RedriveOverdue is silenced by %s, want %s", named, expected)
			}
		}
		if r.Alert == "RedriveOverdue" && !label.MatchString(r.Expr) {
			t.Error("RedriveOverdue does not look at redrive_queue_paused")
		}
	}
}

var must = expect.NoError

package monitoring_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/redrive-mq/redrive/internal/notify"
)

// A condition has one name and one severity, whoever reports it: Prometheus's rules, the guide to
// alerts and the notifications are held to the one list in the code.
func TestOneSeverityForEachCondition(t *testing.T) {
	type told struct{ severity, event string }
	want := map[string]told{}
	for alert, severity := range notify.OnlyInPrometheus {
		want[alert] = told{severity.String(), "–"}
	}
	for _, k := range notify.Kinds {
		if slices.Contains(notify.OnlyNotified, k.Kind) {
			continue
		}
		if want[k.Alert] != (told{}) {
			t.Errorf("%s is twice in the list", k.Alert)
		}
		want[k.Alert] = told{k.Severity.String(), "`" + string(k.Kind) + "`"}
	}
	ruled := map[string]string{}
	for _, r := range rules(t) {
		if r.Alert != "" {
			ruled[r.Alert] = r.Labels["severity"]
		}
	}
	text, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]told{}
	for _, row := range regexp.MustCompile(`(?m)^\| (Redrive\w+) \| (\w+) \| (\S+) \|$`).FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = told{row[2], row[3]}
	}
	if !maps.Equal(documented, want) {
		t.Errorf("docs/how-to/alerts.md differs from internal/notify/kinds.go:%s", differences(documented, want))
	}
	severities := map[string]string{}
	for alert, of := range want {
		severities[alert] = of.severity
	}
	if !maps.Equal(ruled, severities) {
		t.Errorf("redrive.rules.yml differs from internal/notify/kinds.go:%s", differences(ruled, severities))
	}
	guide, err := os.ReadFile("../../docs/how-to/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	events := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (info|warning|critical) \\|").FindAllStringSubmatch(string(guide), -1) {
		events[row[1]] = row[2]
	}
	listed := map[string]string{}
	for _, k := range notify.Kinds {
		listed[string(k.Kind)] = k.Severity.String()
	}
	if !maps.Equal(events, listed) {
		t.Errorf("docs/how-to/notifications.md differs from internal/notify/kinds.go:%s", differences(events, listed))
	}
}

// differences lists what two maps have apart.
func differences[V comparable](got, want map[string]V) (lines string) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			lines += fmt.Sprintf("\n%s is %v, want %v", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			lines += fmt.Sprintf("\n%s is %v, and is not in the list", name, got[name])
		}
	}
	return lines
}

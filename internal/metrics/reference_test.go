package metrics

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

var update = flag.Bool("update", false, "write docs/reference/metrics.md")

// The reference has each metric that is registered.
func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/metrics.md", "<!-- go test ./internal/metrics -run TestTheReference -update writes what follows -->\n"
	m := New(memstore.New(), func() (uint64, uint64, error) { return 1, 1, nil }, "1.0.0", "")
	m.Retries(func(func(string) bool) []QueueRetries { return nil })
	m.Conditions(func() ([]Condition, []Unconsumed) { return nil, nil })
	m.Store("id")
	m.Replicas(func() []cluster.Replica { return nil })

	kinds := map[string]string{}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	described := regexp.MustCompile(`fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), constLabels: {[^}]*}, variableLabels: {([^}]*)}`)
	descs := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(descs)
	close(descs)
	rows := map[string]string{}
	for d := range descs {
		x := described.FindStringSubmatch(d.String())
		if x == nil {
			t.Fatalf("this is not as expected: %s", d)
		}
		kind := kinds[x[1]]
		switch {
		case kind != "":
		case strings.HasSuffix(x[1], "_total"): // without a series yet
			kind = "counter"
		default:
			kind = "gauge"
		}
		labels := "–"
		if x[3] != "" {
			labels = "`" + strings.ReplaceAll(x[3], ",", "`, `") + "`"
		}
		rows[x[1]] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", x[1], kind, labels, strings.Trim(x[2], `"`))
	}
	want := "\n| metric | type | labels | |\n|---|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		want += rows[name]
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, is, ok := strings.Cut(string(text), begin)
	switch {
	case !ok:
		t.Fatalf("%s has no place for the reference", file)
	case is == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the metrics: go test ./internal/metrics -run TestTheReference -update writes it", file)
	}
}

package whatif

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// shown is a service that shows these messages, a page for each.
type shown struct {
	messages []inspect.Message
	details  map[string]inspect.Detail
	asked    []string
}

func (s *shown) Messages(_ context.Context, q, after string, _ int) (p inspect.Page, err error) {
	s.asked = append(s.asked, q)
	var all []inspect.Message
	for _, m := range s.messages {
		if (m.State == inspect.Retried) == strings.Contains(q, "state:retried") {
			all = append(all, m)
		}
	}
	at := 0
	fmt.Sscan(after, &at)
	if at < len(all) {
		p.Messages = all[at : at+1]
		p.After = fmt.Sprint(at + 1)
	}
	return p, nil
}

func (s *shown) Message(_ context.Context, id string, _ inspect.ReadAs) (inspect.Detail, error) {
	return s.details[id], nil
}

func TestWhatAConfigurationWouldHaveDone(t *testing.T) {
	c, err := config.Parse("f.yaml", []byte(`
redirects: [{from: old, to: orders}]
policies:
  - name: orders
    queues: [orders]
    attempts: 3
    rules:
      - {name: invalid, when: "error:/invalid/", then: park}
      - {name: tenant, when: "header.tenant:acme", then: discard}
      - {name: big, when: "body.total:>100", then: {forward: {queue: big}}}
  - name: rest
    queues: ["mail*"]
    attempts: 2
    exhausted: discard
`))
	if err != nil {
		t.Fatal(err)
	}
	m := func(id, queue, state string, attempt int, failed string) inspect.Message {
		return inspect.Message{ID: id, Key: "k" + id, Queue: queue, State: state, Attempt: attempt, Reason: "reported", Error: failed, Failed: now, FirstFailed: now.Add(-time.Minute)}
	}
	consumer := m("8", "mail", inspect.Parked, 1, "x")
	consumer.ParkedFor = "its consumer parked it: no such address"
	s := &shown{messages: []inspect.Message{
		m("1", "orders", inspect.Waiting, 1, "invalid IBAN"), m("2", "old", inspect.Parked, 2, "invalid BIC"),
		m("3", "orders", inspect.Waiting, 1, "x"), m("4", "orders", inspect.Discarded, 1, "x"), m("5", "orders", inspect.Parked, 5, "x"),
		m("6", "orders", inspect.Retried, 1, "x"), m("7", "orders", inspect.Retried, 1, "invalid too"), consumer, m("9", "mail", inspect.Parked, 2, "x"), m("10", "other", inspect.Parked, 2, "x"),
	}, details: map[string]inspect.Detail{
		"k3": {Headers: []inspect.Header{{Name: "tenant", Value: "acme"}}, Body: &decode.Result{Format: "empty"}},
		"k4": {Message: inspect.Message{Size: 3}, Body: &decode.Result{Format: "json", Text: "{\n  \"total\": 120\n}"}},
		"k5": {Message: inspect.Message{Size: 3}, Body: &decode.Result{Format: "text", Text: "hello"}},
	}}
	r, err := Run(t.Context(), c, s, now.Add(-7*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range r.Rows {
		got = append(got, fmt.Sprintf("%s/%s %v %v", row.Policy, row.Rule, row.Would, row.Did))
	}
	want := `orders/invalid {3 0 0 0 0} {1 2 0 0 0}
orders/tenant {0 0 1 0 0} {0 1 0 0 0}
orders/big {0 0 0 1 0} {0 0 1 0 0}
orders/ {1 0 0 0 1} {1 1 0 0 0}
rest/ {1 0 1 0 0} {2 0 0 0 0}
/ {1 0 0 0 0} {1 0 0 0 0}`
	if strings.Join(got, "\n") != want {
		t.Errorf("park, retry, discard, forward, not known:\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if r.Messages != 10 || r.Bounded || s.asked[0] != "failed:>=2026-11-14T12:00:00Z" {
		t.Errorf("%d messages, asked for %q", r.Messages, s.asked[0])
	}
}

package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// A breaker that is open is reported while messages wait behind it. Discarded, say, they
// leave it open: nothing probes.
func TestAnOpenBreakerWithNothingWaitingIsNotNotified(t *testing.T) {
	s, err := New(testConfig(t), quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.vhosts[0].force("orders", string(throttle.Open), "anna", "the bank is down")
	told := func() (kinds []notify.Kind) {
		t.Helper()
		settings := notify.DefaultSettings()
		all, err := s.vhosts[0].conditions(t.Context(), &settings)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Queue == "orders" {
				kinds = append(kinds, c.Kind)
			}
		}
		return kinds
	}
	if is := told(); len(is) > 0 {
		t.Errorf("with nothing behind it: %v", is)
	}
	if err := s.vhosts[0].store.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: "orders", State: store.Waiting, Due: time.Now(), FirstFailed: time.Now(), FailedAt: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	if is := told(); !slices.Equal(is, []notify.Kind{notify.BreakerOpen}) {
		t.Errorf("with a message behind it: %v", is)
	}
}

// undated is a store that does not know when its waiting message failed.
type undated struct{ engine }

func (undated) Counts(context.Context) ([]store.QueueCount, error) {
	return []store.QueueCount{{Queue: "orders", Waiting: 1}}, nil
}

// A message whose times are not known is not one that has waited since the year 1.
func TestAMessageOfAnUnknownTimeIsNotNotified(t *testing.T) {
	s, err := New(testConfig(t), quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v := s.vhosts[0]
	v.store = undated{v.store}
	settings := notify.DefaultSettings()
	all, err := v.conditions(t.Context(), &settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Kind == notify.OldestWaiting {
			t.Errorf("%+v", c)
		}
	}
}

// What is wrong with a part is reported as what it means to people.
func TestWhatHealthTellsPeople(t *testing.T) {
	h, _ := testHealth()
	for _, part := range []string{partIntake, partParked, partPublish} {
		h.set(part, "")
	}
	for _, step := range []struct{ part, what, want string }{
		{"", "", ""},
		{partIntake, "not connected", "intake_stopped after 2m0s: not connected"},
		{partIntake, blockedBy + "memory", "broker_blocked: " + blockedBy + "memory"},
		{partStore, "full", "broker_blocked: " + blockedBy + "memory; intake_stopped: full"},
		{partIntake, "", "intake_stopped: full"},
		{partStore, "", ""},
		{partParkedStore, "full", "intake_stopped: full"},
		{partParkedStore, "", ""},
		{partPublish, blockedBy + "disk", "broker_blocked: " + blockedBy + "disk"},
		{partPublish, "", ""},
		{partQueue + "orders", "no such queue", "queue_paused orders: they fail: no such queue"},
		{partConsumers + "orders", "none", "queue_paused orders: they fail: no such queue"}, // the throttle reports it
		{partForward + "orders to exchange dead", "full", "forward_stopped orders > exchange dead: full; queue_paused orders: they fail: no such queue"},
	} {
		if step.part != "" {
			h.set(step.part, step.what)
		}
		var got []string
		for _, c := range conditionsOf([]replicaProblems{{wrong: h.byPart()}}) {
			s := string(c.Kind)
			if c.Queue != "" {
				s += " " + c.Queue
			}
			if c.Target != "" {
				s += " > " + c.Target
			}
			if c.After > 0 {
				s += " after " + c.After.String()
			}
			got = append(got, s+": "+c.Text)
			if !slices.Contains(notify.KindNames(), string(c.Kind)) {
				t.Errorf("there is no event %s", c.Kind)
			}
		}
		slices.Sort(got)
		if s := strings.Join(got, "; "); s != step.want {
			t.Errorf("after %s %q: %q, want %q", step.part, step.what, s, step.want)
		}
	}
}

// With several replicas, a notification names the replica that it is about.
func TestWhatIsWrongAtOneReplicaNamesIt(t *testing.T) {
	const a, b = "10.0.0.1:8250", "10.0.0.2:8250"
	for _, c := range []struct {
		replicas []replicaProblems
		want     string
	}{
		{[]replicaProblems{{a, map[string]string{partPublish: blockedBy + "disk", partIntake: blockedBy + "disk"}}, {b, nil}},
			"broker_blocked: " + blockedBy + "disk (replica " + a + ")"},
		{[]replicaProblems{{b, map[string]string{partPublish: blockedBy + "disk"}}, {a, map[string]string{partPublish: blockedBy + "disk"}}},
			"broker_blocked: " + blockedBy + "disk (replica " + a + ", " + b + ")"},
		{[]replicaProblems{{a, map[string]string{partStore: "full"}}, {b, nil}}, ""},
		{[]replicaProblems{{a, map[string]string{partStore: "full"}}, {b, map[string]string{partRedis: "gone"}}},
			"intake_stopped: full (replica " + a + "); gone (replica " + b + ")"},
		{[]replicaProblems{{a, nil}, {b, map[string]string{partQueue + "orders": "no such queue"}}},
			"queue_paused orders: they fail: no such queue (replica " + b + ")"},
	} {
		var got []string
		for _, is := range conditionsOf(c.replicas) {
			got = append(got, strings.TrimSpace(string(is.Kind)+" "+is.Queue)+": "+is.Text)
		}
		if s := strings.Join(got, "; "); s != c.want {
			t.Errorf("%v: %q, want %q", c.replicas, s, c.want)
		}
	}
}

package inspect_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// healthScene is what an Inspector knows of the service and its queues.
type healthScene struct {
	inspect.Config
	throttles map[string]*inspect.ThrottleView
	blocked   map[string]string
}

// healthOf is the health of a scene with these records.
func (s healthScene) of(t *testing.T, by auth.Caller, records ...*store.Record) inspect.Health {
	t.Helper()
	kept := memstore.New()
	if err := kept.Add(ctx, records); err != nil {
		t.Fatal(err)
	}
	s.Store = kept
	s.Throttle = func(queue string) *inspect.ThrottleView { return s.throttles[queue] }
	s.Config.Unreachable = func(queue string) string { return s.blocked[queue] }
	in := inspect.New(s.Config)
	h, err := in.Health(ctx, by)
	o, oErr := in.Overview(ctx, by)
	if err != nil || oErr != nil || fmt.Sprint(o.Health) != fmt.Sprint(h) {
		t.Errorf("the overview says %+v, and health %+v: %v %v", o.Health, h, err, oErr)
	}
	return h
}

func reasonsOf(h inspect.Health) (all []string) {
	for _, r := range h.Reasons {
		all = append(all, strings.TrimPrefix(fmt.Sprintf("%s %s: %s", r.State, r.Queue, r.Text), " "))
	}
	return all
}

func due(queue string, at time.Time) *store.Record {
	r := record(queue, store.Waiting, "x")
	r.Due = at
	return r
}

// What a person on call has to know is never hidden behind "nothing is wrong".
func TestHealthSaysWhatIsWrong(t *testing.T) {
	now := time.Now()
	viewer := caller(auth.Viewer)
	one := func(problems ...string) healthScene {
		return healthScene{Config: inspect.Config{Problems: func() []string { return problems }}}
	}
	throttled := func(v inspect.ThrottleView) healthScene {
		return healthScene{throttles: map[string]*inspect.ThrottleView{"orders": &v}}
	}
	silent := inspect.Replica{ID: "two", Beat: now.Add(-time.Minute), Ready: true}
	for name, c := range map[string]struct {
		scene healthScene
		keeps []*store.Record
		state inspect.Condition
		want  []string
	}{
		"all is well":  {one(), []*store.Record{due("orders", now.Add(time.Hour))}, inspect.Well, nil},
		"a problem":    {one("intake: not connected"), nil, inspect.Wrong, []string{"wrong : intake: not connected"}},
		"parked":       {one(), []*store.Record{record("orders", store.Parked, "x"), record("mail", store.Parked, "y")}, inspect.Attention, []string{"attention : 2 messages are parked until a person replays or discards them"}},
		"open breaker": {throttled(inspect.ThrottleView{State: "open", Why: "9 of 10 failed again"}), []*store.Record{due("orders", now.Add(time.Hour))}, inspect.Wrong, []string{"wrong orders: breaker open: 9 of 10 failed again"}},
		"half-open":    {throttled(inspect.ThrottleView{State: "half-open"}), []*store.Record{due("orders", now.Add(time.Hour))}, inspect.Attention, []string{"attention orders: breaker half-open"}},
		"opened by a person": {throttled(inspect.ThrottleView{State: "open", Forced: &inspect.Forced{To: "open", By: "dana", Reason: "deploy"}}), []*store.Record{due("orders", now.Add(time.Hour))}, inspect.Attention,
			[]string{"attention orders: breaker set to open by dana: deploy"}},
		"closed by a person": {throttled(inspect.ThrottleView{State: "closed", Forced: &inspect.Forced{To: "closed", By: "dana"}}), []*store.Record{due("orders", now.Add(time.Hour))}, inspect.Well, nil},
		"no consumers":       {throttled(inspect.ThrottleView{State: "closed", NoConsumer: &now}), []*store.Record{due("orders", now)}, inspect.Wrong, []string{"wrong orders: no consumers: what is due for it waits"}},
		"overdue":            {one(), []*store.Record{due("orders", now.Add(-time.Hour))}, inspect.Attention, []string{"attention orders: messages are due and not retried yet"}},
		"just due":           {one(), []*store.Record{due("orders", now.Add(-time.Second))}, inspect.Well, nil},
		"a notice":           {healthScene{Config: inspect.Config{Notices: func() []string { return []string{"2 in quarantine"} }}}, nil, inspect.Attention, []string{"attention : 2 in quarantine"}},
		"a silent replica": {healthScene{Config: inspect.Config{Replicas: func() []inspect.Replica { return []inspect.Replica{silent} }}}, nil, inspect.Attention,
			[]string{"attention : replica two: not heard of"}},
		"a queue's problem is said once": {healthScene{Config: inspect.Config{Problems: func() []string { return []string{"queue a: b: gone", "queue (others): 3 more have problems"} }}, blocked: map[string]string{"a: b": "gone"}},
			[]*store.Record{due("a: b", now)}, inspect.Wrong, []string{"wrong : queue (others): 3 more have problems", "wrong a: b: retries stopped: gone"}},
		"not ready without a problem": {healthScene{Config: inspect.Config{Ready: func() bool { return false }}}, nil, inspect.Wrong, []string{"wrong : the service is not ready"}},
		"the worst first": {healthScene{Config: inspect.Config{Problems: func() []string { return []string{"intake: not connected"} }, Notices: func() []string { return []string{"n"} }}}, []*store.Record{record("orders", store.Parked, "x")}, inspect.Wrong,
			[]string{"wrong : intake: not connected", "attention : n", "attention : 1 message is parked until a person replays or discards it"}},
	} {
		h := c.scene.of(t, viewer, c.keeps...)
		if h.State != c.state || !slices.Equal(reasonsOf(h), c.want) {
			t.Errorf("%s: %s %q, want %s %q", name, h.State, reasonsOf(h), c.state, c.want)
		}
	}
}

// Of very many queues with the same trouble a few are named, those with the most messages first,
// and the others counted.
func TestHealthCountsTheOthers(t *testing.T) {
	s := healthScene{throttles: map[string]*inspect.ThrottleView{}}
	var keeps []*store.Record
	for i := range 40 {
		name := fmt.Sprintf("q%02d", i)
		s.throttles[name] = &inspect.ThrottleView{State: "open"}
		for range 1 + i%10 {
			keeps = append(keeps, due(name, time.Now().Add(time.Hour)))
		}
	}
	h := s.of(t, caller(auth.Viewer), keeps...)
	if got := reasonsOf(h); len(got) != 6 || got[0] != "wrong q09: breaker open" || got[5] != "wrong : 35 more queues have a breaker that holds retries back" {
		t.Errorf("it says %q", got)
	}
}

// A caller who is limited to queues learns nothing of the others.
func TestHealthOfAFewQueues(t *testing.T) {
	s := healthScene{Config: inspect.Config{Ready: func() bool { return true }, Problems: func() []string { return []string{"queue orders: gone"} }}, blocked: map[string]string{"orders": "gone"}}
	if h := s.of(t, caller(auth.Viewer, "mail"), due("orders", time.Now()), record("orders", store.Parked, "x"), record("mail", store.Discarded, "x")); h.State != inspect.Well {
		t.Errorf("it says %q", reasonsOf(h))
	}
}

func TestHealthWithoutTheStore(t *testing.T) {
	s := memstore.New()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h, err := inspect.New(inspect.Config{Store: s}).Health(ctx, caller(auth.Viewer))
	if err != nil || h.State != inspect.Wrong || !strings.HasPrefix(h.Reasons[0].Text, inspect.Unread) {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := inspect.New(inspect.Config{Store: s}).Health(ctx, auth.Caller{}); !errors.Is(err, auth.ErrSignIn) {
		t.Errorf("a caller who has not signed in: %v", err)
	}
}

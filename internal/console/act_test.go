package console_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

var ctx = context.Background()

func caller(role auth.Role, queues ...string) auth.Caller {
	return auth.Caller{Name: "ann", How: "token", From: "127.0.0.1", Face: "api", Role: role, Queues: queues}
}

// desk is a console with all that it needs, over an engine.
type desk struct {
	*console.Console
	store  console.Store
	audit  *ledger
	events []string
	broker queues
	paused map[string]bool
	gate   *console.Throttle
	forced []string
}

// ledger is an audit log in memory that can refuse.
type ledger struct {
	mu    sync.Mutex
	lines []string
	full  error
}

func (l *ledger) Begin(e audit.Entry) (func(string, int64), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full != nil {
		return nil, l.full
	}
	l.lines = append(l.lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", e.Who, e.Did, e.On, e.Count, e.Why)))
	at := len(l.lines) - 1
	return func(outcome string, n int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines[at] += fmt.Sprintf(": %s %d", outcome, n)
	}, nil
}

func (l *ledger) Before(context.Context, int64, func(audit.Entry) (bool, error)) error { return nil }

func (l *ledger) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// queues are those that exist.
type queues struct {
	mu  *sync.Mutex
	all map[string]console.AtBroker
}

func (q queues) Queue(_ context.Context, name string) (console.AtBroker, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all[name], nil
}

func (q queues) set(name string, at console.AtBroker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all[name] = at
}

func newDesk(s console.Store) *desk {
	d := &desk{store: s, audit: &ledger{}, paused: map[string]bool{}, broker: queues{&sync.Mutex{}, map[string]console.AtBroker{}}}
	for _, q := range []string{"orders", "mail", "other"} {
		d.broker.all[q] = console.AtBroker{Exists: true, Consumers: 1}
	}
	var mu sync.Mutex
	d.Console = console.New(console.Config{Store: s, Audit: d.audit, Broker: d.broker, Restorable: time.Hour,
		Policies:  func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} },
		SetPaused: func(q string, paused bool) { d.paused[q] = paused },
		Throttle:  func(string) *console.Throttle { return d.gate },
		Force:     func(queue, to, by, why string) { d.forced = append(d.forced, queue+" "+to+" "+by+" "+why) },
		Events: func(e retry.Event) {
			mu.Lock()
			defer mu.Unlock()
			d.events = append(d.events, fmt.Sprintf("%s %s %d by %s", e.Kind, e.Queue, e.N, e.By))
		}})
	return d
}

func openDisk(t testing.TB, path string) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(path, diskstore.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// each runs a test over both engines.
func each(t *testing.T, test func(t *testing.T, d *desk)) {
	t.Run("memory", func(t *testing.T) { test(t, newDesk(memstore.New())) })
	t.Run("disk", func(t *testing.T) {
		s := openDisk(t, t.TempDir())
		defer s.Close()
		test(t, newDesk(s))
	})
}

var long = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // ago

func record(queue string, state store.State, body string) *store.Record {
	r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: state, Due: long, Attempt: 3, Reason: "rejected", Error: "no stock",
		FirstFailed: long, FailedAt: long, Fingerprint: [16]byte{1}, Message: wire.Message{RoutingKey: "k", Body: []byte(body)}}
	switch state {
	case store.Parked:
		r.ParkedFor, r.Forward = "out of attempts", &store.Destination{Exchange: "dlx"}
	case store.Waiting:
		r.Due = time.Now().Add(time.Hour).Truncate(time.Microsecond)
	case store.Discarded:
		r.Due = time.Now().Add(time.Hour).Truncate(time.Microsecond)
	}
	return r
}

func (d *desk) add(t *testing.T, records ...*store.Record) {
	t.Helper()
	if err := d.store.Add(ctx, records); err != nil {
		t.Fatal(err)
	}
}

// kept is the one record with an id.
func (d *desk) kept(t *testing.T, id string) *store.Record {
	t.Helper()
	all, err := d.store.Find(ctx, uuid.MustParse(id))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d records have the id %s, %v", len(all), id, err)
	}
	return all[0].Record
}

func TestEachVerbOnEachState(t *testing.T) {
	at := time.Now().Add(time.Minute)
	for _, c := range []struct {
		verb  console.Verb
		state store.State
		why   string // not "": it is skipped
	}{
		{console.Replay, store.Waiting, ""}, {console.Replay, store.Parked, ""}, {console.Replay, store.Discarded, "restore it first"},
		{console.Discard, store.Waiting, ""}, {console.Discard, store.Parked, ""}, {console.Discard, store.Discarded, "already"},
		{console.Restore, store.Waiting, "not discarded"}, {console.Restore, store.Parked, "not discarded"}, {console.Restore, store.Discarded, ""},
		{console.Copy, store.Waiting, ""}, {console.Copy, store.Parked, ""}, {console.Copy, store.Discarded, ""},
	} {
		t.Run(fmt.Sprintf("%s %d", c.verb, c.state), func(t *testing.T) {
			each(t, func(t *testing.T, d *desk) {
				r := record("orders", c.state, "body")
				r.Proven = true
				d.add(t, r)
				a := console.Act{Verb: c.verb, IDs: []string{r.ID.String()}, Reason: "because"}
				switch c.verb {
				case console.Replay:
					a.At = &at
				case console.Copy:
					a.To = "other"
				}
				before := *d.kept(t, r.ID.String())
				a.DryRun = true
				dry, err := d.Act(ctx, caller(auth.Admin), a)
				if now := d.kept(t, r.ID.String()); err != nil || now.State != before.State || !now.Due.Equal(before.Due) || len(d.audit.lines) > 0 || len(d.events) > 0 {
					t.Errorf("a dry run did something: %v, %v", d.audit.lines, err)
				}
				a.DryRun = false
				got, err := d.Act(ctx, caller(auth.Admin), a)
				if err != nil || len(got.Outcomes) != 1 || got.Done != dry.Done || got.Outcomes[0].Outcome != dry.Outcomes[0].Outcome {
					t.Fatalf("%+v, %v; the dry run said %+v", got, err, dry)
				}
				o := got.Outcomes[0]
				if len(d.audit.lines) != 1 || !strings.Contains(d.audit.lines[0], fmt.Sprintf("because: done %d", got.Done)) {
					t.Errorf("audit %v", d.audit.lines)
				}
				now := d.kept(t, r.ID.String())
				if c.why != "" {
					if o.Outcome != "skipped" || !strings.Contains(o.Why, c.why) || now.State != c.state || len(d.events) != 0 {
						t.Errorf("%+v, events %v", o, d.events)
					}
					return
				}
				if o.Outcome != "done" || got.Done != 1 || len(d.events) != 1 {
					t.Errorf("%+v, events %v", o, d.events)
				}
				switch c.verb {
				case console.Replay:
					attempt := 0
					if c.state == store.Waiting {
						attempt = 3
					}
					if now.State != store.Waiting || now.Due.Before(at) || now.Due.Sub(at) > time.Microsecond || now.Attempt != attempt || now.Forward != nil || now.ParkedFor != "" {
						t.Errorf("replayed as %+v", now)
					}
				case console.Discard:
					if left := time.Until(now.Due); now.State != store.Discarded || left > time.Hour || left < 50*time.Minute {
						t.Errorf("discarded as %+v", now)
					}
				case console.Restore:
					if now.State != store.Parked || now.ParkedFor == "" || time.Since(now.Due) > time.Minute {
						t.Errorf("restored as %+v", now)
					}
				case console.Copy:
					made := d.kept(t, o.New)
					if now.State != c.state || now.MadeInto != made.ID || made.MadeFrom != r.ID || made.State != store.Waiting || made.Queue != "other" ||
						*made.Forward != (store.Destination{RoutingKey: "other"}) || made.Attempt != 0 || string(made.Message.Body) != "body" || made.Fingerprint != [16]byte{} || made.Proven {
						t.Errorf("copied as %+v of %+v", made, now)
					}
				}
			})
		})
	}
}

func TestWhatIsNotThereIsSkipped(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		mine, theirs, twin, claimed := record("orders", store.Parked, ""), record("secret", store.Parked, ""), record("orders", store.Parked, "1"), record("orders", store.Waiting, "")
		other := *twin
		claimed.Due = long
		d.add(t, mine, theirs, twin, &other, claimed)
		if claims, err := d.store.Claim(ctx, store.Lane{Queue: "orders"}, time.Now(), 1, 1); err != nil || len(claims) != 1 {
			t.Fatal(claims, err)
		}
		twins, err := d.store.Find(ctx, twin.ID)
		if err != nil {
			t.Fatal(err)
		}
		ids := []string{mine.ID.String(), theirs.ID.String(), uuid.NewString(), "no key", mine.ID.String(), twin.ID.String(), string(twins[1].Key), claimed.ID.String()}
		got, err := d.Act(ctx, caller(auth.Operator, "orders"), console.Act{Verb: console.Discard, IDs: ids})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, o := range got.Outcomes {
			all = append(all, o.Outcome)
		}
		if want := "done skipped skipped skipped skipped skipped done skipped"; strings.Join(all, " ") != want || got.Done != 2 {
			t.Errorf("%d done: %v, want %s", got.Done, all, want)
		}
		if why := got.Outcomes[5].Why; !strings.Contains(why, string(twins[0].Key)) {
			t.Errorf("of two with an id: %q", why)
		}
		if got.Outcomes[1].Why != got.Outcomes[2].Why {
			t.Error("what one may not see looks different from what is not there")
		}
		if d.kept(t, theirs.ID.String()).State != store.Parked {
			t.Error("a message of a queue that the caller may not touch was discarded")
		}
	})
}

func TestNothingIsDoneWithoutRightOrAudit(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := record("orders", store.Parked, "")
		d.add(t, r)
		id := []string{r.ID.String()}
		readOnly := caller(auth.Admin)
		readOnly.ReadOnly = true
		for _, c := range []struct {
			by   auth.Caller
			a    console.Act
			want error
		}{
			{caller(auth.Viewer), console.Act{Verb: console.Discard, IDs: id}, auth.ErrForbidden},
			{auth.Caller{}, console.Act{Verb: console.Discard, IDs: id}, auth.ErrSignIn},
			{readOnly, console.Act{Verb: console.Discard, IDs: id}, auth.ErrReadOnly},
			{caller(auth.Operator), console.Act{Verb: console.Copy, IDs: id, To: "other"}, auth.ErrForbidden},
			{caller(auth.Editor, "orders"), console.Act{Verb: console.Copy, IDs: id, To: "other"}, auth.ErrForbidden},
			{caller(auth.Editor), console.Act{Verb: console.Copy, IDs: id, To: "ordres"}, console.ErrPrecondition},
			{caller(auth.Editor), console.Act{Verb: console.Copy, IDs: id, To: "redrive.intake"}, console.ErrInvalid},
			{caller(auth.Editor), console.Act{Verb: console.Copy, IDs: id}, console.ErrInvalid},
			{caller(auth.Editor), console.Act{Verb: "retry", IDs: id}, console.ErrInvalid},
			{caller(auth.Editor), console.Act{Verb: console.Replay}, console.ErrInvalid},
			{caller(auth.Editor), console.Act{Verb: console.Replay, IDs: id, Reason: strings.Repeat("x", 501)}, console.ErrInvalid},
		} {
			if _, err := d.Act(ctx, c.by, c.a); !errors.Is(err, c.want) {
				t.Errorf("%s by %s: %v, want %v", c.a.Verb, c.by.Role, err, c.want)
			}
		}
		// A caller without permission must not fill the disk either.
		if _, err := d.Act(ctx, caller(auth.Viewer), console.Act{Verb: console.Discard, IDs: slices.Repeat(id, 1000)}); !errors.Is(err, auth.ErrForbidden) {
			t.Error(err)
		}
		for _, l := range d.audit.all() {
			if !strings.Contains(l, ": refused") || len(l) > 1000 {
				t.Errorf("audit: %s", l)
			}
		}
		d.audit.full = errors.New("disk full")
		if _, err := d.Act(ctx, caller(auth.Admin), console.Act{Verb: console.Discard, IDs: id}); !errors.Is(err, console.ErrNoAudit) {
			t.Errorf("without audit: %v", err)
		}
		if d.kept(t, id[0]).State != store.Parked {
			t.Error("it was discarded")
		}
	})
}

func TestAPauseIsKeptAndReported(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		op := caller(auth.Operator, "orders")
		if err := d.ResumeQueue(ctx, op, "orders", ""); !errors.Is(err, console.ErrPrecondition) {
			t.Errorf("resuming what is not paused: %v", err)
		}
		if err := d.PauseQueue(ctx, op, "mail", ""); !errors.Is(err, auth.ErrForbidden) {
			t.Errorf("another's queue: %v", err)
		}
		if err := d.PauseQueue(ctx, op, "orders", "database is down"); err != nil || !d.paused["orders"] {
			t.Fatalf("paused %v, %v", d.paused, err)
		}
		v, err := d.store.Entry(ctx, store.PausePrefix+"orders")
		if err != nil || !strings.Contains(string(v), "database is down") {
			t.Errorf("kept %s, %v", v, err)
		}
		if err := d.ResumeQueue(ctx, op, "orders", "up again"); err != nil || d.paused["orders"] {
			t.Errorf("paused %v, %v", d.paused, err)
		}
		if v, err := d.store.Entry(ctx, store.PausePrefix+"orders"); err != nil || v != nil {
			t.Errorf("kept %s, %v", v, err)
		}
		if want := []string{"paused orders 0 by ann", "resumed orders 0 by ann"}; !slices.Equal(d.events, want) {
			t.Errorf("events %v", d.events)
		}
	})
}

package actions_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func TestEachVerbOnEachState(t *testing.T) {
	at := time.Now().Add(time.Minute)
	for _, c := range []struct {
		verb  actions.Verb
		state store.State
		why   string // not "": it is skipped
	}{
		{actions.Replay, store.Waiting, ""}, {actions.Replay, store.Parked, ""}, {actions.Replay, store.Discarded, "restore it first"},
		{actions.Discard, store.Waiting, ""}, {actions.Discard, store.Parked, ""}, {actions.Discard, store.Discarded, "already"},
		{actions.Restore, store.Waiting, "not discarded"}, {actions.Restore, store.Parked, "not discarded"}, {actions.Restore, store.Discarded, ""},
		{actions.Copy, store.Waiting, ""}, {actions.Copy, store.Parked, ""}, {actions.Copy, store.Discarded, ""},
	} {
		t.Run(fmt.Sprintf("%s %d", c.verb, c.state), func(t *testing.T) {
			each(t, func(t *testing.T, d *desk) {
				r := record("orders", c.state, "body")
				r.Proven, r.Replays = true, 2
				d.add(t, r)
				a := actions.Act{Verb: c.verb, IDs: []string{r.ID.String()}, Reason: "because"}
				switch c.verb {
				case actions.Replay:
					a.At = &at
				case actions.Copy:
					a.To = "other"
				}
				before := *d.kept(t, r.ID.String())
				a.DryRun = true
				dry, err := d.Act(ctx, caller(auth.Admin), a)
				if now := d.kept(t, r.ID.String()); err != nil || now.State != before.State || !now.Due.Equal(before.Due) || len(d.audit.All()) > 0 || len(d.events) > 0 {
					t.Errorf("a dry run did something: %v, %v", d.audit.All(), err)
				}
				a.DryRun = false
				got, err := d.Act(ctx, caller(auth.Admin), a)
				if err != nil || len(got.Outcomes) != 1 || got.Done != dry.Done || got.Outcomes[0].Outcome != dry.Outcomes[0].Outcome {
					t.Fatalf("%+v, %v; the dry run said %+v", got, err, dry)
				}
				o := got.Outcomes[0]
				if len(d.audit.All()) != 1 || !strings.Contains(d.audit.All()[0], fmt.Sprintf("because: done %d", got.Done)) {
					t.Errorf("audit %v", d.audit.All())
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
				case actions.Replay:
					attempt, replays := 0, 3
					if c.state == store.Waiting {
						attempt, replays = 3, 2
					}
					if now.State != store.Waiting || now.Due.Before(at) || now.Due.Sub(at) > time.Microsecond || now.Failures != attempt ||
						now.Replays != replays || now.Forward != nil || now.ParkedFor != "" {
						t.Errorf("replayed as %+v", now)
					}
				case actions.Discard:
					if left := time.Until(now.Due); now.State != store.Discarded || left > time.Hour || left < 50*time.Minute {
						t.Errorf("discarded as %+v", now)
					}
				case actions.Restore:
					if now.State != store.Parked || now.ParkedFor == "" || time.Since(now.Due) > time.Minute {
						t.Errorf("restored as %+v", now)
					}
				case actions.Copy:
					made := d.kept(t, o.New)
					if now.State != c.state || headers.BindID(made.ID, &made.Message) != made.ID || now.MadeInto != made.ID ||
						made.MadeFrom != r.ID || made.State != store.Waiting || made.Queue != "other" ||
						*made.Forward != (store.Destination{RoutingKey: "other"}) || made.Failures != 0 || made.Replays != 1 ||
						string(made.Message.Body) != "body" || made.Fingerprint != [16]byte{} || made.Proven {
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
		must(t, err)
		ids := []string{mine.ID.String(), theirs.ID.String(), uuid.NewString(), "no key", mine.ID.String(), twin.ID.String(), string(twins[1].Key), claimed.ID.String()}
		got, err := d.Act(ctx, caller(auth.Operator, "orders"), actions.Act{Verb: actions.Discard, IDs: ids})
		must(t, err)
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
			a    actions.Act
			want error
		}{
			{caller(auth.Viewer), actions.Act{Verb: actions.Discard, IDs: id}, auth.ErrForbidden},
			{auth.Caller{}, actions.Act{Verb: actions.Discard, IDs: id}, auth.ErrSignIn},
			{readOnly, actions.Act{Verb: actions.Discard, IDs: id}, auth.ErrReadOnly},
			{caller(auth.Operator), actions.Act{Verb: actions.Copy, IDs: id, To: "other"}, auth.ErrForbidden},
			{caller(auth.Editor, "orders"), actions.Act{Verb: actions.Copy, IDs: id, To: "other"}, auth.ErrForbidden},
			{caller(auth.Editor), actions.Act{Verb: actions.Copy, IDs: id, To: "ordres"}, inspect.ErrPrecondition},
			{caller(auth.Editor), actions.Act{Verb: actions.Copy, IDs: id, To: "redrive.intake"}, inspect.ErrInvalid},
			{caller(auth.Editor), actions.Act{Verb: actions.Copy, IDs: id}, inspect.ErrInvalid},
			{caller(auth.Editor), actions.Act{Verb: "retry", IDs: id}, inspect.ErrInvalid},
			{caller(auth.Editor), actions.Act{Verb: actions.Replay}, inspect.ErrInvalid},
			{caller(auth.Editor), actions.Act{Verb: actions.Replay, IDs: id, Reason: strings.Repeat("x", 501)}, inspect.ErrInvalid},
		} {
			expect.Err(t, errOf(d.Act(ctx, c.by, c.a)), c.want, "%s by %s", c.a.Verb, c.by.Role)
		}
		// A caller without permission must not fill the disk either.
		if _, err := d.Act(ctx, caller(auth.Viewer), actions.Act{Verb: actions.Discard, IDs: slices.Repeat(id, 1000)}); !errors.Is(err, auth.ErrForbidden) {
			t.Error(err)
		}
		if len(d.audit.All()) == 0 {
			t.Error("the audit log has none of what was refused")
		}
		for _, l := range d.audit.All() {
			if !strings.Contains(l, ": refused") || len(l) > 1000 {
				t.Errorf("audit: %s", l)
			}
		}
		d.audit.Full = errors.New("disk full")
		expect.Err(t, errOf(d.Act(ctx, caller(auth.Admin), actions.Act{Verb: actions.Discard, IDs: id})),
			actions.ErrNoAudit, "without audit")
		if d.kept(t, id[0]).State != store.Parked {
			t.Error("it was discarded")
		}
	})
}

// A report is an entry of its own kind, and only four actions can be reported.
func TestAReportIsTheCallersWord(t *testing.T) {
	d := newDesk(memstore.New())
	readOnly := caller(auth.Admin)
	readOnly.ReadOnly = true
	many := slices.Repeat([]string{"orders"}, actions.MaxReported+1)
	for _, c := range []struct {
		by     auth.Caller
		action string
		queues []string
		want   error
		logged string
	}{
		{caller(auth.Admin), actions.Enroll, []string{"orders", "mail"}, nil, "reported.enroll orders, mail 0: reported 0"},
		{readOnly, actions.Move, []string{"orders", "orders.v2"}, nil, "reported.move orders to orders.v2 0: reported 0"},
		{caller(auth.Admin, "orders"), actions.DoctorFix, []string{"orders"}, nil, "reported.doctor.fix orders 0: reported 0"},
		{caller(auth.Admin, "orders"), actions.Unenroll, []string{"orders", "mail"}, auth.ErrForbidden,
			"reported.unenroll orders, mail 0: refused"},
		{caller(auth.Editor), actions.Enroll, []string{"orders"}, auth.ErrForbidden, "reported.enroll orders 0: refused"},
		{auth.Caller{}, actions.Enroll, []string{"orders"}, auth.ErrSignIn, ""},
		{caller(auth.Editor), "pause", []string{"orders"}, inspect.ErrInvalid, ""},
		{caller(auth.Admin), "pause", []string{"orders"}, inspect.ErrInvalid, ""},
		{caller(auth.Admin), "adopt", []string{"orders"}, inspect.ErrInvalid, ""},
		{caller(auth.Admin), "", []string{"orders"}, inspect.ErrInvalid, ""},
		{caller(auth.Admin), actions.Enroll, nil, inspect.ErrInvalid, ""},
		{caller(auth.Admin), actions.Enroll, many, inspect.ErrInvalid, ""},
		{caller(auth.Admin), actions.Move, many[:3], inspect.ErrInvalid, ""},
		{caller(auth.Admin), actions.Enroll, []string{strings.Repeat("x", 256)}, inspect.ErrInvalid, ""},
		{caller(auth.Admin), actions.Enroll, []string{"orders", ""}, inspect.ErrInvalid, ""},
	} {
		before := len(d.audit.All())
		expect.Err(t, d.Report(ctx, c.by, actions.Report{Action: c.action, Queues: c.queues}), c.want, "%s of %.80q", c.action, c.queues)
		logged := strings.Join(d.audit.All()[before:], "; ")
		if !strings.Contains(logged, c.logged) || c.logged == "" && logged != "" {
			t.Errorf("%s of %.80q by %s: the log has %q, want %q", c.action, c.queues, c.by.Role, logged, c.logged)
		}
	}
	enrolled := actions.Report{Action: actions.Enroll, Queues: []string{"orders"}}
	before := len(d.audit.All())
	for _, d.at = range []actions.Place{{Cluster: "rabbit@other", VHost: "/"}, {Cluster: "rabbit@here", VHost: "other"}} {
		enrolled.Place = actions.Place{Cluster: "rabbit@here", VHost: "/"}
		expect.Err(t, d.Report(ctx, caller(auth.Admin), enrolled), inspect.ErrPrecondition, "done elsewhere than %v", d.at)
	}
	d.away = errors.New("not connected")
	expect.Err(t, d.Report(ctx, caller(auth.Admin), enrolled), d.away, "while the service does not know where it is")
	expect.Equal(t, len(d.audit.All()), before, "entries about another RabbitMQ")
	d.at, d.away = enrolled.Place, nil
	must(t, d.Report(ctx, caller(auth.Admin), enrolled))
	d.audit.Full = errors.New("disk full")
	expect.Err(t, d.Report(ctx, caller(auth.Admin), enrolled), actions.ErrNoAudit, "without audit")
}

// Invalid requests and unknown ids are not logged, and what each caller adds is limited.
func TestNobodyFillsTheAuditLog(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := record("orders", store.Parked, "")
		d.add(t, r)
		viewer, none := caller(auth.Viewer), slices.Repeat([]string{uuid.NewString()}, 999)
		if _, err := d.Export(ctx, viewer, "é staat:parked", io.Discard); err == nil {
			t.Error("a query that makes no sense is exported")
		}
		_, err := d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: none})
		must(t, err)
		if all := d.audit.All(); len(all) != 0 {
			t.Errorf("the audit log has %.300q", all)
		}
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: append(none, r.ID.String())})))
		if all := d.audit.All(); len(all) != 1 || !strings.HasPrefix(all[0], "ann discard orders: "+r.ID.String()+" 1: done") {
			t.Errorf("the audit log has %.300q", all)
		}
		long := `text:"` + strings.Repeat("x", 3900) + `"`
		for i := 0; err == nil; i++ {
			if _, err = d.Export(ctx, viewer, long, io.Discard); i == 2000 {
				t.Fatal("one viewer writes as much as they like")
			}
		}
		bob := viewer
		bob.Name = "bob"
		if _, other := d.Export(ctx, bob, long, io.Discard); !errors.Is(err, background.ErrTooMany) || other != nil {
			t.Errorf("%v, and somebody else: %v", err, other)
		}
		d.AuditShort = func() error { return errors.New("little is free") }
		expect.Err(t, errOf(d.Export(ctx, bob, "", io.Discard)), actions.ErrNoAudit,
			"a viewer, on a disk that is nearly full")
		carol := caller(auth.Admin) // ann's share is used up
		carol.Name = "carol"
		expect.Err(t, errOf(d.Export(ctx, carol, "queue:orders", io.Discard)), nil, "an administrator")
	})
}

// filling is a store that takes one message in each step, and is full after some steps.
type filling struct {
	store.Store
	left int
}

func (f *filling) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	if f.left == 0 {
		return 0, store.ErrFull
	}
	f.left--
	return f.Store.Change(ctx, keys[:1], edit, entries)
}

// An action that the store stops half way has an outcome for each message: an error would mean
// that nothing was done, and what was done would be done again.
func TestAnActionThatStopsHalfWaySaysWhatWasDone(t *testing.T) {
	inspecttest.Stores(t, func(t *testing.T, s store.Store) {
		f := &filling{s, 1}
		d := newDesk(f)
		a, b := record("orders", store.Parked, "a"), record("orders", store.Parked, "b")
		d.add(t, a, b)
		act := actions.Act{Verb: actions.Copy, To: "other", IDs: []string{a.ID.String(), b.ID.String()}}
		got, err := d.Act(ctx, caller(auth.Admin), act)
		if err != nil || got.Done != 1 || got.Outcomes[0].Outcome != actions.Done || got.Outcomes[1].Outcome != actions.Failed || got.Outcomes[1].Why != store.ErrFull.Error() {
			t.Errorf("half way: %+v, %v", got, err)
		}
		if lines := d.audit.All(); len(lines) != 1 || !strings.HasSuffix(lines[0], "failed: the store is full 1") {
			t.Errorf("audit: %v", lines)
		}
		if got, err := d.Act(ctx, caller(auth.Admin), act); !errors.Is(err, store.ErrFull) || got.Done != 0 {
			t.Errorf("at the beginning: %+v, %v", got, err)
		}
	})
}

func TestAPauseIsKeptAndReported(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		op := caller(auth.Operator, "orders")
		expect.Err(t, d.ResumeQueue(ctx, op, "orders", ""), inspect.ErrPrecondition, "resuming what is not paused")
		for want, view := range map[string]*inspect.ThrottleView{
			"by a person, but held back: breaker open: 9 of 10 failed; to retry all the same: redrive breaker": {State: "open", Why: "9 of 10 failed"},
			"by a person: it has no consumers, and they resume when one starts":                                {State: "closed", NoConsumer: &time.Time{}},
			"are not paused": {State: "closed"},
		} {
			d.throttle = view
			err := d.ResumeQueue(ctx, op, "orders", "")
			if !errors.Is(err, inspect.ErrPrecondition) || !strings.Contains(err.Error(), want) {
				t.Errorf("resuming %+v: %v, want %q", view, err, want)
			}
		}
		d.throttle = nil
		d.add(t, record("orders", store.Parked, "x"))
		err := d.ResumeQueue(ctx, caller(auth.Operator), "order", "")
		if !errors.Is(err, inspect.ErrNotFound) || hint.Of(err) != `did you mean "orders"?` {
			t.Errorf("resuming what is not known: %v, %s", err, hint.Of(err))
		}
		expect.Err(t, d.PauseQueue(ctx, op, "mail", ""), auth.ErrForbidden, "another's queue")
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

// A message that was replayed as often as its policy allows stays parked, and the answer says why. An edited one
// is another message; a waiting one that is retried sooner, or that is copied or discarded, is not replayed.
func TestAReplayThatThePolicyRefuses(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		limited := policy.Set{{Name: "p", Queues: []string{"*"}, MaxReplays: 2}}
		d.Inspector.Config.Policies = func() policy.Set { return limited }
		parked, waits := record("orders", store.Parked, "a"), record("orders", store.Waiting, "b")
		parked.Replays, waits.Replays = 2, 2
		d.add(t, parked, waits)
		id := []string{parked.ID.String()}
		for _, dry := range []bool{true, false} {
			got, err := d.Act(ctx, caller(auth.Admin), actions.Act{Verb: actions.Replay, IDs: id, DryRun: dry})
			expect.NoError(t, err)
			o := got.Outcomes[0]
			if got.Done != 0 || o.Outcome != actions.Skipped || !strings.Contains(o.Why, `policy "p" allows 2 replays`) {
				t.Errorf("dry: %v: %+v", dry, o)
			}
		}
		if now := d.kept(t, id[0]); now.State != store.Parked || now.Replays != 2 {
			t.Errorf("it is %+v", now)
		}
		sooner := actions.Act{Verb: actions.Replay, IDs: []string{waits.ID.String()}}
		for _, a := range []actions.Act{sooner, {Verb: actions.Copy, IDs: id, To: "other"}} {
			if got, err := d.Act(ctx, caller(auth.Admin), a); err != nil || got.Done != 1 {
				t.Errorf("%s: %+v, %v", a.Verb, got, err)
			}
		}
		body := []byte("c")
		made, err := d.Edit(ctx, caller(auth.Admin), actions.EditRequest{ID: id[0], Body: &body})
		if err != nil || d.kept(t, made.New).Replays != 1 {
			t.Errorf("edited: %+v, %v", made, err)
		}
	})
}

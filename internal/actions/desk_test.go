package actions_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

func editable(body string) *store.Record {
	r := record("orders", store.Parked, body)
	r.Message.ContentType = "application/json"
	r.Message.Headers = amqp.Table{"tenant": "acme", "n": int32(7), "big": int64(1 << 60), "at": time.Unix(1_700_000_000, 0), "list": []any{"a"}}
	return r
}

func TestAnEditReplacesTheMessageInOneStep(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := editable(`{"total":0,"name":"x"}`)
		d.add(t, r)
		doc := `{"total":12345678901234567890,"name":"x"}`
		e := actions.EditRequest{ID: r.ID.String(), Document: &doc, SetHeaders: map[string]string{"tenant": "other", "n": "8", "new": "text", "big": "1152921504606846977"},
			RemoveHeaders: []string{"list"}, Reason: "total was missing", DryRun: true}
		dry, err := d.Edit(ctx, caller(auth.Editor), e)
		if err != nil || dry.New != "" || d.kept(t, r.ID.String()).State != store.Parked || len(d.audit.All()) != 0 {
			t.Fatalf("dry run: %+v, %v", dry, err)
		}
		e.DryRun = false
		got, err := d.Edit(ctx, caller(auth.Editor), e)
		must(t, err)
		changes := map[string]string{}
		for _, f := range got.Fields {
			changes[f.Path] = f.Before + " > " + f.After
		}
		for path, want := range map[string]string{"body.total": "0 > 12345678901234567890", "header.tenant": "acme > other", "header.n": "7 > 8", "header.new": " > text", "header.list[0]": "a > "} {
			expect.Equal(t, changes[path], want, "%s", path)
		}
		if len(changes) != 6 || !strings.Contains(got.Bytes, "@@") || got.Bytes != dry.Bytes {
			t.Errorf("fields %v, bytes:\n%s", changes, got.Bytes)
		}
		was, is := d.kept(t, r.ID.String()), d.kept(t, got.New)
		if was.State != store.Discarded || was.MadeInto != is.ID || string(was.Message.Body) != string(r.Message.Body) || was.Message.Headers["tenant"] != "acme" {
			t.Errorf("the original: %+v", was)
		}
		h := is.Message.Headers
		if is.State != store.Waiting || headers.BindID(is.ID, &is.Message) != is.ID || is.Due.After(time.Now()) ||
			is.MadeFrom != r.ID || is.Failures != 0 || is.Forward != nil || is.Queue != "orders" ||
			h["n"] != int32(8) || h["big"] != int64(1<<60+1) || h["new"] != "text" || h["list"] != nil || !strings.Contains(string(is.Message.Body), "12345678901234567890") {
			t.Errorf("the edited one: %+v", is)
		}
		if len(d.events) != 1 || len(d.audit.All()) != 1 || !strings.Contains(d.audit.All()[0], "total was missing: done 1") {
			t.Errorf("events %v, audit %v", d.events, d.audit.All())
		}
		again := errOf(d.Edit(ctx, caller(auth.Editor), e))
		if !errors.Is(again, inspect.ErrPrecondition) || !strings.Contains(again.Error(), "message "+got.New+" was made of it") {
			t.Errorf("editing it again: %v", again)
		}
	})
}

func TestEncodedBodiesAreEditedInside(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		must(t, errOf(z.Write([]byte(`{"id":1}`))))
		z.Close()
		r := editable(base64.StdEncoding.EncodeToString(zipped.Bytes()))
		d.add(t, r)
		doc := `{"id":2}`
		got, err := d.Edit(ctx, caller(auth.Editor), actions.EditRequest{ID: r.ID.String(), Document: &doc})
		must(t, err)
		raw, err := base64.StdEncoding.DecodeString(string(d.kept(t, got.New).Message.Body))
		must(t, err)
		u, err := gzip.NewReader(bytes.NewReader(raw))
		must(t, err)
		if plain, err := io.ReadAll(u); err != nil || strings.Join(strings.Fields(string(plain)), "") != doc {
			t.Errorf("inside is %q, %v", plain, err)
		}
		if len(got.Fields) != 1 || got.Fields[0].Path != "body.id" {
			t.Errorf("fields %+v", got.Fields)
		}
	})
}

// The store keeps a framework's envelope. The body in it is shown and edited, and what a person
// makes of it has an id that fits what is published.
func TestABodyInAnEnvelopeIsShownAndEdited(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		const envelope = `{"Message":"{\"total\":0}","Queue":"orders"}`
		r := editable(envelope)
		r.Format, r.Envelope = "easynetq", &wire.Message{Type: "EasyNetQ.SystemMessages.Error, EasyNetQ"}
		d.add(t, r)
		id := r.ID.String()
		body, err := d.Inspector.Body(ctx, caller(auth.Viewer), id)
		must(t, err)
		expect.Equal(t, string(body), `{"total":0}`, "is the body")
		detail, err := d.Inspector.Message(ctx, caller(auth.Viewer), id)
		must(t, err)
		expect.Equal(t, strings.Join(strings.Fields(detail.Body.Text), ""), `{"total":0}`, "is shown")

		acted, err := d.Act(ctx, caller(auth.Editor), actions.Act{Verb: actions.Copy, To: "other", IDs: []string{id}})
		must(t, err)
		copied := d.kept(t, acted.Outcomes[0].New)
		sent := retry.Unwrapped(copied)
		expect.Equal(t, headers.BindID(copied.ID, &sent), copied.ID, "is the id of a copy")
		expect.Equal(t, string(sent.Body), `{"total":0}`, "is copied")

		doc := `{"total":5}`
		got, err := d.Edit(ctx, caller(auth.Editor), actions.EditRequest{ID: id, Document: &doc})
		must(t, err)
		was, is := d.kept(t, id), d.kept(t, got.New)
		expect.Equal(t, string(was.Message.Body)+was.Envelope.Type, envelope+r.Envelope.Type, "is the original")
		expect.Equal(t, strings.Join(strings.Fields(string(is.Message.Body)), ""), doc, "is the edited one")
		expect.Equal(t, is.Envelope, nil, "is its envelope")
		expect.Equal(t, headers.BindID(is.ID, &is.Message), is.ID, "is its id")

		var file bytes.Buffer
		must(t, errOf(d.Export(ctx, caller(auth.Viewer), "queue:orders state:discarded", &file)))
		must(t, errOf(d.Import(ctx, caller(auth.Editor), &file, actions.ImportOptions{})))
		all := storetest.Listed(t, d.store, store.Range{State: store.Parked, Queues: []string{"orders"}, Body: true})
		expect.Equal(t, len(all), 1, "is imported")
		imported := all[0].Record
		sent = retry.Unwrapped(imported)
		expect.Equal(t, imported.Format+string(sent.Body), `easynetq{"total":0}`, "is imported")
		expect.Equal(t, headers.BindID(imported.ID, &sent), imported.ID, "is the id of an imported one")
	})
}

func TestEditsThatAreRefused(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := editable(`{"total":0}`)
		d.add(t, r)
		bytesOf, doc, broken := []byte("x"), `{"total":1}`, `{"total":`
		same := r.Message.Body
		set := func(name, value string) actions.EditRequest {
			return actions.EditRequest{SetHeaders: map[string]string{name: value}}
		}
		for name, c := range map[string]struct {
			by   auth.Caller
			e    actions.EditRequest
			want error
		}{
			"an operator":          {caller(auth.Operator), actions.EditRequest{Document: &doc}, auth.ErrForbidden},
			"another's":            {caller(auth.Editor, "mail"), actions.EditRequest{Document: &doc}, inspect.ErrNotFound},
			"nothing":              {caller(auth.Editor), actions.EditRequest{}, inspect.ErrInvalid},
			"nothing new":          {caller(auth.Editor), actions.EditRequest{Body: &same}, inspect.ErrInvalid},
			"both":                 {caller(auth.Editor), actions.EditRequest{Body: &bytesOf, Document: &doc}, inspect.ErrInvalid},
			"no JSON":              {caller(auth.Editor), actions.EditRequest{Document: &broken}, inspect.ErrInvalid},
			"a number of text":     {caller(auth.Editor), set("n", "seven"), inspect.ErrInvalid},
			"a number too large":   {caller(auth.Editor), set("n", "3000000000"), inspect.ErrInvalid},
			"a list of text":       {caller(auth.Editor), set("list", "b"), inspect.ErrInvalid},
			"a time":               {caller(auth.Editor), set("at", "tomorrow"), inspect.ErrInvalid},
			"RabbitMQ's own":       {caller(auth.Editor), set("x-death", "1"), inspect.ErrInvalid},
			"copies elsewhere":     {caller(auth.Editor), set("CC", "1"), inspect.ErrInvalid},
			"what is not there":    {caller(auth.Editor), actions.EditRequest{RemoveHeaders: []string{"no"}}, inspect.ErrInvalid},
			"the name is too long": {caller(auth.Editor), set(strings.Repeat("x", 256), "1"), inspect.ErrInvalid},
		} {
			c.e.ID = r.ID.String()
			expect.Err(t, errOf(d.Edit(ctx, c.by, c.e)), c.want, "%s", name)
		}
		d.audit.Full = errors.New("disk full")
		expect.Err(t, errOf(d.Edit(ctx, caller(auth.Editor), actions.EditRequest{ID: r.ID.String(), Document: &doc})),
			actions.ErrNoAudit, "without audit")
		if d.kept(t, r.ID.String()).State != store.Parked {
			t.Error("it was edited")
		}
	})
}

var must, errOf = expect.NoError, expect.ErrOf

func TestAQueueThatDoesNotExistIsNotPausedAndItsBreakerNotSet(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		breaker := func(to string) error { return d.Breaker(ctx, operator, "ordres", to, "") }
		if err := d.PauseQueue(ctx, operator, "ordres", ""); !errors.Is(err, inspect.ErrNotFound) || len(d.paused) > 0 {
			t.Errorf("paused: %v, %v", err, d.paused)
		}
		for _, to := range []string{"open", "closed", "auto"} {
			expect.Err(t, breaker(to), inspect.ErrNotFound, "breaker %s", to)
		}
		all := policy.Set{{Name: "all", Queues: []string{"orders", "*"}}}
		d.Inspector.Config.Policies = func() policy.Set { return all }
		limited := operator
		limited.Queues = []string{"ordres", "mail"}
		for _, do := range []func(auth.Caller) error{
			func(by auth.Caller) error { return d.PauseQueue(ctx, by, "ordres", "") },
			func(by auth.Caller) error { return d.Breaker(ctx, by, "ordres", "open", "") },
			func(by auth.Caller) error { return d.ResumeQueue(ctx, by, "ordres", "") },
			func(by auth.Caller) error { return d.CheckCopyQueue(ctx, by, "ordres") },
		} {
			expect.Equal(t, hint.Of(do(operator)), `did you mean "orders"?`, "%v", do(operator))
			expect.Equal(t, hint.Of(do(limited)), "", "%v, to one who does not see it", do(limited))
		}
		left := inspecttest.Parked("ordres", 1) // it did exist
		d.add(t, left...)
		expect.Equal(t, hint.Of(d.ResumeQueue(ctx, operator, "ordres", "")), "", "of a queue that is known")
		must(t, errors.Join(d.PauseQueue(ctx, operator, "ordres", ""), breaker("open")))
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Discard, IDs: []string{left[0].ID.String()}})))
		expect.Err(t, errors.Join(breaker("auto"), d.ResumeQueue(ctx, operator, "ordres", "")), nil,
			"what was set cannot be undone")
	})
}

func TestAQueueWithoutAPolicyIsNotPaused(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.Inspector.Config.Policies = func() policy.Set { return policy.Set{{Name: "orders", Queues: []string{"orders"}}} }
		err := d.PauseQueue(ctx, operator, "mail", "")
		if !errors.Is(err, inspect.ErrNotFound) || !strings.Contains(err.Error(), `no policy names the queue "mail"`) {
			t.Errorf("mail: %v", err)
		}
		d.add(t, inspecttest.Parked("mail", 1)...)
		must(t, errors.Join(d.PauseQueue(ctx, operator, "mail", ""), d.PauseQueue(ctx, operator, "orders", "")))
	})
}

func TestASecondPauseKeepsTheFirstReason(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		other := operator
		other.Name = "bob"
		for _, err := range []error{
			d.PauseQueue(ctx, operator, "orders", "database is down"), d.PauseQueue(ctx, other, "orders", ""), d.PauseQueue(ctx, other, "orders", "ticket 7"),
			d.PauseQueue(ctx, other, "orders", "ticket 7"), d.PauseQueue(ctx, operator, "orders", "database is down"),
		} {
			must(t, err)
		}
		all, _, err := d.Queues(ctx, operator, "", 0)
		must(t, err)
		for _, q := range all {
			if q.Name == "orders" {
				if h := q.Pause; h == nil || h.By != operator.Name || h.Reason != "database is down; bob: ticket 7" {
					t.Errorf("the pause: %+v", h)
				}
				return
			}
		}
		t.Errorf("orders is not among the queues: %+v", all)
	})
}

// What a person sets a breaker to is in the store, so that a restart knows it, in the
// audit log, and set in the throttle; auto is forgotten.
func TestABreakerThatAPersonSets(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.throttle = &inspect.ThrottleView{State: "open", Why: "38 of 40 failed again"}
		d.add(t, inspecttest.Parked("orders", 1)...)
		set := func(to string) error { return d.Breaker(ctx, operator, "orders", to, "known") }
		expect.Err(t, set("ajar"), inspect.ErrInvalid, "ajar")
		expect.Err(t, d.Breaker(ctx, caller(auth.Viewer), "orders", "open", ""), auth.ErrForbidden, "a viewer")
		expect.Err(t, d.Breaker(ctx, operator, "redrive.parked", "open", ""), inspect.ErrInvalid, "a queue of our own")
		must(t, set("closed"))
		all, err := inspect.ForcedBreakers(ctx, d.store)
		if err != nil || all["orders"].To != "closed" || all["orders"].Reason != "known" {
			t.Errorf("the store has %+v, %v", all, err)
		}
		queues, _, err := d.Queues(ctx, operator, "", 0)
		if err != nil || queues[0].Throttle.Forced == nil || queues[0].Throttle.Text() != "breaker set to closed by "+operator.Name {
			t.Errorf("shown as %+v, %v", queues, err)
		}
		must(t, set("auto"))
		if all, err := inspect.ForcedBreakers(ctx, d.store); err != nil || len(all) != 0 {
			t.Errorf("after auto the store has %+v, %v", all, err)
		}
		if !slices.Equal(d.forced, []string{"orders closed " + operator.Name + " known", "orders auto " + operator.Name + " known"}) {
			t.Errorf("the throttle was set to %q", d.forced)
		}
	})
}

// A resolved group reopens when its error comes again, an ignored one when it comes ten times as often.
func TestGroupStates(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		fail := func(n int) {
			all := make([]*store.Record, n)
			for i := range all {
				all[i] = record("orders", store.Parked, "body")
				all[i].Error, all[i].FailedAt = "boom", time.Now()
			}
			d.add(t, all...)
		}
		fail(1)
		page, err := d.Groups(ctx, operator, "", "", "", 0)
		must(t, err)
		id := page.Groups[0].ID
		listed := func(filter string) (n int) {
			page, err := d.Groups(ctx, operator, "", filter, "", 0)
			must(t, err)
			if len(page.Groups) != page.Total {
				t.Errorf("%q: %d of %d", filter, len(page.Groups), page.Total)
			}
			return page.Total
		}
		is := func(state, was string) {
			t.Helper()
			g, err := d.Group(ctx, operator, id)
			if err != nil || g.State != state || g.StateWas != was {
				t.Errorf("it is %q and was %q (%v), want %q, %q", g.State, g.StateWas, err, state, was)
			}
			shown := 1
			if state == inspect.Ignored || state == inspect.Resolved {
				shown = 0
			}
			for _, of := range append(inspect.GroupStates, inspect.AllStates) {
				want := 0
				if of == state || of == inspect.AllStates {
					want = 1
				}
				expect.Equal(t, listed(of), want, "%s, listed by %s", state, of)
			}
			expect.Equal(t, listed(""), shown, "%s, listed", state)
			o, err := d.Overview(ctx, operator)
			must(t, err)
			expect.Equal(t, len(o.Groups), shown, "%s, on the overview", state)
		}
		set := func(state string) {
			t.Helper()
			must(t, d.SetGroupState(ctx, operator, id, state, "ticket 7"))
		}
		is(inspect.Open, "")
		expect.Err(t, d.SetGroupState(ctx, caller(auth.Viewer), id, inspect.Ignored, ""), auth.ErrForbidden, "a viewer")
		expect.Err(t, d.SetGroupState(ctx, caller(auth.Operator, "mail"), id, inspect.Ignored, ""), inspect.ErrNotFound, "another's")
		expect.Err(t, d.SetGroupState(ctx, operator, id, "closed", ""), inspect.ErrInvalid, "closed")
		_, err = d.Groups(ctx, operator, "", "closed", "", 0)
		expect.Err(t, err, inspect.ErrInvalid, "a list of closed ones")
		set(inspect.Acknowledged)
		fail(1)
		is(inspect.Acknowledged, "")
		if g, err := d.Group(ctx, operator, id); err != nil || g.StateBy != operator.Name || g.StateNote != "ticket 7" || g.StateAt == nil {
			t.Errorf("%+v, %v", g.GroupState, err)
		}
		set(inspect.Resolved)
		must(t, d.Forget(ctx, time.Now()))
		is(inspect.Resolved, "")
		fail(1) // in the same minute
		is(inspect.Open, inspect.Resolved)
		set(inspect.Ignored)
		fail(26)
		is(inspect.Ignored, "") // 29 failures, of which 3 were before
		fail(1)
		is(inspect.Open, inspect.Ignored)
		must(t, d.Forget(ctx, time.Now())) // which writes it down: the day's failures are soon forgotten
		states, err := inspect.SetGroupStates(ctx, d.store)
		must(t, err)
		expect.Equal(t, states[id].State, inspect.Open, "in the store")
		set(inspect.Open)
		is(inspect.Open, "")
		var did []string
		for _, e := range d.audit.Entries() {
			did = append(did, e.Did+" "+e.Why+" "+e.Outcome)
		}
		want := "; group acknowledged ticket 7 done 0; group resolved ticket 7 done 0; group ignored ticket 7 done 0; " +
			"group open ticket 7 done 0"
		if all := strings.Join(did, "; "); !strings.HasPrefix(all, "group ignored  refused: ") || !strings.HasSuffix(all, want) {
			t.Errorf("the audit log: %s", all)
		}
	})
}

// What is decided about an error holds in all queues that the caller sees.
func TestAnErrorIsDecidedForAllItsQueues(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		for _, queue := range []string{"mail", "orders", "stock"} {
			r := record(queue, store.Parked, "body")
			r.Error = "boom"
			d.add(t, r)
		}
		all, err := d.Errors(ctx, operator, "", "", "", 0)
		must(t, err)
		expect.Equal(t, len(all.Groups), 1, "errors")
		id := all.Groups[0].Key()
		is := func(want string) {
			t.Helper()
			g, err := d.Group(ctx, operator, id)
			must(t, err)
			expect.Equal(t, g.StateText()+", "+g.Note, want, "it is")
		}
		theirs := caller(auth.Operator, "mail", "stock")
		must(t, d.SetGroupState(ctx, theirs, id, inspect.Resolved, ""))
		must(t, d.NoteGroup(ctx, theirs, id, "ticket 7"))
		is("open in 1, resolved in 2, ticket 7")
		must(t, d.SetGroupState(ctx, operator, id, inspect.Acknowledged, ""))
		must(t, d.NoteGroup(ctx, operator, id, ""))
		is("acknowledged, ")
		var did []string
		for _, e := range d.audit.Entries() {
			did = append(did, e.Did)
		}
		expect.Equal(t, strings.Join(did, ", "), strings.Repeat("group resolved, ", 2)+strings.Repeat("note, ", 2)+
			strings.Repeat("group acknowledged, ", 3)+"note, note, note", "the audit log")
	})
}

// The states of groups without messages are dropped after a month, and earlier where there are very many.
func TestStatesOfGroupsThatAreGone(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		now := time.Now()
		put := func(id string, ago time.Duration) {
			value, err := json.Marshal(inspect.NewGroupState(&store.GroupCount{}, inspect.Ignored, "ann", "", now.Add(-ago)))
			must(t, err)
			must(t, d.store.PutEntries(ctx, []store.Entry{{Name: store.GroupStatePrefix + id, Value: value}}))
		}
		left := func() (n int, has map[string]inspect.GroupState) {
			must(t, d.Forget(ctx, now))
			has, err := inspect.SetGroupStates(ctx, d.store)
			must(t, err)
			return len(has), has
		}
		put("old", 31*24*time.Hour)
		put("late", 29*24*time.Hour)
		if n, has := left(); n != 1 || has["late"].State != inspect.Ignored {
			t.Errorf("%v are left", has)
		}
		for i := range 1000 {
			put(fmt.Sprint(i), time.Duration(i)*time.Second)
		}
		if n, has := left(); n != 1000 || has["late"].State != "" {
			t.Errorf("%d are left, with the oldest: %+v", n, has["late"])
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx      = context.Background()
	caller   = inspecttest.Caller
	operator = caller(auth.Operator)
	record   = inspecttest.Record
	long     = inspecttest.Long
)

// desk is Actions with all that they need, over an engine.
type desk struct {
	*inspect.Inspector
	*actions.Actions
	store    store.Store
	audit    *inspecttest.AuditLog
	events   []string
	paused   map[string]bool
	throttle *inspect.ThrottleView
	forced   []string
	at       actions.Place
	away     error // why at is not known
}

func newDesk(s store.Store) *desk {
	d := &desk{store: s, audit: &inspecttest.AuditLog{}, paused: map[string]bool{}}
	d.Inspector = inspect.New(inspect.Config{Store: s, Broker: inspecttest.NewQueues(), Policies: inspecttest.Everything, Audit: d.audit,
		Throttle: func(string) *inspect.ThrottleView { return d.throttle }})
	d.Actions = actions.New(actions.Config{Inspect: d.Inspector, Store: s, Audit: d.audit, Restorable: time.Hour,
		At:        func(context.Context) (actions.Place, error) { return d.at, d.away },
		SetPaused: func(q string, paused bool) { d.paused[q] = paused },
		Force:     func(queue, to, by, why string) { d.forced = append(d.forced, queue+" "+to+" "+by+" "+why) },
		Events: func(e retry.Event) {
			d.events = append(d.events, fmt.Sprintf("%s %s %d by %s", e.Kind, e.Queue, e.N, e.By))
		}})
	return d
}

// each runs a test over both engines.
func each(t *testing.T, test func(t *testing.T, d *desk)) {
	inspecttest.Stores(t, func(t *testing.T, s store.Store) { test(t, newDesk(s)) })
}

func (d *desk) add(t *testing.T, records ...*store.Record) {
	t.Helper()
	inspecttest.Add(t, d.store, records...)
}

func (d *desk) kept(t *testing.T, id string) *store.Record {
	t.Helper()
	return inspecttest.Kept(t, d.store, id)
}

// The second of two who act on a message learns who was first, unless they do not see its queue.
func TestWhoWasFirst(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := record("orders", store.Parked, "")
		d.add(t, r)
		act := actions.Act{Verb: actions.Discard, IDs: []string{r.ID.String()}}
		_, err := d.Act(ctx, operator, act)
		must(t, err)
		found, err := d.store.Find(ctx, r.ID)
		must(t, err)
		forget := func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }
		_, err = d.store.Change(ctx, []store.Key{found[0].Key}, forget, nil)
		must(t, err)
		elsewhere := caller(auth.Operator)
		elsewhere.Queues = []string{"mail"}
		for by, want := range map[*auth.Caller]string{
			&operator:  `^there is no such message any more: discard by ` + operator.Name + ` at \d\d:\d\d:\d\d UTC$`,
			&elsewhere: `^there is no such message any more$`,
		} {
			second, err := d.Act(ctx, *by, act)
			must(t, err)
			if why := second.Outcomes[0].Why; !regexp.MustCompile(want).MatchString(why) {
				t.Errorf("says %q, not %s", why, want)
			}
		}
	})
}

// A message that was retried late says by whom its queue was paused meanwhile.
func TestALateRetrySaysWhoHadPausedItsQueue(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := record("orders", store.Waiting, "")
		r.Due = time.Now().Add(-time.Hour)
		d.add(t, r)
		must(t, d.PauseQueue(ctx, operator, "orders", "no database"))
		must(t, d.ResumeQueue(ctx, operator, "orders", ""))
		claims, err := d.store.Claim(ctx, store.Lane{Queue: "orders"}, time.Now(), 1, 1)
		must(t, err)
		must(t, errOf(d.store.Finish(ctx, []store.Outcome{{Claim: claims[0], At: time.Now()}})))
		shown, err := d.Inspector.Message(ctx, caller(auth.Viewer, "orders"), r.ID.String())
		must(t, err)
		if by := shown.Timeline[0].LateBy; len(by) != 1 || by[0].Why != "paused by "+operator.Name+": no database" || by[0].Until == nil {
			t.Errorf("late by %+v", by)
		}
	})
}

// What a person edited or replayed fails again with another error: it still says what it was made from, and the note on
// its first error is with it and spares it.
func TestNotesAndOriginOutlastTheNextFailure(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		const days = 24 * time.Hour
		d.Inspector.Config.Policies = func() policy.Set {
			return policy.Set{{Name: "p", Queues: []string{"*"}, Retention: 30 * days}}
		}
		parked := func(queue, err, body string) *store.Record {
			r := record(queue, store.Parked, body)
			r.Error = err
			d.add(t, r)
			return r
		}
		first, edited, plain := parked("orders", "noted", "1"), parked("orders", "noted", "2"), parked("orders", "boom", "3")
		must(t, d.NoteGroup(ctx, operator, first.Group().ID.String(), "ticket 4711"))
		body := []byte("4")
		edit, err := d.Edit(ctx, caller(auth.Editor), actions.EditRequest{ID: edited.ID.String(), Body: &body})
		must(t, err)
		copied, err := d.Act(ctx, caller(auth.Editor), actions.Act{Verb: actions.Copy, To: "other", IDs: []string{plain.ID.String()}})
		must(t, err)
		must(t, errOf(d.Act(ctx, operator, actions.Act{Verb: actions.Replay, IDs: []string{first.ID.String(), plain.ID.String()}})))
		for _, c := range []struct {
			id    string
			queue string
			from  uuid.UUID
			note  string
			state store.State
		}{
			{first.ID.String(), "orders", uuid.Nil, "ticket 4711", store.Parked},
			{edit.New, "orders", edited.ID, "ticket 4711", store.Parked},
			{plain.ID.String(), "orders", uuid.Nil, "", store.Discarded},
			{copied.Outcomes[0].New, "other", plain.ID, "", store.Discarded},
			{first.ID.String(), "secret", uuid.Nil, "", store.Discarded}, // another queue's message with this id
		} {
			if c.queue != "secret" {
				all, err := d.store.Find(ctx, uuid.MustParse(c.id))
				must(t, err)
				must(t, errOf(d.store.Change(ctx, []store.Key{all[0].Key}, storetest.Remove, nil)))
			}
			again := record(c.queue, store.Parked, "again")
			again.ID, again.Error, again.Due = uuid.MustParse(c.id), "another", time.Now().Add(-31*days)
			from, err := store.CarriedMadeFrom(ctx, d.store, again)
			must(t, err)
			expect.Equal(t, from, c.from, "%s was made from", c.id)
			d.add(t, again)
			all, err := d.store.Find(ctx, again.ID)
			must(t, err)
			key := string(all[len(all)-1].Key)
			shown, err := d.Inspector.Message(ctx, caller(auth.Viewer, c.queue), key)
			must(t, err)
			expect.Equal(t, strings.Join(shown.GroupNotes, ";"), c.note, "%s in %s has the notes", c.id, c.queue)
			must(t, d.Forget(ctx, time.Now()))
			l, err := d.store.Get(ctx, store.Key(key))
			must(t, err)
			expect.Equal(t, l.Record.State, c.state, "%s in %s, parked too long, is", c.id, c.queue)
		}
	})
}

// A parked message whose policy has a retention is discarded when that is over, and can be restored as any
// other. What a person has noted something about stays, unless the policy says so.
func TestWhatIsParkedTooLongIsDiscarded(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		day := 24 * time.Hour
		keeps := policy.Policy{Name: "keeps", Queues: []string{"kept"}}
		expires := policy.Policy{Name: "expires", Queues: []string{"orders"}, Retention: 30 * day}
		all := policy.Policy{Name: "all", Queues: []string{"all"}, Retention: 30 * day, ExpireNoted: true}
		d.Inspector.Config.Policies = func() policy.Set { return policy.Set{keeps, expires, all} }
		now := time.Now().Truncate(time.Microsecond)
		parked := func(queue, err string, ago time.Duration) string {
			r := record(queue, store.Parked, "body")
			r.Error, r.Due = err, now.Add(-ago)
			d.add(t, r)
			return r.ID.String()
		}
		want := map[string]store.State{}
		for _, queue := range []string{"kept", "orders", "all"} {
			old, noted := store.Discarded, store.Parked
			if queue == "kept" {
				old = store.Parked
			}
			if queue == "all" {
				noted = store.Discarded
			}
			want[parked(queue, "boom", 31*day)] = old
			want[parked(queue, "boom", 29*day)] = store.Parked
			want[parked(queue, "noted", 31*day)] = noted
			groups, err := d.Groups(ctx, operator, "error:noted queue:"+queue, "", "", 0)
			must(t, err)
			must(t, d.NoteGroup(ctx, operator, groups.Groups[0].ID, "ticket 4711"))
		}
		for i := range 600 { // more than one step takes
			want[parked("orders", "boom", 31*day+time.Duration(i)*time.Second)] = store.Discarded
		}
		d.events = nil
		for range 2 { // the second time nothing is left
			must(t, d.Forget(ctx, now))
		}
		for id, state := range want {
			if r := d.kept(t, id); r.State != state || state == store.Discarded && !r.Due.Equal(now.Add(time.Hour)) {
				t.Errorf("%s of %s with %q, parked at %s, is %d, want %d", id, r.Queue, r.Error, r.Due, r.State, state)
			}
		}
		if got := strings.Join(d.events, "; "); got != "discarded all 2 by retention; discarded orders 601 by retention" &&
			got != "discarded orders 601 by retention; discarded all 2 by retention" {
			t.Errorf("events: %s", got)
		}
		l, err := d.Ledger(ctx, operator, true, "", 0)
		must(t, err)
		if l.Total.Expired != 603 || l.Total.Discarded != 603 || l.Total.Off != 0 {
			t.Errorf("the ledger: %+v", l.Total)
		}
		// One that is replayed meanwhile is not discarded.
		late := parked("orders", "boom", 31*day)
		other := newDesk(d.store)
		d.Actions.Store = racing{d.store, func() {
			_, err := other.Act(ctx, operator, actions.Act{Verb: actions.Replay, IDs: []string{late}})
			must(t, err)
		}}
		must(t, d.Forget(ctx, now))
		d.Actions.Store = d.store
		expect.Equal(t, d.kept(t, late).State, store.Waiting, "replayed meanwhile, its state")
		// Restored, it is kept for as long again.
		for id, state := range want {
			if r := d.kept(t, id); state == store.Discarded && r.Queue == "all" && r.Error == "boom" {
				_, err := d.Act(ctx, operator, actions.Act{Verb: actions.Restore, IDs: []string{id}})
				must(t, err)
				must(t, d.Forget(ctx, time.Now()))
				expect.Equal(t, d.kept(t, id).State, store.Parked, "restored, its state")
			}
		}
	})
}

// racing does something before the first Change.
type racing struct {
	store.Store
	before func()
}

func (s racing) Change(
	ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, also func(int) []store.Entry,
) (int, error) {
	s.before()
	return s.Store.Change(ctx, keys, edit, also)
}

// Whoever does not see a value can neither change nor move it, and sees it in no difference and no error.
func TestAnEditOfWhatIsMasked(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		rules := mask.New([]mask.Entry{{Paths: []string{"body..iban", "header.token"}}}, mask.DefaultBodies())
		d.Inspector.Config.Mask = func() *mask.Rules { return rules }
		r := editable(`{"iban": "s3cret", "n": 1, "l": [{"iban": "s3cret1"}, {"iban": "s3cret2"}]}`)
		r.Message.Headers["token"] = "s3cret"
		d.add(t, r)
		by, id := inspecttest.Caller(auth.Editor), r.ID.String()
		text := func(s string) *string { return &s }
		raw := []byte("{}")
		for _, e := range []actions.EditRequest{
			{Body: &raw},
			{Document: text(`{"iban": "other", "n": 1, "l": [{"iban": "[masked 2]"}, {"iban": "[masked 3]"}]}`)},
			{Document: text(`{"n": "[masked 1]", "l": [{"iban": "[masked 2]"}, {"iban": "[masked 3]"}]}`)},
			{Document: text(`{"iban": "[masked 1]", "n": 1`)},
			{SetHeaders: map[string]string{"token": "other"}},
			{RemoveHeaders: []string{"token"}},
		} {
			e.ID = id
			_, err := d.Edit(ctx, by, e)
			if err == nil || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%+v: %v", e, err)
			}
		}
		turned := `{"iban": "[masked 1]", "n": 2, "l": [{"iban": "[masked 3]"}, {"iban": "[masked 2]"}]}`
		done, err := d.Edit(ctx, by, actions.EditRequest{ID: id, Document: text(turned),
			SetHeaders: map[string]string{"tenant": "other"}})
		must(t, err)
		if strings.Contains(fmt.Sprint(done), "s3cret") || done.Bytes != "" || len(done.Fields) != 2 {
			t.Errorf("%+v", done)
		}
		made := d.kept(t, done.New).Message
		const kept = `{"iban": "s3cret", "n": 2, "l": [{"iban": "s3cret2"}, {"iban": "s3cret1"}]}`
		if string(made.Body) != kept || made.Headers["token"] != "s3cret" {
			t.Errorf("%s, %v", made.Body, made.Headers)
		}
	})
}

// Those who can see a message whole does so once the audit log has the reason, and in no other way.
func TestAMaskedMessageIsShownForAReason(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		rules := mask.New([]mask.Entry{{Patterns: []string{"/s3cret/"}}}, mask.DefaultBodies(), auth.Operator)
		d.Inspector.Config.Mask = func() *mask.Rules { return rules }
		r, same := editable(`{"iban": "s3cret"}`), editable(`{}`)
		same.ID, r.Error, same.Error, r.Message.Headers["token"] = r.ID, "s3cret", "s3cret too", "s3cret"
		d.add(t, r)
		operator, id := inspecttest.Caller(auth.Operator), r.ID.String()
		for _, c := range []struct {
			what, id, why string
			by            auth.Caller
			full, want    error
			entries       string // that it adds
		}{
			{"a viewer", id, "why", inspecttest.Caller(auth.Viewer), nil, auth.ErrForbidden, "[ann show " + id + " 0: refused: "},
			{"an editor", id, "why", inspecttest.Caller(auth.Editor), nil, auth.ErrForbidden, "[ann show " + id + " 0: refused: "},
			{"nobody", id, "why", inspecttest.Caller(auth.NoRole), nil, auth.ErrSignIn, "[]"},
			{"without a reason", id, " \n", operator, nil, inspect.ErrInvalid, "[]"},
			{"a long reason", id, strings.Repeat("x", 501), operator, nil, inspect.ErrInvalid, "[]"},
			{"of another queue", id, "why", inspecttest.Caller(auth.Operator, "mail"), nil, inspect.ErrNotFound, "[]"},
			{"no such message", "nothing", "why", operator, nil, inspect.ErrNotFound, "[]"},
			{"without a log", id, "why", operator, store.ErrFull, actions.ErrNoAudit, "[]"},
			{"who may", id, " ticket 7 ", operator, nil, nil, "[ann show orders: " + id + " 1 ticket 7: done 1]"},
			{"who sees all", id, "why", inspecttest.Caller(auth.Admin), nil, nil, "[ann show orders: " + id + " 1 why: done 1]"},
		} {
			before := len(d.audit.All())
			d.audit.Full = c.full
			m, err := d.Show(ctx, c.by, c.id, c.why)
			d.audit.Full = nil
			expect.Err(t, err, c.want, "%s", c.what)
			if added := fmt.Sprint(d.audit.All()[before:]); !strings.HasPrefix(added, c.entries) || strings.Contains(added, "s3cret") {
				t.Errorf("%s: the audit log has %s, want %s", c.what, added, c.entries)
			}
			shown, _ := json.Marshal(m)
			if want := 4; err == nil && strings.Count(string(shown), "s3cret") < want || err == nil && m.Body.Masked != "" ||
				err != nil && strings.Contains(string(shown)+err.Error(), "s3cret") {
				t.Errorf("%s: %s, %v", c.what, shown, err)
			}
		}
		d.add(t, same)
		m, err := d.Show(ctx, operator, id, "why")
		if err != nil || len(m.SameID) != 1 || !strings.Contains(m.SameID[0].Error, mask.Hidden) {
			t.Errorf("another with its id: %+v, %v", m.SameID, err)
		}
		if m, err := d.Inspector.Message(ctx, operator, id); err != nil || !m.Showable || m.Body.Masked == "" {
			t.Errorf("later it is %+v, %v", m, err)
		}
	})
}

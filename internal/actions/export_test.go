package actions_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

func TestWhatWasExportedIsImportedAsItWas(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := storetest.Everything()
		r.Message.Body = []byte("\x00\xff\n\"")
		hidden := record("secret", store.Parked, "")
		d.add(t, r, hidden)
		var out bytes.Buffer
		n, err := d.Export(ctx, caller(auth.Viewer, "orders"), "queue:*", &out)
		if err != nil || n != 1 || bytes.Count(out.Bytes(), []byte("\n")) != 1 {
			t.Fatalf("%d exported, %v:\n%s", n, err, &out)
		}
		dry, err := d.Import(ctx, caller(auth.Editor), bytes.NewReader(out.Bytes()), actions.ImportOptions{DryRun: true, EvenIfKept: true})
		if err != nil || dry.Count != 1 || dry.Queues["orders"] != 1 {
			t.Fatalf("%+v, %v", dry, err)
		}
		im, err := d.Import(ctx, caller(auth.Editor), &out, actions.ImportOptions{EvenIfKept: true})
		if err != nil || im.Count != 1 {
			t.Fatalf("%+v, %v", im, err)
		}
		all := storetest.Listed(t, d.store, store.Range{State: store.Parked, Queues: []string{"orders"}, Body: true})
		if len(all) != 1 {
			t.Fatalf("%+v", all)
		}
		got := all[0].Record
		if diff := cmp.Diff(r.Message, got.Message); diff != "" {
			t.Errorf("the message (-was +is):\n%s", diff)
		}
		if got.ID == r.ID || headers.BindID(got.ID, &got.Message) != got.ID || got.MadeFrom != r.ID ||
			got.Proven || got.Forward != nil || got.Fingerprint != [16]byte{} || got.Failures != r.Failures ||
			got.Error != r.Error || !got.FirstFailed.Equal(r.FirstFailed) && r.FirstFailed.Before(time.Now()) || got.ParkedFor != "imported by ann" {
			t.Errorf("imported as %+v", got)
		}
	})
}

func TestAFileImportedTwiceDoublesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.add(t, inspecttest.Parked("orders", 3)...)
		var out bytes.Buffer
		if _, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", &out); err != nil {
			t.Fatal(err)
		}
		first := string(out.Bytes()[:bytes.IndexByte(out.Bytes(), '\n')+1])
		for i, c := range []struct {
			text           string
			count, already int64
		}{
			{first, 1, 0}, // an import that was cut short
			{out.String() + first, 2, 2},
			{out.String(), 0, 3},
			{strings.Replace(first, `"attempt":`, `"attempt":1`, 1), 1, 0}, // another message
		} {
			dry, err := d.Import(ctx, caller(auth.Editor), strings.NewReader(c.text), actions.ImportOptions{DryRun: true, EvenIfKept: true})
			if err != nil || dry.Count != c.count || dry.Already != c.already {
				t.Errorf("%d, dry: %+v, %v", i, dry, err)
			}
			im, err := d.Import(ctx, caller(auth.Editor), strings.NewReader(c.text), actions.ImportOptions{EvenIfKept: true})
			if err != nil || im.Count != c.count || im.Already != c.already {
				t.Errorf("%d: %+v, %v", i, im, err)
			}
		}
		if _, err := d.Act(ctx, operator, actions.Act{Verb: actions.Replay, IDs: idsOf(t, d, "imported by")}); err != nil {
			t.Fatal(err)
		}
		inspecttest.RetryDue(t, d.store, "orders", time.Now()) // and gone to their consumer
		im, err := d.Import(ctx, caller(auth.Editor), strings.NewReader(out.String()), actions.ImportOptions{EvenIfKept: true})
		if err != nil || im.Count != 0 || im.Already != 3 {
			t.Errorf("after a replay: %+v, %v", im, err)
		}
	})
}

// What still waits or is parked is not imported a second time, unless one says so; what was retried or discarded is.
func TestWhatIsKeptIsNotImported(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		waits := record("orders", store.Waiting, "")
		parked, discarded := record("orders", store.Parked, "x"), record("orders", store.Discarded, "x")
		d.add(t, waits, parked, discarded)
		var out bytes.Buffer
		if _, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", &out); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			o    actions.ImportOptions
			want actions.Imported
		}{
			{actions.ImportOptions{DryRun: true}, actions.Imported{Count: 1, Kept: 2}},
			{actions.ImportOptions{}, actions.Imported{Count: 1, Kept: 2}},
			{actions.ImportOptions{EvenIfKept: true}, actions.Imported{Count: 2, Already: 1}},
			{actions.ImportOptions{}, actions.Imported{Already: 3}},
		} {
			im, err := d.Import(ctx, caller(auth.Editor), bytes.NewReader(out.Bytes()), c.o)
			im.Queues = nil
			if err != nil || im.Count != c.want.Count || im.Already != c.want.Already || im.Kept != c.want.Kept {
				t.Errorf("%+v: %+v, %v, want %+v", c.o, im, err, c.want)
			}
		}
	})
}

// idsOf are the ids of what was parked for such a reason.
func idsOf(t *testing.T, d *desk, why string) (ids []string) {
	t.Helper()
	for _, l := range storetest.Listed(t, d.store, store.Range{State: store.Parked}) {
		if strings.HasPrefix(l.Record.ParkedFor, why) {
			ids = append(ids, l.Record.ID.String())
		}
	}
	return ids
}

// An administrator moves a store: all is as it was, once.
func TestWhatIsImportedAsIs(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		parked, waits, gone := storetest.Everything(), record("orders", store.Waiting, "no stock"), record("orders", store.Discarded, "")
		parked.Message.Body = []byte("\x00\xff\n")
		waits.Due, waits.MadeFrom = time.Now().Add(time.Hour).Truncate(time.Microsecond), gone.ID
		forged := *waits
		forged.FailedAt = waits.FailedAt.Add(time.Second).Truncate(time.Microsecond)
		old := newDesk(memstore.New())
		old.add(t, parked, waits, &forged, gone)
		var out bytes.Buffer
		if n, err := old.Export(ctx, caller(auth.Viewer), "state:waiting OR state:parked OR state:discarded", &out); err != nil || n != 4 {
			t.Fatalf("%d exported, %v", n, err)
		}
		asIs := actions.ImportOptions{AsIs: true}
		if _, err := d.Import(ctx, caller(auth.Editor), bytes.NewReader(out.Bytes()), asIs); !errors.Is(err, auth.ErrForbidden) {
			t.Errorf("an editor: %v", err)
		}
		for _, want := range []actions.Imported{{Count: 4}, {Already: 4}} {
			im, err := d.Import(ctx, caller(auth.Admin), bytes.NewReader(out.Bytes()), asIs)
			if err != nil || im.Count != want.Count || im.Already != want.Already {
				t.Errorf("%+v, %v", im, err)
			}
		}
		from, err := store.CarriedMadeFrom(ctx, d.store, waits)
		must(t, err)
		expect.Equal(t, from, gone.ID, "at its next failure, one that waits was made from")
		for _, is := range []store.State{store.Waiting, store.Parked, store.Discarded} {
			of := func(s store.Store) (all []*store.Record) {
				for _, l := range storetest.Listed(t, s, store.Range{State: is, Body: true}) {
					all = append(all, l.Record)
				}
				return all
			}
			if diff := cmp.Diff(of(old.store), of(d.store), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-was +is):\n%s", diff)
			}
		}
	})
}

func TestAnImportMarksWhatOnlyTheFileSays(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := record("orders", store.Parked, "x")
		r.Message.UserID = "billing"
		r.Message.Headers = amqp.Table{"x-redrive-exchange": "payments", "x-death": []any{}, "tenant": "a"}
		d.add(t, r)
		var out bytes.Buffer
		if _, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", &out); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Import(ctx, caller(auth.Editor), &out, actions.ImportOptions{EvenIfKept: true}); err != nil {
			t.Fatal(err)
		}
		m, err := d.Message(ctx, caller(auth.Viewer), idsOf(t, d, "imported by")[0])
		const want = `the file says so, not RabbitMQ: user_id "billing", x-death, x-redrive-exchange`
		if err != nil || !slices.Contains(m.Notes, want) {
			t.Errorf("the notes are %q, %v", m.Notes, err)
		}
	})
}

func TestABadLineIsNamed(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.add(t, record("orders", store.Parked, "x"))
		var out bytes.Buffer
		if _, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", &out); err != nil {
			t.Fatal(err)
		}
		good := out.String()
		for name, c := range map[string]struct {
			by   auth.Caller
			text string
			want error
		}{
			"a typing error": {caller(auth.Editor), good + "\n" + strings.Replace(good, `"attempt"`, `"atempt"`, 1), inspect.ErrInvalid},
			"replays": {caller(auth.Editor), good + "\n" + strings.Replace(good, `"attempt"`, `"replays":1000001,"attempt"`, 1),
				inspect.ErrInvalid},
			"cut short":   {caller(auth.Editor), good + "\n" + good[:100], inspect.ErrInvalid},
			"no queue":    {caller(auth.Editor), good + "\n" + strings.Replace(good, `"orders"`, `"redrive.intake"`, 1), inspect.ErrInvalid},
			"not allowed": {caller(auth.Editor, "orders"), good + "\n" + strings.Replace(good, `"orders"`, `"mail"`, 1), auth.ErrForbidden},
			"no editor":   {caller(auth.Operator), good, auth.ErrForbidden},
		} {
			im, err := d.Import(ctx, c.by, strings.NewReader(c.text), actions.ImportOptions{EvenIfKept: true})
			if !errors.Is(err, c.want) || im.Count != 0 || name != "no editor" && !strings.Contains(err.Error(), "line 3") {
				t.Errorf("%s: %+v, %v", name, im, err)
			}
		}
		if kept := storetest.Listed(t, d.store, store.Range{}); len(kept) != 1 {
			t.Errorf("%d are kept: a file is checked before anything of it is", len(kept))
		}
	})
}

// A report may say that the message has failed as often as its header can tell.
func TestAMessageThatFailedMostOftenIsImported(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		r := record("orders", store.Parked, "")
		r.Failures = wire.MaxAttempt + 1
		d.add(t, r)
		var out bytes.Buffer
		if _, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", &out); err != nil {
			t.Fatal(err)
		}
		if im, err := d.Import(ctx, caller(auth.Editor), bytes.NewReader(out.Bytes()), actions.ImportOptions{EvenIfKept: true}); err != nil || im.Count != 1 {
			t.Errorf("%+v, %v", im, err)
		}
		more := strings.Replace(out.String(), `"attempt":1000001`, `"attempt":1000002`, 1)
		if _, err := d.Import(ctx, caller(auth.Editor), strings.NewReader(more), actions.ImportOptions{EvenIfKept: true}); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("one that failed more often: %v", err)
		}
	})
}

// scanning counts the scans that are open.
type scanning struct {
	store.Store
	open int
}

func (s *scanning) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	s.open++
	defer func() { s.open-- }()
	return s.Store.Scan(ctx, r, visit)
}

// slow is the reader of an export, for whom nothing is kept open in the store.
type slow struct {
	bytes.Buffer
	read func()
}

func (s *slow) Write(b []byte) (int, error) {
	s.read()
	return s.Buffer.Write(b)
}

func TestAnExportKeepsTheStoreFromNothing(t *testing.T) {
	inspecttest.Stores(t, func(t *testing.T, kept store.Store) {
		s := &scanning{Store: kept}
		d := newDesk(s)
		d.Large = &background.Places{All: 1, Own: 1}
		all := inspecttest.Parked("orders", 1100)
		for i := range 6 {
			all[200*i].Message.Body = bytes.Repeat([]byte("x"), 300<<10)
		}
		d.add(t, all...)
		out, replayed := slow{}, false
		out.read = func() {
			if s.open != 0 {
				t.Error("the store is read while the client is")
			}
			if !replayed {
				_, err := d.Act(ctx, operator, actions.Act{Verb: actions.Replay, IDs: []string{all[1].ID.String()}})
				must(t, err)
				replayed = true
			}
		}
		n, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", &out)
		if err != nil || n != int64(len(all)) {
			t.Errorf("%d are exported, %v", n, err)
		}
		for _, r := range all {
			if bytes.Count(out.Bytes(), []byte(`"id":"`+r.ID.String())) != 1 {
				t.Errorf("%s is not there once", r.ID)
			}
		}
		leave, err := d.Large.Enter(ctx, "another", 1)
		must(t, err)
		if _, err := d.Export(ctx, caller(auth.Viewer), "queue:orders", io.Discard); !errors.Is(err, background.ErrTooMany) {
			t.Errorf("one more large message: %v", err)
		}
		leave()
	})
}

// endless is a line without an end.
type endless int

func (e *endless) Read(b []byte) (int, error) {
	*e += endless(len(b))
	return len(b), nil
}

// Long lines are held by one import at a time, and others are refused before they hold one.
func TestOneImportReadsALongLine(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.Large = &background.Places{All: 1, Own: 1}
		leave, err := d.Large.Enter(ctx, "another", 1)
		must(t, err)
		var read endless
		if _, err := d.Import(ctx, caller(auth.Editor), &read, actions.ImportOptions{EvenIfKept: true}); !errors.Is(err, background.ErrTooMany) || read > 2<<20 {
			t.Errorf("after %d bytes: %v", read, err)
		}
		leave()
		large := record("orders", store.Parked, "x")
		large.Message.Body = bytes.Repeat([]byte("x"), 900<<10) // in base64, more than a long line
		another := *large
		another.ID = uuid.Must(uuid.NewV7())
		d.add(t, large, &another)
		var out bytes.Buffer
		_, err = d.Export(ctx, caller(auth.Viewer), "queue:orders", &out)
		must(t, err)
		if im, err := d.Import(ctx, caller(auth.Editor), &out, actions.ImportOptions{EvenIfKept: true}); err != nil || im.Count != 2 {
			t.Errorf("%+v, %v", im, err)
		}
	})
}

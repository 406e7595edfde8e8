package retry_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// What comes from where waits in RabbitMQ end names its queue by the routing key, which any
// publisher chooses: such names pass the same checks as all others.
func TestNamesOfMessagesThatWaitedInRabbitMQShareTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := memstore.New(), retry.NewSender(&slowBroker{lookups: map[string]int{}}, anyQueue, none)
		defer g.Close()
		c := retry.NewParkedIntake(s, nil, none)
		c.UseReportedNames(retry.NewReportedNames(s, g))
		var batch []wire.Delivery
		for i := range 3000 {
			for _, prefix := range []string{"\xffinvented-", "invented-"} {
				batch = append(batch, wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDue, RoutingKey: fmt.Sprint(prefix, i)}})
			}
		}
		must(t, c.Handle(t.Context(), batch))
		counts, err := s.Counts(t.Context())
		must(t, err)
		var waiting, nameless int64
		for _, c := range counts {
			waiting += c.Waiting
			if c.Queue == "" {
				nameless += c.Parked
			}
		}
		if most := int64(1300); len(counts) > int(most) || waiting > most || nameless != 6000-waiting {
			t.Errorf("%d names, %d messages wait, %d are parked under none", len(counts), waiting, nameless)
		}
		page, err := storetest.List(t.Context(), s, storetest.Filter{Queue: "\xffinvented-0"})
		must(t, err)
		if len(page.Records) != 0 {
			t.Errorf("a message was kept for %q", "\xffinvented-0")
		}
	})
}

// What others have parked in RabbitMQ is parked, whatever queue its headers name; only what
// RabbitMQ's own waits could not retry is due.
func TestMessagesParkedInRabbitMQAreCollected(t *testing.T) {
	headers := func() amqp.Table {
		return amqp.Table{wire.HeaderQueue: "q", wire.HeaderAttempt: int64(2), wire.HeaderReason: "made up", wire.HeaderParkReason: "no more attempts"}
	}
	for name, c := range map[string]struct {
		from, cannotRepublish string
		state                 store.State
		why                   string
	}{
		"parked":                                {wire.ExchangeParked, "", store.Parked, "no more attempts"},
		"its wait ended":                        {wire.ExchangeDue, "", store.Waiting, ""},
		"its wait ended, cannot be republished": {wire.ExchangeDue, "of no known type", store.Parked, "of no known type"},
		"by another alternate exchange":         {"others", "", store.Parked, "others"},
	} {
		s := memstore.New()
		d := wire.Delivery{CannotRepublish: c.cannotRepublish, Message: wire.Message{Exchange: c.from, RoutingKey: "q", Headers: headers()}}
		must(t, retry.NewParkedIntake(s, nil, none).Handle(t.Context(), []wire.Delivery{d}))
		r := kept(t, s)[0].Record
		if r.State != c.state || !strings.Contains(r.ParkedFor, c.why) || r.Queue != "q" || r.Failures != 2 || r.Reason != "" || r.Proven {
			t.Errorf("%s: kept as %+v", name, r)
		}
	}
}

// A message's queue is in a header; of one whose wait in RabbitMQ ended it is the routing key, and
// the caller hears that the queue lacks its binding.
func TestWhichQueueAMessageInParkedIsOf(t *testing.T) {
	for from, c := range map[string]struct {
		queue string
		lost  []string
		state store.State
	}{
		wire.ExchangeParked:  {"header", nil, store.Parked},
		wire.ExchangeDue:     {"key", []string{"key"}, store.Waiting},
		wire.ExchangeLane:    {"key", []string{"key"}, store.Waiting},
		wire.ExchangeDelayed: {"key", []string{"key"}, store.Waiting},
		"others":             {"header", []string{"header"}, store.Parked},
	} {
		var lost []string
		s, events := memstore.New(), []retry.Event(nil)
		in := retry.NewParkedIntake(s, func(queue string) { lost = append(lost, queue) }, func(e retry.Event) { events = append(events, e) })
		d := wire.Delivery{Message: wire.Message{Exchange: from, RoutingKey: "key", Headers: amqp.Table{wire.HeaderQueue: "header", wire.HeaderAttempt: int64(2)}}}
		must(t, in.Handle(t.Context(), []wire.Delivery{d}))
		r := kept(t, s)[0].Record
		if r.Queue != c.queue || r.State != c.state || !slices.Equal(lost, c.lost) {
			t.Errorf("%s: it is of %q, state %v; lost are %q", from, r.Queue, r.State, lost)
		}
		want := retry.Event{Kind: retry.Parked, At: r.FailedAt, Queue: c.queue, ID: r.ID, Failures: 2, Why: r.ParkedFor}
		if c.state == store.Waiting {
			want.Kind, want.Way, want.Why = retry.Waiting, retry.InStore, ""
		}
		if len(events) != 1 || events[0] != want {
			t.Errorf("%s: events %+v, want %+v", from, events, want)
		}
	}
}

// Without the name of a queue none is reported as lost, and a header that is too long for a name
// is none.
func TestAMessageInParkedWithoutAQueue(t *testing.T) {
	for name, c := range map[string]struct{ header, queue string }{"none": {"", ""}, "the longest": {strings.Repeat("q", 255), strings.Repeat("q", 255)}, "too long": {strings.Repeat("q", 256), ""}} {
		var lost []string
		s := memstore.New()
		in := retry.NewParkedIntake(s, func(queue string) { lost = append(lost, queue) }, none)
		d := wire.Delivery{Message: wire.Message{Exchange: "others", Headers: amqp.Table{wire.HeaderQueue: c.header}}}
		must(t, in.Handle(t.Context(), []wire.Delivery{d}))
		if r := kept(t, s)[0].Record; r.Queue != c.queue || (len(lost) > 0) != (c.queue != "") {
			t.Errorf("%s: it is of %q, and %q were lost", name, r.Queue, lost)
		}
	}
}

// A user-id that only a header has is shown, and only then.
func TestAUserIDInAHeaderIsNoted(t *testing.T) {
	for header, want := range map[string]bool{"": false, "shop": true} {
		s := memstore.New()
		d := wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeParked, Headers: amqp.Table{wire.HeaderQueue: "q", wire.HeaderAttempt: int64(1), wire.HeaderUserID: header}}}
		must(t, retry.NewParkedIntake(s, nil, none).Handle(t.Context(), []wire.Delivery{d}))
		if notes := strings.Join(kept(t, s)[0].Record.Notes, "; "); strings.Contains(notes, wire.HeaderUserID+` header is "shop"`) != want || !want && notes != "" {
			t.Errorf("%q: the notes are %q", header, notes)
		}
	}
}

// Why a message was parked in RabbitMQ stays the first of the reasons for which it is parked.
func TestAllReasonsForParkingAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// No policy allows a queue, so all names are known not to be targets.
		g := retry.NewSender(&slowBroker{lookups: map[string]int{}}, func() policy.Set { return nil }, none)
		defer g.Close()
		names := retry.NewReportedNames(memstore.New(), g)
		handle := func(s store.Store, queue, cannotRepublish string) {
			t.Helper()
			in := retry.NewParkedIntake(s, nil, none)
			in.UseReportedNames(names)
			must(t, in.Handle(t.Context(), []wire.Delivery{{CannotRepublish: cannotRepublish, Message: wire.Message{Exchange: wire.ExchangeParked,
				Headers: amqp.Table{wire.HeaderQueue: queue, wire.HeaderParkReason: "no more attempts"}}}}))
		}
		for i := range 1000 {
			handle(memstore.New(), fmt.Sprint("invented.", i), "")
		}
		for why, c := range map[string]struct{ queue, cannotRepublish string }{
			`names the queue "one more"`: {"one more", ""}, "not valid UTF-8": {"\xff", ""}, "a header of no known type": {"invented.0", "a header of no known type"},
		} {
			s := memstore.New()
			handle(s, c.queue, c.cannotRepublish)
			if parked := kept(t, s)[0].Record.ParkedFor; !strings.HasPrefix(parked, "no more attempts; ") || !strings.Contains(parked, why) {
				t.Errorf("it is parked for %q, want no more attempts and %q", parked, why)
			}
		}
	})
}

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
		s, g := memstore.New(), retry.NewSender(&slowBroker{lookups: map[string]int{}}, anyQueue, nil, impatient, nil, none)
		defer g.Close()
		c := retry.NewParkedIntake(s, retry.NewReportedNames(s, g), nil, none)
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
// RabbitMQ's own waits could not retry is due. A message's queue is in a header, if that is no longer
// than a name; of one whose wait in RabbitMQ ended it is the routing key. The caller hears which
// queues lack their binding.
func TestMessagesParkedInRabbitMQAreCollected(t *testing.T) {
	longest := strings.Repeat("q", 255)
	for name, c := range map[string]struct {
		from, header, userID, cannotRepublish string
		queue                                 string
		lost                                  bool
		parked                                string // why; "": it waits
	}{
		"parked":                        {wire.ExchangeParked, "header", "", "", "header", false, "no more attempts"},
		"with a user-id in its headers": {wire.ExchangeParked, "header", "shop", "", "header", false, "no more attempts"},
		"its wait ended":                {wire.ExchangeDue, "header", "", "", "key", true, ""},
		"its wait in a lane ended":      {wire.ExchangeLane, "header", "", "", "key", true, ""},
		"its delay ended":               {wire.ExchangeDelayed, "header", "", "", "key", true, ""},
		"cannot be republished":         {wire.ExchangeDue, "header", "", "of no known type", "key", true, "of no known type"},
		"by another alternate exchange": {"others", "header", "", "", "header", true, "others"},
		"without a queue":               {"others", "", "", "", "", false, "others"},
		"the longest name":              {"others", longest, "", "", longest, true, "others"},
		"too long a name":               {"others", longest + "q", "", "", "", false, "others"},
	} {
		var lost []string
		s, events := memstore.New(), []retry.Event(nil)
		in := retry.NewParkedIntake(s, nil, func(queue string) { lost = append(lost, queue) }, func(e retry.Event) { events = append(events, e) })
		headers := amqp.Table{wire.HeaderQueue: c.header, wire.HeaderAttempt: int64(2), wire.HeaderReason: "made up",
			wire.HeaderParkReason: "no more attempts", wire.HeaderUserID: c.userID}
		d := wire.Delivery{CannotRepublish: c.cannotRepublish, Message: wire.Message{Exchange: c.from, RoutingKey: "key", Headers: headers}}
		must(t, in.Handle(t.Context(), []wire.Delivery{d}))
		r := kept(t, s)[0].Record
		want := retry.Event{Kind: retry.Parked, At: r.FailedAt, Queue: c.queue, ID: r.ID, Failures: 2, Why: r.ParkedFor}
		state := store.Parked
		if c.parked == "" {
			want.Kind, want.Way, state = retry.Waiting, retry.InStore, store.Waiting
		}
		if r.State != state || !strings.Contains(r.ParkedFor, c.parked) || (c.parked == "") != (r.ParkedFor == "") ||
			r.Queue != c.queue || r.Failures != 2 || r.Reason != "" || r.Proven {
			t.Errorf("%s: kept as %+v", name, r)
		}
		if len(events) != 1 || events[0] != want || c.lost != slices.Equal(lost, []string{c.queue}) || !c.lost && len(lost) > 0 {
			t.Errorf("%s: events %+v, want %+v; lost are %q", name, events, want, lost)
		}
		notes := strings.Join(r.Notes, "; ")
		shown, unbound := strings.Contains(notes, wire.HeaderUserID+` header is "shop"`), strings.Contains(notes, "not bound")
		if shown != (c.userID != "") || unbound != (c.parked == "") || !shown && !unbound && notes != "" {
			t.Errorf("%s: the notes are %q", name, notes)
		}
	}
}

// Why a message was parked in RabbitMQ stays the first of the reasons for which it is parked.
func TestAllReasonsForParkingAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// No policy allows a queue, so all names are known not to be targets.
		g := retry.NewSender(&slowBroker{lookups: map[string]int{}}, func() policy.Set { return nil }, nil, impatient, nil, none)
		defer g.Close()
		names := retry.NewReportedNames(memstore.New(), g)
		handle := func(s store.Store, queue, cannotRepublish string) {
			t.Helper()
			in := retry.NewParkedIntake(s, names, nil, none)
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

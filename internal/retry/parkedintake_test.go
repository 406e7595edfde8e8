package retry_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/wire"
)

// What comes from where waits in RabbitMQ end names its queue by the routing key, which any
// publisher chooses: such names pass the same checks as all others.
func TestNamesOfMessagesThatWaitedInRabbitMQShareTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := memstore.New(), retry.NewSender(&slowBroker{lookups: map[string]int{}}, anyQueue, func(retry.Event) {})
		defer g.Close()
		c := retry.NewParkedIntake(s, nil, func(retry.Event) {})
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
		must(t, retry.NewParkedIntake(s, nil, func(retry.Event) {}).Handle(t.Context(), []wire.Delivery{d}))
		r := kept(t, s)[0].Record
		if r.State != c.state || !strings.Contains(r.ParkedFor, c.why) || r.Queue != "q" || r.Failures != 2 || r.Reason != "" || r.Proven {
			t.Errorf("%s: kept as %+v", name, r)
		}
	}
}

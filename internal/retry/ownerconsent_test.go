package retry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// consent is what is known of all queues.
type consent struct {
	yes  bool
	asOf time.Time
	err  error
}

func (c *consent) Consented(string) (bool, time.Time, error) { return c.yes, c.asOf, c.err }

// A list of queues proves nothing about what was due after it began, and no list parks nothing.
func TestAReportIsParkedOnlyByAnAnswerNewerThanItself(t *testing.T) {
	now, down := time.Now(), errors.New("the management API is down")
	claims := []store.Claim{
		{Record: &store.Record{Queue: "q", Due: now.Add(-time.Second)}},
		{Record: &store.Record{Queue: "q", Due: now.Add(time.Second)}},
	}
	const parked, asked, unknown, sent = "parked", "asked", "unknown", "sent"
	for i, c := range []struct {
		consent
		want [2]string
	}{
		{consent{}, [2]string{asked, asked}},
		{consent{err: down}, [2]string{unknown, unknown}},
		{consent{asOf: now}, [2]string{parked, asked}},
		{consent{asOf: now, err: down}, [2]string{parked, unknown}},
		{consent{yes: true, asOf: now}, [2]string{sent, sent}},
	} {
		g := retry.NewSender(&faultyBroker{}, func() policy.Set {
			return policy.Set{{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}}
		}, func(retry.Event) {})
		g.UseConsent(&c.consent)
		t.Cleanup(g.Close)
		for n, f := range answered(t, g, claims) {
			got := sent
			switch {
			case f.Park != "":
				got = parked
			case errors.Is(f.Err, retry.ErrConsentUnknown):
				got = unknown
			case f.Err != nil:
				got = asked
			}
			if got != c.want[n] {
				t.Errorf("%d, message %d: %s, want %s (%+v)", i, n, got, c.want[n], f)
			}
		}
	}
}

// answered sends until RabbitMQ, which is asked beside the scheduler, has answered whether the
// retry exchange is there.
func answered(t *testing.T, g *retry.Sender, claims []store.Claim) (results []retry.Result) {
	t.Helper()
	for range 50 {
		results = g.Send(context.Background(), claims[0].Record.Queue, claims)(context.Background())
		if !errors.Is(results[0].Err, retry.ErrLookupPending) {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	return results
}

// That RabbitMQ cannot be asked about a queue is no fault of the way its messages wait.
func TestUnknownConsentIsNoFaultOfAWay(t *testing.T) {
	b, s := &faultyBroker{}, memstore.New()
	f := newHeldFlow(t, s, b)
	f.hold.UseConsent(&consent{err: errors.New("the management API is down")})
	report := wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "reported", Headers: amqp.Table{}}}
	if err := f.Handle(context.Background(), []wire.Delivery{report}); err != nil {
		t.Fatal(err)
	}
	if all := kept(t, s); len(all) != 1 || all[0].Record.State != store.Waiting || len(b.sent) != 0 || len(f.reports) != 0 {
		t.Errorf("kept %d, sent %d, reports %v", len(all), len(b.sent), f.reports)
	}
}

package stories_test

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// planUnadopt plans to put back what was adopted from a queue.
func (s *service) planUnadopt(t *testing.T, queue string) operations.Plan {
	t.Helper()
	p, err := s.Client.Plan(t.Context(), operations.PlanRequest{Verb: actions.Unadopt, To: queue})
	must(t, err)
	return p
}

// unadopt puts back what was adopted from a queue, and returns the operation at its end.
func (s *service) unadopt(t *testing.T, queue string) operations.Operation {
	t.Helper()
	op, err := s.Client.Start(t.Context(), s.planUnadopt(t, queue).ID, operations.Start{})
	must(t, err)
	brokertest.Eventually(t, "the operation ends", func() bool {
		op, err = s.Client.Operation(t.Context(), op.ID)
		must(t, err)
		return op.Ended != nil
	})
	return op
}

// came is all of a message that is the same when it is put back.
func came(d amqp.Delivery) string {
	return fmt.Sprint(string(d.Body), d.ContentType, d.ContentEncoding, d.Priority, d.CorrelationId, d.ReplyTo,
		d.MessageId, d.Timestamp.Unix(), d.Type, d.AppId)
}

// A team that changes its mind has its dead-letter queue again: what is still parked goes back, in order and as
// it came. What was replayed, discarded or edited stays so.
func TestWhatWasAdoptedIsPutBack(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("copies", nil)
		for _, work := range []string{"orders", "mail"} {
			v.Queue(work, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
				"x-dead-letter-routing-key": "dlq"})
			dead(t, v, work, "dlq", 100, amqp.Table{"n": int32(1), "at": time.Unix(1_700_000_000, 0),
				"in": amqp.Table{"a": []any{int64(1), "b"}}})
		}
		envelope, err := json.Marshal(map[string]any{"RoutingKey": "mail", "Exchange": "shop", "Queue": "mail",
			"Exception": "no stock", "Message": "{}", "DateTime": "2026-11-20T10:00:00Z",
			"BasicProperties": map[string]any{"Type": "Shop.Mail"}})
		must(t, err)
		v.Publish("", "dlq", amqp.Publishing{DeliveryMode: 2, Type: "EasyNetQ.SystemMessages.Error, EasyNetQ",
			Body: envelope, ContentType: "application/json", CorrelationId: "c", MessageId: "m", AppId: "shop",
			Timestamp: time.Unix(1_700_000_001, 0), Priority: 3,
			ReplyTo: "answers", Headers: amqp.Table{"h": "x", "CC": []any{"copies"}}, UserId: "guest"})
		// What was in the queue, as a consumer gets it.
		peek := v.ConsumeMany("dlq")
		var was []amqp.Delivery
		for range 201 {
			was = append(was, peek.Next())
		}
		must(t, peek.Channel.Close())
		brokertest.Eventually(t, "they are requeued", func() bool { return v.Depth("dlq") == 201 })

		s := adopting(t, v, v.Management)
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "dlq"}).Done, 201, "are adopted")
		v.Queue("other.dlq", nil)
		v.Publish("", "other.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("another queue's")})
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "other.dlq"}).Done, 1, "is adopted of another queue")
		must(t, s.Client.AllowReplays(t.Context(), "orders", ""))
		left := map[string]bool{}
		for _, m := range s.WaitParked(t, 202) {
			read, err := s.Client.Body(t.Context(), m.ID)
			must(t, err)
			body, err := io.ReadAll(read)
			must(t, err)
			must(t, read.Close())
			switch string(body) {
			case "orders 3", "orders 50":
				_, err := s.Client.Act(t.Context(), actions.Act{Verb: actions.Replay, IDs: []string{m.ID}})
				must(t, err)
				left[string(body)] = true
			case "mail 7":
				_, err := s.Client.Act(t.Context(), actions.Act{Verb: actions.Discard, IDs: []string{m.ID}})
				must(t, err)
				left[string(body)] = true
			case "orders 8":
				edited := []byte("orders 8, edited")
				_, err := s.Client.Edit(t.Context(), actions.EditRequest{ID: m.ID, Body: &edited})
				must(t, err)
				left[string(body)] = true
			}
		}
		p := s.planUnadopt(t, "dlq")
		expect.Equal(t, fmt.Sprint(p.Count, p.Blocked, p.Warnings), "197 [] []", "is planned")
		op := s.unadopt(t, "dlq")
		expect.Equal(t, fmt.Sprint(op.State, op.Done, op.Failed, op.Why), "finished197 0", "came of it")
		c := v.ConsumeMany("dlq")
		for _, d := range was {
			if left[string(d.Body)] {
				continue
			}
			is := c.Next()
			if came(is) != came(d) {
				t.Fatalf("it comes back as\n%s, and came as\n%s", came(is), came(d))
			}
			expect.Equal(t, is.UserId, "", "is the user-id, which RabbitMQ refuses from the service's user")
			delete(d.Headers, "CC")
			delete(d.Headers, "x-delivery-count")
			delete(d.Headers, "x-acquired-count")
			if !reflect.DeepEqual(is.Headers, d.Headers) {
				t.Fatalf("it comes back with\n%v, and came with\n%v", is.Headers, d.Headers)
			}
		}
		must(t, c.Channel.Close())
		expect.Equal(t, v.Depth("copies"), 1, "are copied")
		expect.Equal(t, s.WaitParked(t, 1)[0].AdoptedFrom, "other.dlq", "is still parked")
		work := v.ConsumeMany("orders")
		var got []string
		for range 3 {
			got = append(got, string(work.Next().Body))
		}
		expect.Equal(t, len(got), 3, "were replayed")
		ledger, err := s.Client.Ledger(t.Context(), true)
		must(t, err)
		expect.Equal(t, fmt.Sprint(ledger.Total.Off, ledger.Total.Forwarded), "0 197", "off, and forwarded")
	})
}

// Nothing is put where it would be lost, or would come back.
func TestWhereNothingIsPutBack(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		for i := range 30 {
			v.Publish("", "dlq", amqp.Publishing{DeliveryMode: 2, Body: fmt.Append(nil, i), Expiration: "3600000"})
		}
		s := adopting(t, v, v.Management)
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "dlq"}).Done, 30, "are adopted")
		again := func(arguments amqp.Table) {
			t.Helper()
			_, err := v.Channel().QueueDelete("dlq", false, false, false)
			must(t, err)
			v.Queue("dlq", arguments)
			brokertest.Eventually(t, "the management API knows it", func() bool {
				p := s.planUnadopt(t, "dlq")
				return !strings.Contains(fmt.Sprint(p.Warnings), "not known")
			})
		}
		for says, arguments := range map[string]amqp.Table{
			"is a stream":           {"x-queue-type": "stream"},
			"dead-letters to":       {"x-dead-letter-exchange": "redrive"},
			"has room for 20: give": {"x-max-length": int32(20)},
		} {
			again(arguments)
			if p := s.planUnadopt(t, "dlq"); !strings.Contains(fmt.Sprint(p.Blocked), says) {
				t.Errorf("%v: it is blocked by %q", arguments, p.Blocked)
			}
		}
		again(amqp.Table{"x-message-ttl": int32(60_000), "x-max-length": int32(20), "x-overflow": "reject-publish"})
		warnings := fmt.Sprint(s.planUnadopt(t, "dlq").Warnings)
		for _, says := range []string{"expire after 1m0s", "no more than 20", "30 of the messages have an expiration"} {
			if !strings.Contains(warnings, says) {
				t.Errorf("%s is missing in %s", says, warnings)
			}
		}
		// What is full stops it.
		op := s.unadopt(t, "dlq")
		if op.State != operations.Stopped || !strings.Contains(op.Why, "is it full?") || op.Done == 0 {
			t.Errorf("it is %s: %s, after %d", op.State, op.Why, op.Done)
		}
		brokertest.Eventually(t, "none is lost", func() bool {
			return v.Depth("dlq")+len(s.Parked(t)) == 30 && v.Depth("dlq") == int(op.Done)
		})
		// A queue that is deleted meanwhile stops it too.
		left := len(s.Parked(t))
		again(nil)
		p := s.planUnadopt(t, "dlq")
		_, err := v.Channel().QueueDelete("dlq", false, false, false)
		must(t, err)
		op, err = s.Client.Start(t.Context(), p.ID, operations.Start{})
		must(t, err)
		brokertest.Eventually(t, "it stops", func() bool {
			op, err = s.Client.Operation(t.Context(), op.ID)
			return err == nil && op.State == operations.Stopped && strings.Contains(op.Why, "does not exist")
		})
		expect.Equal(t, len(s.Parked(t)), left, "are parked")
		// So does a right that is missing.
		v.Queue("dlq", nil)
		rights := management.ServiceRights(policy.Set{policy.Default()}, "*")
		rights.Write = `^(redrive\..*|dlq)$`
		v.Give(v.ServiceUser(), rights)
		op = s.unadopt(t, "dlq")
		if op.State != operations.Stopped || !strings.Contains(op.Why, "redrive permissions --adopt") {
			t.Errorf("without the right it is %s: %s", op.State, op.Why)
		}
		v.Give(v.ServiceUser(), management.ServiceRights(policy.Set{policy.Default()}, "*"))
		// Consumers get what is put back, if a person says that they are to.
		c := v.ConsumeMany("dlq")
		brokertest.Eventually(t, "it has a consumer", func() bool {
			return strings.Contains(fmt.Sprint(s.planUnadopt(t, "dlq").Blocked), "has consumers (1)")
		})
		p, err = s.Client.Plan(t.Context(),
			operations.PlanRequest{Verb: actions.Unadopt, To: "dlq", EvenWithConsumers: true})
		must(t, err)
		_, err = s.Client.Start(t.Context(), p.ID, operations.Start{})
		must(t, err)
		for range left {
			c.Next()
		}
	})
}

package facts_test

import (
	"bytes"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestCCStaysAndIsReadAgainOnARepublishSince313(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		v.Queue("copy", nil)
		v.Queue("blind", nil)
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"CC": []any{"copy"}, "BCC": []any{"blind"}}, Body: []byte("m")})
		copied := v.Consume("copy")
		copied.Take("m")
		v.Consume("blind").Take("m")
		d := v.Consume("work").Reject()
		if d.Headers["BCC"] != nil || d.Headers["CC"] == nil {
			t.Errorf("delivered with BCC %v and CC %v, want CC alone", d.Headers["BCC"], d.Headers["CC"])
		}
		d = v.Consume("dead").Take("m")
		if got := d.Headers["CC"] != nil; got != since(v, 3, 13) {
			t.Errorf("dead-lettered with CC: %t", got)
		}
		// mandatory is content with the copy.
		ch := v.Channel()
		must(t, ch.Confirm(false))
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		c, err := ch.PublishWithDeferredConfirm("", "nowhere", true, false, amqp.Publishing{Headers: amqp.Table{"CC": []any{"copy"}}, Body: []byte("again")})
		must(t, err)
		if !c.Wait() || len(returns) > 0 {
			t.Error("a message with a routable CC came back as unroutable")
		}
		copied.Take("again")
	})
}

func TestUserIDOfAnotherIsRefused(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", nil)
		ch := v.Channel()
		end := closes(ch)
		must(t, ch.Publish("", "work", false, false, amqp.Publishing{UserId: "somebody"}))
		refused(t, "publishing as another", <-end, amqp.PreconditionFailed)
	})
}

func TestInternalExchangeRefusesPublishersAndTakesDeadLetters(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		ch := v.Channel()
		must(t, ch.ExchangeDeclare("internal", "fanout", true, false, true, false, nil))
		v.Queue("dead", nil)
		must(t, ch.QueueBind("dead", "", "internal", false, nil))
		v.Queue("work", amqp.Table{"x-dead-letter-exchange": "internal"})
		v.Publish("", "work", amqp.Publishing{Body: []byte("died")})
		v.Consume("work").Reject()
		v.Consume("dead").Take("died")
		end := closes(ch)
		must(t, ch.Publish("internal", "", false, false, amqp.Publishing{}))
		refused(t, "publishing to it", <-end, amqp.AccessRefused)
	})
}

func TestUnroutableIsReturnedThenAckedOrJustAcked(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, mandatory := range []bool{true, false} {
			ch := v.Channel()
			must(t, ch.Confirm(false))
			returns := ch.NotifyReturn(make(chan amqp.Return, 1))
			c, err := ch.PublishWithDeferredConfirm("", "nowhere", mandatory, false, amqp.Publishing{})
			must(t, err)
			if !c.Wait() {
				t.Errorf("mandatory %t: a nack came, want an ack", mandatory)
			}
			// The client hands on in order: a return before the ack is here now.
			if returned := len(returns) == 1; returned != mandatory {
				t.Errorf("mandatory %t: a return came before the ack: %t", mandatory, returned)
			}
		}
	})
}

func TestPropertiesOverAFrameEndTheWholeConnection(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const frame = 131_072
		v.Queue("work", nil)
		conn := v.Dial()
		if got := conn.Config.FrameSize; got != frame {
			t.Errorf("a frame is %d bytes, want %d", got, frame)
		}
		end := conn.NotifyClose(make(chan *amqp.Error, 1))
		ch, err := conn.Channel()
		must(t, err)
		_ = ch.Publish("", "work", false, false, amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", frame)}})
		refused(t, "properties over a frame", <-end, amqp.FrameError)
	})
}

func TestLargestBodyIs16MiBSince4(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		const largest = 16 << 20
		v.Queue("work", nil)
		body := bytes.Repeat([]byte{'x'}, largest+1)
		v.Publish("", "work", amqp.Publishing{Body: body[:largest]})
		work := v.Consume("work")
		work.Take(string(body[:largest]))
		if !since(v, 4, 0) {
			v.Publish("", "work", amqp.Publishing{Body: body})
			work.Take(string(body))
			return
		}
		ch := v.Channel()
		end := closes(ch)
		must(t, ch.Publish("", "work", false, false, amqp.Publishing{Body: body}))
		refused(t, "one byte more", <-end, amqp.PreconditionFailed)
	})
}

package stories_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

const followedPolicies = `policies:
  - {name: p, queues: ["*"], attempts: 3, backoff: {fixed: 300ms}, jitter: none, no_consumer: retry}
adopt:
`

// follows waits until the service follows a queue, or is in another state, and returns that.
func (s *service) follows(t *testing.T, queue, state string) (is operations.Follow) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprintf("%s is %s", queue, state), func() bool {
		all, err := s.Client.DeadLetterQueues(t.Context())
		must(t, err)
		is = operations.Follow{}
		for _, q := range all.Queues {
			if q.Queue == queue && q.Follow != nil {
				is = *q.Follow
			}
		}
		return is.State == state
	})
	return is
}

// diesTo declares a work queue whose dead letters go to a queue.
func diesTo(v *brokertest.VHost, work, kind, dlq string) {
	v.Queue(work, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq})
}

// A team has a work queue with a dead-letter queue of its own, and changes neither: what its consumer
// rejects comes back after its delay, with its attempts counted, and is parked in the end.
func TestAFollowedQueueIsRetried(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"classic", "quorum"} {
			v.Queue(kind+".dlq", amqp.Table{"x-queue-type": kind})
			diesTo(v, kind, kind, kind+".dlq")
			v.Exchange(kind+".shop", "fanout", kind)
		}
		s := run(t, servertest.Config(t, v, followedPolicies+`  classic.dlq: {queue: classic, then: retry}
  "*.dlq": {then: retry}
`)).ready(t)
		for _, kind := range []string{"classic", "quorum"} { // by its name, and as the only one that leads there
			s.follows(t, kind+".dlq", operations.Following)
			c := v.ConsumeMany(kind)
			v.Publish(kind+".shop", "order.eu", amqp.Publishing{DeliveryMode: 2, MessageId: "7", Body: []byte("order"),
				Headers: amqp.Table{"x-exception-message": "no stock"}})
			failed, id := reject(t, c.Next()), any(nil)
			for attempt := 1; attempt <= 2; attempt++ {
				d := c.Next()
				if waited := time.Since(failed); waited < 300*time.Millisecond {
					t.Errorf("it came back after %s", waited)
				}
				h := d.Headers
				if id == nil {
					id = h[wire.HeaderID]
				}
				if h[wire.HeaderID] != id || id == nil || h[wire.HeaderAttempt] != int64(attempt) ||
					h[wire.HeaderQueue] != kind || h[wire.HeaderExchange] != kind+".shop" ||
					h[wire.HeaderRoutingKey] != "order.eu" || h["x-death"] != nil {
					t.Errorf("attempt %d comes with %v", attempt, h)
				}
				failed = reject(t, d)
			}
			var parked int
			brokertest.Eventually(t, "it is parked", func() bool {
				parked = 0
				for _, m := range s.Parked(t) {
					if m.Queue == kind {
						parked++
						if m.ID != id || m.Attempt != 3 || m.Exchange != kind+".shop" || m.Error != "no stock" {
							t.Errorf("parked as %+v", m)
						}
					}
				}
				return parked > 0
			})
			expect.Equal(t, parked, 1, "are parked of %s", kind)
			expect.Equal(t, s.Replay(t, "queue:"+kind), 1, "are replayed")
			d := c.Next()
			expect.Equal(t, d.Headers[wire.HeaderAttempt], any(int64(0)), "attempts of a replayed one")
			reject(t, d) // and is seen when it fails again
			if d := c.Next(); d.Headers[wire.HeaderID] != id || d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("after the replay it comes with %v", d.Headers)
			} else {
				must(t, d.Ack(false))
			}
		}
	})
}

// Where no work queue is named, or a message says that it failed in another, nothing is retried.
func TestWhatAFollowedQueueParks(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for dlq, works := range map[string][]string{
			"mixed.dlq": {"a", "b"}, "named.dlq": {"c", "d"}, "plain.dlq": {"e"}, "none_error": nil,
		} {
			v.Queue(dlq, amqp.Table{"x-queue-type": "quorum"})
			for _, work := range works {
				diesTo(v, work, "quorum", dlq)
			}
		}
		s := run(t, servertest.Config(t, v, followedPolicies+`  mixed.dlq: {then: retry}
  named.dlq: {queue: c, then: retry}
  plain.dlq: e
  none_error: {then: retry}
`)).ready(t)
		for _, queue := range []string{"mixed.dlq", "named.dlq", "plain.dlq", "none_error"} {
			s.follows(t, queue, operations.Following)
		}
		for _, work := range []string{"a", "b", "d", "e"} {
			c := v.ConsumeMany(work)
			v.Publish("", work, amqp.Publishing{DeliveryMode: 2, Body: []byte("same")})
			reject(t, c.Next())
		}
		for range 2 { // the same bytes: two messages
			v.Publish("", "none_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("same"),
				Headers: amqp.Table{"MT-Reason": "fault", "MT-Fault-Message": "no stock"}})
		}
		all := s.WaitParked(t, 6)
		ids := map[string]bool{}
		for _, m := range all {
			ids[m.ID] = true
			detail, err := s.Client.Message(t.Context(), m.Key)
			must(t, err)
			why := map[string]string{"a": "2 queues dead-letter there", "b": "2 queues dead-letter there",
				"d": `says that it failed in "d"`, "e": "what lands there is parked",
				"": "no queue dead-letters there"}[m.Queue]
			if why == "" || !strings.Contains(detail.ParkedFor, why) {
				t.Errorf("one of %q is parked because %s", m.Queue, detail.ParkedFor)
			}
		}
		expect.Equal(t, len(ids), 6, "ids")
		// What a framework publishes to the queue that the config names a work queue for is of that one.
		c := v.ConsumeMany("c")
		v.Publish("", "named.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("framework"),
			Headers: amqp.Table{"MT-Reason": "fault"}})
		if d := c.Ack(); string(d.Body) != "framework" || d.Headers[wire.HeaderAttempt] != int64(1) {
			t.Errorf("it comes as %+v", d)
		}
	})
}

// What cannot be followed says why, stops no other queue, and is followed once it can be.
func TestAQueueThatCannotBeFollowed(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("fine.dlq", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("log", amqp.Table{"x-queue-type": "stream"})
		v.Queue("busy", amqp.Table{"x-queue-type": "quorum"})
		deadLettered(v, "enrolled", "quorum")
		busy := v.ConsumeMany("busy")
		own := v.DialURL(v.URL())
		ch, err := own.Channel()
		must(t, err)
		must(t, errOf(ch.QueueDeclare("mine", false, false, true, false, nil)))
		c := servertest.Config(t, v, followedPolicies+`  late: {}
  log: {}
  busy: {}
  enrolled: {}
  mine: {}
  secret: {}
  "*.dlq": {}
`)
		var readable []string
		for _, name := range c.FollowedQueues() {
			if name != "secret" {
				readable = append(readable, name)
			}
		}
		c.Broker.URL = v.ServiceURL(c.Policies, readable...)
		v.Queue("secret", amqp.Table{"x-queue-type": "quorum"})
		s := run(t, c)
		for queue, state := range map[string]string{"late": "missing", "log": "stream", "busy": "consumers",
			"enrolled": "enrolled", "mine": "exclusive", "secret": "forbidden", "fine.dlq": operations.Following} {
			if is := s.follows(t, queue, state); (is.Why == "") != (state == operations.Following) {
				t.Errorf("%s is %+v", queue, is)
			}
		}
		if _, text := s.get(t, "/readyz"); !strings.Contains(text, "followed queue late: ") ||
			strings.Contains(text, "followed queue fine.dlq") {
			t.Errorf("/readyz says %s", text)
		}
		_, page := s.get(t, "/")
		var out, errs strings.Builder
		cli.Run(t.Context(), []string{"adopt", "--address", s.Client.Addr}, &out, &errs, cli.Build{})
		for onPage, inTable := range map[string]string{"late": "late", "Not followed: missing": "missing, park",
			"fine.dlq": "fine.dlq", "Followed, then park": "following, park"} {
			if !strings.Contains(page, onPage) || !strings.Contains(out.String(), inTable) {
				t.Errorf("%s is not on the page, or redrive adopt says\n%s%s", onPage, &out, &errs)
			}
		}
		v.Publish("", "fine.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("fine")})
		s.WaitParked(t, 1)

		v.Queue("late", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "late", amqp.Publishing{DeliveryMode: 2, Body: []byte("late")})
		must(t, busy.Channel.Close())
		must(t, ch.Close())
		must(t, own.Close())
		brokertest.Eventually(t, "the exclusive queue is gone", func() bool {
			_, err := v.Channel().QueueDeclare("mine", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return err == nil
		})
		v.Queue("later.dlq", amqp.Table{"x-queue-type": "quorum"})
		v.ServiceURL(c.Policies, c.FollowedQueues()...)
		for _, queue := range []string{"late", "busy", "mine", "secret", "later.dlq"} {
			s.follows(t, queue, operations.Following)
		}
		s.WaitParked(t, 2)
		// It is deleted while it is followed, and comes again.
		must(t, errOf(v.Channel().QueueDelete("late", false, false, false)))
		s.follows(t, "late", "missing")
		v.Queue("late", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "late", amqp.Publishing{DeliveryMode: 2, Body: []byte("again")})
		s.WaitParked(t, 3)
	})
}

// A person has a queue followed, over a restart, and stops it. What the config follows, it alone decides.
func TestAPersonHasAQueueFollowed(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, queue := range []string{"mail_error", "orders_error"} {
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
		}
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		c := servertest.Config(t, v, followedPolicies+"  mail_error: {}\n")
		c.Broker.URL = v.ServiceURL(c.Policies, "mail_error", "orders_error")
		s := run(t, c)
		redrive := func(args ...string) (out string, code int) {
			t.Helper()
			var both strings.Builder
			code = cli.Run(t.Context(), append(args, "--address", s.Client.Addr), &both, &both, cli.Build{})
			return both.String(), code
		}
		s.follows(t, "mail_error", operations.Following)
		if out, code := redrive("adopt", "mail_error", "--unfollow"); code == 0 || !strings.Contains(out, "the config follows") {
			t.Errorf("unfollowing what the config follows: %d %s", code, out)
		}
		if out, code := redrive("adopt", "orders_error", "--unfollow"); code == 0 || !strings.Contains(out, "is not followed") {
			t.Errorf("unfollowing what is not followed: %d %s", code, out)
		}
		out, code := redrive("adopt", "orders_error", "--queue", "orders", "--follow", "--then", "retry", "--yes")
		expect.Equal(t, code, 0, "is the exit code: %s", out)
		if is := s.follows(t, "orders_error", operations.Following); is.By == "" || is.Queue != "orders" {
			t.Errorf("it is followed as %+v", is)
		}
		if _, page := s.get(t, "/"); strings.Count(page, `name="stop"`) != 1 {
			t.Error("the page offers to stop what the config follows, or does not what a person has followed")
		}
		must(t, s.Stop())
		s = run(t, c)
		s.follows(t, "orders_error", operations.Following)
		work := v.ConsumeMany("orders")
		v.Publish("", "orders_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("failed")})
		work.Take("failed")
		out, code = redrive("adopt", "orders_error", "--unfollow")
		expect.Equal(t, code, 0, "is the exit code: %s", out)
		brokertest.Eventually(t, "it is no longer consumed", func() bool {
			all, err := s.Client.DeadLetterQueues(t.Context())
			must(t, err)
			at, _ := v.State("orders_error")
			return at.Consumers == 0 && !slices.ContainsFunc(all.Queues, func(q operations.DeadLetterQueue) bool {
				return q.Queue == "orders_error" && q.Follow != nil
			})
		})
		v.Publish("", "orders_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("stays")})
		v.Publish("", "mail_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("mail")})
		s.WaitParked(t, 1)
		expect.Equal(t, v.Depth("orders_error"), 1, "stays in the queue")
	})
}

// Two services follow one queue: the second knows the consumer of the first, RabbitMQ shares the messages
// out, and each is parked once.
func TestTwoServicesFollowOneQueue(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("shared_error", amqp.Table{"x-queue-type": "quorum"})
		var all []*service
		for range 2 {
			s := run(t, servertest.Config(t, v, "adopt: {shared_error: shared}"))
			s.follows(t, "shared_error", operations.Following)
			all = append(all, s)
		}
		const n = 200
		for i := range n {
			v.Publish("", "shared_error", amqp.Publishing{DeliveryMode: 2, Body: fmt.Append(nil, i)})
		}
		brokertest.Eventually(t, "nothing is left", func() bool { return v.Messages("shared_error") == 0 })
		ids := map[string]bool{}
		for _, s := range all {
			parked := s.Parked(t)
			for _, m := range parked {
				ids[m.ID] = true
			}
			if len(parked) == 0 {
				t.Error("one gets no message")
			}
		}
		expect.Equal(t, len(ids), n, "are parked by both")
	})
}

package broker_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// channels are the numbers of those that are open in a virtual host, of all connections.
func channels(t *testing.T, v *brokertest.VHost) (numbers []int) {
	t.Helper()
	for _, all := range channelsByConnection(t, v) {
		numbers = append(numbers, all...)
	}
	return numbers
}

// channelsByConnection returns the numbers of the channels of each connection.
func channelsByConnection(t *testing.T, v *brokertest.VHost) map[string][]int {
	t.Helper()
	var all []struct {
		Number     int
		Connection any `json:"connection_details"` // of a channel that was opened just now: []
	}
	if err := v.API().Call(context.Background(), "GET", "vhosts/"+url.PathEscape(v.Name)+"/channels", nil, &all); err != nil {
		t.Fatal(err)
	}
	by := map[string][]int{}
	for _, c := range all {
		connection, _ := c.Connection.(map[string]any)
		name, _ := connection["name"].(string)
		by[name] = append(by[name], c.Number)
	}
	return by
}

// Destinations that are published to in turn share a channel. As many at once as there are
// have no more than 64, and those that are too many go by one that answers.
func TestChannelsAreBounded(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p := publisher(t, v.URL())
		var out []wire.Outgoing
		for i := range 200 {
			q := fmt.Sprint("q", i)
			v.Queue(q, amqp.Table{"x-queue-type": "classic"})
			out = append(out, message("", q, "", nil))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		const own = 1 // of the test
		brokertest.Eventually(t, "RabbitMQ shows the test's channel", func() bool { return len(channels(t, v)) == own })
		for i := range out {
			if err := p.Send(ctx, out[i:i+1])(ctx)[0]; err != nil {
				t.Fatal(err)
			}
		}
		brokertest.Eventually(t, "RabbitMQ shows the channel", func() bool { return len(channels(t, v)) > own })
		if n := len(channels(t, v)) - own; n != 1 {
			t.Errorf("one message after the other takes %d channels", n)
		}
		for i, err := range p.Send(ctx, out)(ctx) {
			if err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		// RabbitMQ shows channels in the order in which they were opened: all of the
		// publisher's before this one, which is the first of a third connection.
		if _, err := v.Dial().Channel(); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, "RabbitMQ shows the last channel", func() bool {
			by := channelsByConnection(t, v)
			return len(by) == 3 && by[""] == nil
		})
		if n := len(channels(t, v)) - own - 1; n > 64 {
			t.Errorf("200 destinations at once take %d channels", n)
		}
	})
}

// A channel that nacks is replaced by another, in the same connection, and no message
// is sent twice for it.
func TestAChannelThatNacksIsReplaced(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		v.Queue("full", amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
		v.Publish("", "full", amqp.Publishing{})
		brokertest.Eventually(t, "the queue is full", func() bool { return v.Depth("full") == 1 })
		p := publisher(t, v.URL())
		sent := 0
		replaced := func() bool {
			errs := p.Send(context.Background(), []wire.Outgoing{message("", "q", "good", nil), message("", "full", "one more", nil), message("", "q", "good", nil)})(context.Background())
			if errs[0] != nil || !errors.Is(errs[1], wire.ErrNacked) || errs[2] != nil {
				t.Fatalf("the answers are %v", errs)
			}
			sent += 2
			return slices.Max(append(channels(t, v), 0)) > 2 // one for each queue
		}
		brokertest.Eventually(t, "there is another channel", replaced)
		brokertest.Eventually(t, "the one before is closed", func() bool { return len(channels(t, v)) == 3 }) // with the test's
		brokertest.Eventually(t, "each has arrived once", func() bool { return v.Depth("q") == sent })
	})
}

// leader suspends or resumes the leader of a quorum queue: it hangs, and is not dead.
func leader(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node, do, queue string) {
	t.Helper()
	if _, err := n.Eval(t.Context(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), ok = sys:%s(amqqueue:get_pid(Q)).", v.Name, queue, do)); err != nil {
		t.Fatal(err)
	}
}

// A queue whose leader hangs holds up no other, however many messages are under way to it,
// whether it was published to before or not.
func TestAQueueThatHangsDelaysNoOther(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		for _, q := range []string{"q", "new", "used"} {
			v.Queue(q, amqp.Table{"x-queue-type": "quorum"})
		}
		p := publisher(t, v.URL())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		sent := map[string]int{}
		many := func(n int, queue string) []wire.Outgoing {
			all := make([]wire.Outgoing, n)
			for i := range all {
				all[i] = message("", queue, fmt.Sprint(sent[queue]), nil)
				sent[queue]++
			}
			return all
		}
		confirmed := func(what string, wait func(context.Context) []error, within time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			for i, err := range wait(ctx) {
				if err != nil {
					t.Fatalf("%s: message %d: %v", what, i, err)
				}
			}
		}
		confirmed("before", p.Send(ctx, many(250, "used")), 30*time.Second) // more than half of RabbitMQ's credit
		leader(t, v, n, "suspend", "new")
		leader(t, v, n, "suspend", "used")
		var stuck []func(context.Context) []error
		for range 4 {
			stuck = append(stuck, p.Send(ctx, many(512, "new")), p.Send(ctx, many(512, "used")))
			confirmed("another queue meanwhile", p.Send(ctx, many(1000, "q")), 15*time.Second)
		}
		brokertest.Eventually(t, "each has all sessions that it may have, and the third queue and the test one or more", func() bool {
			n := len(channels(t, v))
			if n > 3*4+1 {
				t.Fatalf("%d channels for three destinations", n)
			}
			return n >= 2*4+2
		})
		mixed := p.Send(ctx, append(many(1, "new"), many(1, "q")...)) // one Send to both
		brokertest.Eventually(t, "the other queue's message of a Send to both arrives", func() bool { return v.Depth("q") == 4001 })
		if err := p.BindRetryExchange(ctx, "q"); err != nil {
			t.Errorf("the connection does not answer: %v", err)
		}
		leader(t, v, n, "resume", "new")
		leader(t, v, n, "resume", "used")
		for _, wait := range append(stuck, mixed) {
			confirmed("once it answers", wait, 30*time.Second)
		}
		for queue, want := range map[string]int{"new": 4*512 + 1, "used": 250 + 4*512, "q": 4001} {
			brokertest.Eventually(t, "each has arrived once in "+queue, func() bool { return v.Depth(queue) == want })
		}
		in := v.Consume("new")
		inOrder := 0
		for range 4 * 512 {
			d := in.Next()
			if string(d.Body) == fmt.Sprint(inOrder) {
				inOrder++
			}
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		if inOrder < 399-199 { // what is left of a session's credit, up to 199 messages after it grew last
			t.Errorf("only the first %d arrive in order", inOrder)
		}
	})
}

// What could not be published before its Send was given up is not published later.
func TestAMessageWhoseSendWasCancelledIsNotPublishedLater(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		v.Queue("stuck", amqp.Table{"x-queue-type": "quorum"})
		p := publisher(t, v.URL())
		leader(t, v, n, "suspend", "stuck")
		all := make([]wire.Outgoing, 2000) // more than all sessions may have under way
		for i := range all {
			all[i] = message("", "stuck", "", nil)
		}
		first := p.Send(t.Context(), all)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		for i, err := range p.Send(t.Context(), all[:100])(ctx) { // behind the first
			if !errors.Is(err, wire.ErrNoAnswer) {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		leader(t, v, n, "resume", "stuck")
		for i, err := range append(first(t.Context()), p.Send(t.Context(), all[:1])(t.Context())...) {
			if err != nil {
				t.Fatalf("message %d, once the queue answers: %v", i, err)
			}
		}
		if n := v.Depth("stuck"); n != len(all)+1 {
			t.Errorf("%d arrived, want %d", n, len(all)+1)
		}
	})
}

// A queue that does not answer holds up no other: only who wants the answer to a large
// message waits for it.
func TestALargeMessageWithoutAnAnswerDelaysNoOther(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		for _, q := range []string{"stuck", "q"} {
			v.Queue(q, amqp.Table{"x-queue-type": "quorum"})
		}
		leader(t, v, n, "suspend", "stuck")
		p := publisher(t, v.URL())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		large := message("", "stuck", strings.Repeat("x", 1<<20), nil)
		wait := p.Send(ctx, []wire.Outgoing{large, message("", "q", "a", nil)})
		if err := p.Send(ctx, []wire.Outgoing{message("", "q", "b", nil)})(ctx)[0]; err != nil {
			t.Fatalf("the other one: %v", err)
		}
		if n := v.Depth("q"); n != 2 {
			t.Errorf("%d arrived at the other queue", n)
		}
		leader(t, v, n, "resume", "stuck")
		if errs := wait(t.Context()); errs[0] != nil || errs[1] != nil {
			t.Errorf("once it answers: %v", errs)
		}
	})
}

package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// publisher runs one until the test ends.
func publisher(t *testing.T, url string) *broker.Publisher {
	t.Helper()
	p := broker.NewPublisher(broker.Config{URL: url, Name: "redrive retries", Log: slog.New(slog.DiscardHandler)})
	runUntilEnd(t, p)
	return p
}

func message(exchange, key, body string, headers amqp.Table) wire.Outgoing {
	id := uuid.NewString()
	h := amqp.Table{wire.HeaderID: id}
	for k, v := range headers {
		h[k] = v
	}
	return wire.Outgoing{Exchange: exchange, RoutingKey: key, ID: id, Message: &wire.Message{Headers: h, Body: []byte(body)}}
}

// confirmed checks that RabbitMQ has confirmed all messages of a batch.
func confirmed(t *testing.T, what string, answers []error) {
	t.Helper()
	for i, err := range answers {
		if err != nil {
			t.Fatalf("%s: message %d: %v", what, i, err)
		}
	}
}

// full declares a queue that has room for no more.
func full(t *testing.T, v *brokertest.VHost) {
	t.Helper()
	v.Queue("full", amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
	v.Publish("", "full", amqp.Publishing{})
	brokertest.Eventually(t, "the queue is full", func() bool { return v.Depth("full") == 1 })
}

// Each message of a batch gets its own answer, and the good ones arrive once and stay safe.
func TestEachMessageOfABatchHasItsOwnResult(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		full(t, v)
		must(t, v.Channel().ExchangeDeclare("internal", "fanout", true, false, true, false, nil))
		twin := message("", "q", "twin", nil)
		lost := message("", "nowhere", "twin", nil)
		lost.ID, lost.Message.Headers[wire.HeaderID] = twin.ID, twin.ID
		stolen := message("", "q", "", nil)
		stolen.Message.UserID = "somebody-else"
		batch := []struct {
			name string
			out  wire.Outgoing
			want error
		}{
			{"good", message("", "q", "1", nil), nil},
			{"unroutable", message("", "nowhere", "", nil), wire.ErrUnroutable},
			{"full queue", message("", "full", "", nil), wire.ErrNacked},
			{"no exchange", message("none", "q", "", nil), wire.ErrUnroutable},
			{"good between", message("", "q", "2", nil), nil},
			{"internal exchange", message("internal", "", "", nil), wire.ErrForbidden},
			{"no exchange either", message("none", "q", "", nil), wire.ErrUnroutable},
			{"somebody else's user-id", stolen, wire.ErrUnacceptable},
			{"a CC that is no list", message("", "q", "", amqp.Table{"CC": "q"}), wire.ErrUnacceptable},
			{"headers over a frame", message("", "q", "", amqp.Table{"h": strings.Repeat("x", 140_000)}), wire.ErrUnacceptable},
			{"a header of a kind of Go's own", message("", "q", "", amqp.Table{"h": struct{}{}}), wire.ErrUnacceptable},
			{"unroutable with an id that arrives too", lost, wire.ErrUnroutable},
			{"good at last", message("", "q", "3", nil), nil},
		}
		p := publisher(t, v.URL())
		ctx := context.Background()
		arrived := map[string]bool{}
		out := make([]wire.Outgoing, len(batch))
		for i := range batch {
			out[i] = batch[i].out
		}
		errs := p.Send(ctx, out)(ctx)
		for i, b := range batch {
			err := errs[i]
			for errors.Is(err, wire.ErrNoAnswer) { // its channel ended as it was written: the caller sends again
				err = p.Send(ctx, out[i:i+1])(ctx)[0]
			}
			if !errors.Is(err, b.want) {
				t.Errorf("%s: %v, want %v", b.name, err, b.want)
			}
		}
		expect.Err(t, p.Send(ctx, []wire.Outgoing{twin})(ctx)[0], nil, "the twin of an unroutable message")
		ch := v.Channel()
		for {
			d, ok, err := ch.Get("q", true)
			must(t, err)
			if !ok {
				break
			}
			if d.DeliveryMode != amqp.Persistent {
				t.Errorf("%q is not persistent", d.Body)
			}
			arrived[string(d.Body)] = true
		}
		if len(arrived) != 4 || !arrived["1"] || !arrived["2"] || !arrived["3"] || !arrived["twin"] {
			t.Errorf("%v arrived", arrived)
		}
		expect.Equal(t, v.Depth("full"), 1, "the full queue has")
	})
}

// An unroutable message that is sent again on the same channel once its queue exists gets its own answer.
func TestAReturnedMessageIsConfirmedOnceItIsRoutable(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		p, ctx := publisher(t, v.URL()), context.Background()
		out := []wire.Outgoing{message("", "later", "x", nil)}
		expect.Err(t, p.Send(ctx, out)(ctx)[0], wire.ErrUnroutable, "without its queue")
		v.Queue("later", nil)
		expect.Err(t, p.Send(ctx, out)(ctx)[0], nil, "its queue is there")
	})
}

// A body over the limit ends the channel; only that message is blamed.
func TestOnlyTheMessageOverTheSizeLimitIsRefused(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if !v.Since4() {
			t.Skip("RabbitMQ 3 takes up to 128 MiB")
		}
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		p, ctx := publisher(t, v.URL()), context.Background()
		huge := message("", "q", "", nil)
		huge.Message.Body = bytes.Repeat([]byte("x"), 16<<20+1)
		for range 2 { // the second time too: it must not end what comes after
			errs := p.Send(ctx, []wire.Outgoing{message("", "q", "a", nil), huge, message("", "q", "b", nil)})(ctx)
			if errs[0] != nil || !errors.Is(errs[1], wire.ErrUnacceptable) || errs[2] != nil {
				t.Errorf("%v", errs)
			}
		}
		expect.Equal(t, v.Depth("q"), 4, "arrived")
	})
}

// Without a broker nothing hangs, and no password is shown.
func TestWithoutABrokerNothingHangs(t *testing.T) {
	var said broker.State
	heard := make(chan struct{})
	var once sync.Once
	p := broker.NewPublisher(broker.Config{URL: "amqp://u:hunter2@127.0.0.1:1/", Log: slog.New(slog.DiscardHandler), Observe: func(s broker.State) {
		once.Do(func() { said = s; close(heard) })
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = p.Run(ctx) })
	<-heard
	cancel()
	run.Wait()
	if said.Connected || said.Err == nil || strings.Contains(said.Err.Error(), "hunter2") {
		t.Errorf("%+v", said)
	}
	expect.Err(t, p.Send(ctx, []wire.Outgoing{message("", "q", "", nil)})(ctx)[0], wire.ErrNoAnswer, "after the end")
}

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
	must(t, v.API().Call(context.Background(), "GET", "vhosts/"+url.PathEscape(v.Name)+"/channels", nil, &all))
	by := map[string][]int{}
	for _, c := range all {
		connection, _ := c.Connection.(map[string]any)
		name, _ := connection["name"].(string)
		by[name] = append(by[name], c.Number)
	}
	return by
}

// Destinations share a channel in turn. Many at once use at most 64 workers, and the others one that answers.
func TestChannelsAreBounded(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		p := publisher(t, v.URL())
		var out []wire.Outgoing
		for i := range 200 {
			q := fmt.Sprint("q", i)
			v.Queue(q, amqp.Table{"x-queue-type": "classic"})
			out = append(out, message("", q, "", nil))
		}
		ctx, cancel := context.WithTimeout(t.Context(), brokertest.Patience)
		defer cancel()
		const own = 1 // of the test
		brokertest.Eventually(t, "RabbitMQ shows the test's channel", func() bool { return len(channels(t, v)) == own })
		for i := range out {
			must(t, p.Send(ctx, out[i:i+1])(ctx)[0])
		}
		brokertest.Eventually(t, "RabbitMQ shows the channel", func() bool { return len(channels(t, v)) > own })
		expect.Equal(t, len(channels(t, v))-own, 1, "one message after the other takes … channels")
		confirmed(t, "at once", p.Send(ctx, out)(ctx))
		// RabbitMQ shows channels in the order in which they were opened: all of the
		// publisher's before this one, which is the first of a third connection.
		must(t, errOf(v.Dial().Channel()))
		brokertest.Eventually(t, "RabbitMQ shows the last channel", func() bool {
			by := channelsByConnection(t, v)
			return len(by) == 3 && by[""] == nil
		})
		if n := len(channels(t, v)) - own - 1; n > 64 {
			t.Errorf("200 destinations at once take %d channels", n)
		}
	})
}

// A channel that nacks is replaced on the same connection, and no message is sent twice for that.
func TestAChannelThatNacksIsReplaced(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		full(t, v)
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

// Tests that need a node of their own run one after the other.
func TestOnANodeOfItsOwn(t *testing.T) {
	brokertest.OnePrivate(t, "", func(t *testing.T, own *brokertest.VHost, n *rabbitnode.Node) {
		for name, test := range map[string]func(*testing.T, *brokertest.VHost, *rabbitnode.Node){
			"a queue that hangs delays no other":                                 aQueueThatHangsDelaysNoOther,
			"a message whose Send was cancelled is not published later":          aMessageWhoseSendWasCancelledIsNotPublishedLater,
			"a large message without an answer delays no other":                  aLargeMessageWithoutAnAnswerDelaysNoOther,
			"nothing is published into a connection that is blocked by an alarm": nothingIsPublishedIntoABlockedConnection,
		} {
			t.Run(name, func(t *testing.T) { test(t, brokertest.NewVHost(t, own.Broker), n) })
		}
	})
}

// A queue whose leader hangs holds up no other, whether it was published to before or not.
func aQueueThatHangsDelaysNoOther(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	for _, q := range []string{"q", "new", "used"} {
		v.Queue(q, amqp.Table{"x-queue-type": "quorum"})
	}
	p := publisher(t, v.URL())
	ctx, cancel := context.WithTimeout(t.Context(), brokertest.Patience)
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
	confirmed(t, "before", p.Send(ctx, many(250, "used"))(ctx)) // more than half of RabbitMQ's credit
	v.Leader(n, "suspend", "new")
	v.Leader(n, "suspend", "used")
	var stuck []func(context.Context) []error
	for range 4 {
		stuck = append(stuck, p.Send(ctx, many(512, "new")), p.Send(ctx, many(512, "used")))
		confirmed(t, "another queue meanwhile", p.Send(ctx, many(1000, "q"))(ctx))
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
	expect.Err(t, p.BindRetryExchange(ctx, "q"), nil, "the connection does not answer")
	v.Leader(n, "resume", "new")
	v.Leader(n, "resume", "used")
	refused := 0
	for _, wait := range append(stuck, mixed) {
		for i, err := range wait(ctx) {
			if errors.Is(err, wire.ErrNacked) { // by RabbitMQ 3.10, when a queue hung for minutes
				refused++
			} else if err != nil {
				t.Fatalf("once it answers: message %d: %v", i, err)
			}
		}
	}
	for queue, want := range map[string]int{"new": 4*512 + 1, "used": 250 + 4*512, "q": 4001} {
		brokertest.Eventually(t, "each has arrived once in "+queue+", unless RabbitMQ refused it", func() bool {
			n := v.Depth(queue)
			return n <= want && n >= want-refused
		})
	}
	if refused > 0 {
		t.Logf("RabbitMQ refused %d messages", refused)
		return
	}
	in := v.Consume("new")
	inOrder := 0
	for range 4 * 512 {
		d := in.Next()
		if string(d.Body) == fmt.Sprint(inOrder) {
			inOrder++
		}
		must(t, d.Ack(false))
	}
	if inOrder < 399-199 { // what is left of a session's credit, up to 199 messages after it grew last
		t.Errorf("only the first %d arrive in order", inOrder)
	}
}

// What could not be published before its Send was given up is not published later.
func aMessageWhoseSendWasCancelledIsNotPublishedLater(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	v.Queue("stuck", amqp.Table{"x-queue-type": "quorum"})
	p := publisher(t, v.URL())
	v.Leader(n, "suspend", "stuck")
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
	v.Leader(n, "resume", "stuck")
	confirmed(t, "once the queue answers", append(first(t.Context()), p.Send(t.Context(), all[:1])(t.Context())...))
	expect.Equal(t, v.Depth("stuck"), len(all)+1, "arrived")
}

// A queue that does not answer delays no other: only the caller that wants the answer to a large message waits for it.
func aLargeMessageWithoutAnAnswerDelaysNoOther(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	for _, q := range []string{"stuck", "q"} {
		v.Queue(q, amqp.Table{"x-queue-type": "quorum"})
	}
	v.Leader(n, "suspend", "stuck")
	p := publisher(t, v.URL())
	ctx, cancel := context.WithTimeout(t.Context(), brokertest.Patience)
	defer cancel()
	large := message("", "stuck", strings.Repeat("x", 1<<20), nil)
	wait := p.Send(ctx, []wire.Outgoing{large, message("", "q", "a", nil)})
	if err := p.Send(ctx, []wire.Outgoing{message("", "q", "b", nil)})(ctx)[0]; err != nil {
		t.Fatalf("the other one: %v", err)
	}
	expect.Equal(t, v.Depth("q"), 2, "arrived at the other queue")
	v.Leader(n, "resume", "stuck")
	if errs := wait(t.Context()); errs[0] != nil || errs[1] != nil {
		t.Errorf("once it answers: %v", errs)
	}
}

// A blocked connection publishes nothing, outlasts the alarm, and then publishes what waited.
func nothingIsPublishedIntoABlockedConnection(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	v.Queue("q", amqp.Table{"x-queue-type": "classic"})
	var mu sync.Mutex
	connections := 0
	blocked := make(chan struct{}, 100)
	const heartbeat = 3 * time.Second
	p := broker.NewPublisher(broker.Config{URL: v.URL(), Name: "redrive retries", Log: slog.New(slog.DiscardHandler), AMQP: amqp.Config{Heartbeat: heartbeat}, Observe: func(s broker.State) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case s.Blocked != "":
			blocked <- struct{}{}
		case !s.Connected:
			connections++
		}
	}})
	ctx := t.Context()
	runUntilEnd(t, p)
	must(t, p.Send(ctx, []wire.Outgoing{message("", "q", "before", nil)})(ctx)[0])
	over := brokertest.Alarm(t, n)
	// RabbitMQ says that it blocks a connection when something is published there:
	// here a message that is larger than what TCP and the gathered writes hold.
	large := message("", "q", strings.Repeat("x", 12<<20), nil)
	answered := make(chan error, 1)
	go func() { answered <- p.Send(ctx, []wire.Outgoing{large})(ctx)[0] }()
	<-blocked
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	batch := []wire.Outgoing{message("", "q", "during", nil), message("", "q", "during", nil)}
	for _, err := range p.Send(short, batch)(short) {
		if !errors.Is(err, wire.ErrNoAnswer) {
			t.Errorf("during the alarm: %v", err)
		}
	}
	waits := make(chan error, 1)
	go func() { waits <- p.Send(ctx, []wire.Outgoing{message("", "q", "after", nil)})(ctx)[0] }()
	<-time.After(4 * heartbeat) // longer than the connection lives without heartbeats
	over()
	if err := errors.Join(<-answered, <-waits); err != nil {
		t.Error(err)
	}
	got := map[string]int{}
	brokertest.Eventually(t, "all have arrived", func() bool { return v.Depth("q") >= 3 })
	arrived, in := v.Depth("q"), v.Consume("q")
	for range arrived { // the large one has a channel of its own, so it may be the last
		d := in.Next()
		_ = d.Ack(false)
		got[string(bytes.TrimLeft(d.Body, "x"))]++
	}
	if got["before"] != 1 || got[""] != 1 || got["after"] != 1 || got["during"] != 0 {
		t.Errorf("%v arrived", got)
	}
	if mu.Lock(); connections != 0 {
		t.Errorf("the connection ended %d times", connections)
	}
	mu.Unlock()
}

// Missing rights are reported as such, and publishing works once they are granted.
func TestPermissionsGrantedLaterAreUsed(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "poor-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^$", "^$", ".*")
		v.Queue("q", amqp.Table{"x-queue-type": "quorum"})
		p, ctx := publisher(t, v.URLAs(user, "pw")), context.Background()
		expect.Err(t, p.BindRetryExchange(ctx, "q"), wire.ErrForbidden, "binding without a right")
		one := []wire.Outgoing{message(wire.RetryExchange("q"), "", "a", nil)}
		must(t, publisher(t, v.URL()).BindRetryExchange(ctx, "q"))
		expect.Err(t, p.Send(ctx, one)(ctx)[0], wire.ErrForbidden, "publishing without a right")
		v.Grant(user, `^redrive\.`, ".*", ".*")
		brokertest.Eventually(t, "the right is known", func() bool { return p.BindRetryExchange(ctx, "q") == nil })
		brokertest.Eventually(t, "the message goes", func() bool { return p.Send(ctx, one)(ctx)[0] == nil })
	})
}

func TestARetryExchangeExistsOnlyWhileItsQueueDoes(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p, ctx := publisher(t, v.URL()), context.Background()
		exists := func(want bool) {
			t.Helper()
			if is, err := p.RetryExchangeExists(ctx, "q"); is != want || err != nil {
				t.Errorf("exists: %v, %v; want %v", is, err, want)
			}
		}
		exists(false)
		expect.Err(t, p.BindRetryExchange(ctx, "q"), wire.ErrQueueGone, "binding a queue that does not exist")
		must(t, p.RemoveRetryExchange(ctx, "q"))
		exists(false)
		for range 2 { // a queue that was made again is bound again
			v.Queue("q", amqp.Table{"x-queue-type": "classic"})
			must(t, p.BindRetryExchange(ctx, "q"))
			if err := p.RemoveRetryExchange(ctx, "q"); err == nil {
				t.Error("the retry exchange of a queue that exists was removed")
			}
			exists(true)
			back := message(wire.RetryExchange("q"), "any", "a", nil)
			must(t, p.Send(ctx, []wire.Outgoing{back})(ctx)[0])
			expect.Equal(t, v.Depth("q"), 1, "came back")
			v.DeleteQueue("q")
			expect.Err(t, p.Send(ctx, []wire.Outgoing{back})(ctx)[0], wire.ErrUnroutable, "with the queue deleted")
		}
		expect.Err(t, p.BindRetryExchange(ctx, "q"), wire.ErrQueueGone, "binding a deleted queue")
		for range 2 {
			must(t, p.RemoveRetryExchange(ctx, "q"))
			exists(false) // it would stand for a permission that no one gave a new queue
		}
		must(t, errOf(v.Channel().QueueDeclare("q", false, false, true, false, nil)))
		expect.Err(t, p.BindRetryExchange(ctx, "q"), wire.ErrExclusive, "binding another connection's queue")
	})
}

// RabbitMQ's guide to alternate exchanges advises a policy on all exchanges. It would confirm a retry
// to a deleted queue, and deliver it elsewhere. Exchanges that an earlier version declared keep working.
func TestAPolicyWithAnAlternateExchangeGetsNoRetry(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("unrouted", amqp.Table{"x-queue-type": "classic"})
		v.Exchange("unrouted", "fanout", "unrouted")
		v.Must("PUT", "policies/"+v.Name+"/theirs", management.Policy{Pattern: "", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "unrouted"}})
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		v.Queue("old", amqp.Table{"x-queue-type": "classic"})
		before := v.Channel()
		for name, kind := range map[string]string{wire.RetryExchange("old"): "fanout", wire.ExchangeFailures: "topic", wire.ExchangeParked: "fanout"} {
			must(t, before.ExchangeDeclare(name, kind, true, false, false, false, nil))
		}
		must(t, before.ExchangeDeclare(wire.ExchangeDeadLetters, "fanout", true, false, true, false, nil))

		p, ctx := publisher(t, v.URL()), t.Context()
		l, err := broker.NewProbe(ctx, broker.Config{URL: v.URL(), Name: "test"})
		must(t, err)
		defer l.Close()
		must(t, l.DeclareAll())
		if exchange, queue := l.IntakeQueue(); exchange != nil || queue != nil {
			t.Errorf("the exchange redrive: %v; redrive.intake: %v", exchange, queue)
		}
		must(t, v.API().Declare(ctx, delay.Retry("old")))
		must(t, v.API().Declare(ctx, delay.Retry("q"))) // as enroll does, and then the service
		for _, queue := range []string{"old", "q"} {
			must(t, p.BindRetryExchange(ctx, queue))
			retry := message(wire.RetryExchange(queue), "any", "a", nil)
			if err := p.Send(ctx, []wire.Outgoing{retry})(ctx)[0]; err != nil || v.Depth(queue) != 1 {
				t.Errorf("%s: %v, %d came back", queue, err, v.Depth(queue))
			}
			v.DeleteQueue(queue)
		}
		for _, exchange := range []string{wire.RetryExchange("q"), wire.ExchangeQuarantine} {
			brokertest.Eventually(t, "the policy applies", func() bool {
				x, err := v.API().Exchange(ctx, exchange)
				return err == nil && x.Policy == "theirs"
			})
		}
		expect.Err(t, p.Send(ctx, []wire.Outgoing{message(wire.RetryExchange("q"), "any", "b", nil)})(ctx)[0], wire.ErrUnroutable, "to a deleted queue")
		expect.Equal(t, v.Depth("unrouted"), 0, "messages are in the alternate's queue")
	})
}

// RabbitMQ quotes the name in what it says of a missing exchange or queue, and clients choose names.
func TestAMissingRetryExchangeIsNoMissingQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p, ctx := publisher(t, v.URL()), t.Context()
		p.AwaitUsable(ctx)
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "q", amqp.Publishing{})
		brokertest.Eventually(t, "it is in the queue", func() bool { return v.Depth("q") == 1 })
		for _, q := range []string{"no exchange", "a no queue b", "NOT_FOUND - no queue 'b"} {
			if is, err := p.RetryExchangeExists(ctx, q); is || err != nil {
				t.Errorf("%q: exists: %v, %v", q, is, err)
			}
			if _, _, err := p.Queue(ctx, q); !errors.Is(err, wire.ErrQueueGone) {
				t.Errorf("%q: %v", q, err)
			}
			if consumers, ready, err := p.Queue(ctx, "q"); consumers != 0 || ready != 1 || err != nil {
				t.Errorf("then q has %d consumers, %d ready, %v", consumers, ready, err)
			}
		}
	})
}

// A user who can write to queues, which binding them needs anyway, learns how many consumers they have, except of
// deleted queues, those exclusive to another connection, and, from 4.3 on, those without any permission.
func TestConsumersAreCounted(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.User("service", "pw")
		v.Grant("service", "", "^(gone.*|two|exclusive|none)$", "")
		v.Queue("foreign", nil)
		v.Queue("none", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("two", amqp.Table{"x-queue-type": "classic"})
		v.Consume("two")
		v.Consume("two")
		must(t, errOf(v.Channel().QueueDeclare("exclusive", false, false, true, false, nil)))
		ctx := context.Background()
		p := publisher(t, v.URLAs("service", "pw"))
		p.AwaitUsable(ctx)
		got := map[string]int{}
		must(t, p.Consumers(ctx, []string{"gone", "two", "exclusive", "foreign", "none", "gone too"}, func(q string, n, _ int) { got[q] = n }))
		want := "map[exclusive:-1 foreign:-1 gone:-1 gone too:-1 none:0 two:2]"
		if strings.HasPrefix(v.Version, "3.") {
			want = strings.Replace(want, "foreign:-1", "foreign:0", 1)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v, want %s", got, want)
		}
	})
}

// A connection that ends says nothing about a queue: taken for -1, it would end the pause of its retries.
func TestAConnectionClosedByRabbitMQIsNoAnswerAboutAQueue(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		user := "asking-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "", ".*", "")
		v.Queue("q", nil)
		p := publisher(t, v.URLAs(user, "pw"))
		p.AwaitUsable(t.Context())
		many := slices.Repeat([]string{"q"}, 500)
		closed := make(chan error, 1)
		go func() {
			for {
				err := p.Consumers(t.Context(), many, func(_ string, n, _ int) {
					expect.Equal(t, n, 0, "consumers of a queue that has none")
				})
				if err != nil || t.Failed() {
					closed <- err
					return
				}
			}
		}()
		v.CloseConnections(user)
		expect.Err(t, <-closed, wire.ErrNoAnswer, "after RabbitMQ closed the connection")
	})
}

// A refusal ends the channel of the question: on the one that publishes, messages would be sent twice.
func TestAskingForAMissingQueueLeavesThePublishingChannel(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", nil)
		ctx := context.Background()
		p := publisher(t, v.URL())
		const rounds, each = 10, 50
		for range rounds {
			out := make([]wire.Outgoing, each)
			for i := range out {
				out[i] = message("", "q", "", nil)
			}
			answers := p.Send(ctx, out)
			must(t, p.Consumers(ctx, []string{"gone"}, func(string, int, int) {}))
			confirmed(t, "meanwhile", answers(ctx))
		}
		if n := v.Depth("q"); n != rounds*each {
			t.Errorf("%d arrived of %d", n, rounds*each)
		}
	})
}

// Versions before the quarantine declared redrive.intake with another dead-letter exchange, and
// RabbitMQ then refuses ours. The error names the argument and what to do; RabbitMQ does
// not delete a quorum queue only if it is empty, so the commands are two.
func TestAQueueDeclaredOtherwiseSaysWhatToDo(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue(wire.QueueIntake, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(broker.DeliveryLimit), "x-dead-letter-exchange": "redrive.aside"})
		l, err := broker.NewProbe(t.Context(), broker.Config{URL: v.URL(), Name: "test"})
		must(t, err)
		defer l.Close()
		err = l.DeclareAll()
		if !errors.Is(err, wire.ErrDiffers) {
			t.Fatalf("declared all the same: %v", err)
		}
		for _, part := range []string{`"redrive.intake"`, "x-dead-letter-exchange", "redrive.aside", "redrive.quarantine", "rabbitmqctl delete_queue -p '" + v.Name + "' redrive.intake`"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
		var refused *amqp.Error
		if _, err := v.Channel().QueueDelete(wire.QueueIntake, false, true, false); !errors.As(err, &refused) || refused.Code != amqp.NotImplemented {
			t.Errorf("RabbitMQ deletes a quorum queue if it is empty: %v", err)
		}
		v.DeleteQueue(wire.QueueIntake)
		expect.Err(t, l.DeclareAll(), nil, "after it was deleted")
	})
}

var must, errOf = expect.NoError, expect.ErrOf

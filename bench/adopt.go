package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

const (
	deadLetters = "dead-letters" // the work queue dead-letters to it
	errorQueue  = "EasyNetQ_Default_Error_Queue"
	problem     = "no stock"
	canaries    = 10
)

var stack = strings.Repeat("   at Shop.Ship(Order o) in /src/Shop/Ship.cs:line 40\n", 10)

// formats are RabbitMQ's own, and those of frameworks, which publish what failed to an error queue with more
// headers: the tests of internal/retry/formats.go name the sources.
var formats = []struct {
	name, queue string
	headers     amqp.Table
}{
	{name: "x-death", queue: deadLetters},
	{name: "MassTransit", queue: work + "_error", headers: amqp.Table{"MT-Reason": "fault",
		"MT-Fault-ExceptionType": "Shop.NoStock", "MT-Fault-Message": problem, "MT-Fault-StackTrace": stack,
		"MT-Fault-Timestamp": "2026-11-20T10:00:00.1234567Z", "MT-Fault-RetryCount": int32(4)}},
	{name: "NServiceBus", queue: "error", headers: amqp.Table{"NServiceBus.FailedQ": work,
		"NServiceBus.ExceptionInfo.ExceptionType": "Shop.NoStock", "NServiceBus.ExceptionInfo.Message": problem,
		"NServiceBus.ExceptionInfo.StackTrace": stack, "NServiceBus.TimeOfFailure": "2026-11-20 11:00:00:000462 Z"}},
	{name: "Spring AMQP", queue: work + ".dlq", headers: amqp.Table{"x-exception-message": problem,
		"x-exception-stacktrace": stack, "x-original-exchange": "", "x-original-routingKey": work}},
	{name: "EasyNetQ", queue: errorQueue},
	{name: "Rascal", queue: work + "-dead-letter", headers: amqp.Table{"rascal": amqp.Table{"originalQueue": work,
		"originalExchange": "", "originalRoutingKey": work, "error": amqp.Table{"message": problem, "code": "E1"}}}},
}

// adopting is a service and the dead-letter queues that it adopts.
type adopting struct {
	*vhost
	*service
	client    httpapi.Client
	published int
	seen      map[string]int // by number: how often a message came out of RabbitMQ, or is parked
}

// adoption measures how soon the first messages of full dead-letter queues are with their consumer again,
// and how fast adoption is beside a shovel.
func adoption(ctx context.Context, b brokertest.Broker, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	each := *adopt / len(formats) // in each queue; the first has the rest, too
	if each < canaries {
		return fmt.Errorf("-adopt is %d: expected %d for each of %d queues, or more", *adopt, canaries, len(formats))
	}
	v, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer v.close()
	s, err := newService(v, nil)
	if err != nil {
		return err
	}
	a := &adopting{vhost: v, service: s, client: httpapi.Client{Addr: s.listen}, seen: map[string]int{}}
	if err := a.fill(ctx, each); err != nil {
		return err
	}
	var seconds []float64 // until a canary is there
	both, limited := errgroup.WithContext(ctx)
	began := time.Now()
	both.Go(func() error {
		return eachDelivery(limited, v.url, work, func(d amqp.Delivery) (bool, error) {
			seconds = append(seconds, time.Since(began).Seconds())
			a.seen[d.MessageId]++
			return len(seconds) == canaries, d.Ack(false)
		})
	})
	var canary operations.Operation
	both.Go(func() (err error) {
		canary, err = a.replayFirst(limited)
		return err
	})
	if err := both.Wait(); err != nil {
		return err
	}
	_, peak := memory(s.pid())
	if _, err := a.client.Order(ctx, canary.ID, operations.Cancel); err != nil { // the rest is not measured
		return err
	}
	fmt.Printf("from the start of the service to the first canary message at its consumer: %.1f s; "+
		"peak memory of the service: %.0f MiB\n", seconds[0], peak)
	return errors.Join(a.besideShovel(ctx, *adopt), a.account(ctx))
}

// fill declares the queues, and fills them with dead letters, until the management API shows all of them.
func (a *adopting) fill(ctx context.Context, each int) error {
	if err := onChannel(a.url, func(ch *amqp.Channel) error {
		err := declare(ch, work, amqp.Table{"x-queue-type": a.kind, "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": deadLetters})
		for _, f := range formats {
			err = errors.Join(err, declare(ch, f.queue, amqp.Table{"x-queue-type": a.kind}))
		}
		return err
	}); err != nil {
		return err
	}
	err := a.rejectNew(ctx, each+*adopt%len(formats))
	for _, f := range formats[1:] {
		if err == nil {
			err = a.publishNew(ctx, f.queue, each, f.headers)
		}
	}
	if err != nil {
		return err
	}
	for ready := 0; ready != *adopt; {
		all, err := a.manage.QueueStates(ctx)
		if err == nil {
			err = pause(ctx, 100*time.Millisecond)
		}
		if err != nil {
			return err
		}
		ready = 0
		for _, q := range all {
			ready += int(q.Ready)
		}
	}
	return nil
}

// publishNew publishes n more messages, each with its number.
func (a *adopting) publishNew(ctx context.Context, queue string, n int, headers amqp.Table) error {
	first, body := a.published, `"`+strings.Repeat("x", max(0, *size-2))+`"`
	a.published += n
	return publishEach(ctx, a.url, "", queue, n, 0, func(i int) amqp.Publishing {
		p := amqp.Publishing{MessageId: strconv.Itoa(first + i), ContentType: "application/json", Headers: headers,
			DeliveryMode: amqp.Persistent, Body: []byte(body)}
		if queue == errorQueue { // of documents with the messages in them
			p.Body, _ = json.Marshal(map[string]any{"Message": body, "Queue": work, "Exchange": "", "RoutingKey": work,
				"Exception": "Shop.NoStock: " + problem + "\n" + stack, "DateTime": "2026-11-20T10:00:00Z",
				"BasicProperties": map[string]any{"MessageId": p.MessageId, "DeliveryMode": 2}})
			p.MessageId, p.Type = "", "EasyNetQ.SystemMessages.Error, EasyNetQ"
		}
		return p
	})
}

// rejectNew has n more messages rejected by a consumer of the work queue.
func (a *adopting) rejectNew(ctx context.Context, n int) error {
	if err := a.publishNew(ctx, work, n, nil); err != nil {
		return err
	}
	left := n
	return eachDelivery(ctx, a.url, work, func(d amqp.Delivery) (bool, error) {
		if err := d.Reject(false); err != nil {
			return false, err
		}
		if left--; left > 0 {
			return false, nil
		}
		// A channel that closes earlier undoes rejects that 3.10.8 has not sent to the queue.
		_, err := a.untilReady(ctx, deadLetters, n)
		return true, err
	})
}

// untilReady waits until n messages are in a queue, and returns how long that took since it was last seen empty.
func (v *vhost) untilReady(ctx context.Context, queue string, n int) (took time.Duration, err error) {
	return took, onChannel(v.url, func(ch *amqp.Channel) error {
		for began := time.Now(); ; {
			now := time.Now()
			q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			switch {
			case err != nil || q.Messages >= n:
				took = time.Since(began)
				return err
			case q.Messages == 0:
				began = now
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	})
}

// replayFirst replays the first error group with a canary, as a person would, and returns the operation.
func (a *adopting) replayFirst(ctx context.Context) (op operations.Operation, err error) {
	if err := a.start(ctx); err != nil {
		return op, err
	}
	all, err := a.client.DeadLetterQueues(ctx)
	if err != nil {
		return op, err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "format\tqueue\tadopted\tmessages/s\t")
	began, adopted := time.Now(), 0
	for _, q := range all.Queues {
		rate, err := a.adopt(ctx, q.Queue, q.Ready)
		if err != nil {
			return op, err
		}
		for _, f := range formats {
			if f.queue == q.Queue {
				fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t\n", f.name, q.Queue, q.Ready, rate)
			}
		}
		adopted += int(q.Ready)
	}
	fmt.Fprintf(w, "all\t\t%d\t%.0f\t\n", adopted, float64(adopted)/time.Since(began).Seconds())
	if w.Flush(); adopted != *adopt {
		return op, fmt.Errorf("queues with %d messages were found and adopted, not %d", adopted, *adopt)
	}
	page, err := a.client.Groups(ctx, "state:parked", "")
	if err != nil {
		return op, err
	}
	if page.Total == 0 {
		return op, errors.New("the parked messages are in no group")
	}
	first := page.Groups[0]
	if err := a.client.AllowReplays(ctx, first.Queue, ""); err != nil {
		return op, err
	}
	p, err := a.client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "state:parked group:" + first.ID})
	if err != nil {
		return op, err
	}
	return a.client.Start(ctx, p.ID, operations.Start{CanarySize: canaries})
}

// adopt adopts the n messages of a queue, and returns how many a second.
func (a *adopting) adopt(ctx context.Context, queue string, n int64) (rate float64, err error) {
	p, err := a.client.Plan(ctx, operations.PlanRequest{Verb: actions.Adopt, From: queue})
	if err != nil {
		return 0, err
	}
	op, err := a.client.Start(ctx, p.ID, operations.Start{ExpectCount: &n})
	for err == nil && op.Ended == nil {
		if err = pause(ctx, 20*time.Millisecond); err == nil {
			op, err = a.client.Operation(ctx, op.ID)
		}
	}
	if err == nil && (op.State != operations.Finished || op.Done != n) {
		err = fmt.Errorf("%d of %d messages of %s were adopted; %s: %s", op.Done, n, queue, op.State, op.Why)
	}
	if err != nil {
		return 0, err
	}
	return float64(n) / op.Ended.Sub(op.Started).Seconds(), nil
}

// besideShovel compares adoption with a shovel, in turn on a queue with n messages.
func (a *adopting) besideShovel(ctx context.Context, n int) error {
	var adoptions, shovels, ratios []float64
	for round := range *rounds {
		for i := range 2 {
			if err := a.rejectNew(ctx, n); err != nil {
				return err
			}
			if (i+round)%2 == 0 {
				rate, err := a.adopt(ctx, deadLetters, int64(n))
				if err != nil {
					return err
				}
				adoptions = append(adoptions, rate)
				continue
			}
			rate, err := a.shovel(ctx, fmt.Sprint("moved-", round), n)
			if errors.As(err, new(notThere)) {
				fmt.Println("shovel:", err)
				_, err := a.adopt(ctx, deadLetters, int64(n)) // or they would be lost
				return err
			}
			if err != nil {
				return err
			}
			shovels = append(shovels, rate)
		}
		ratios = append(ratios, adoptions[round]/shovels[round])
	}
	fmt.Printf("%d messages from %s, median of %d: adoption %.0f messages/s, shovel into a quorum queue %.0f, "+
		"%.2f ×\n", n, deadLetters, *rounds, median(adoptions), median(shovels), median(ratios))
	return nil
}

// shovel moves n messages to another queue as the button of RabbitMQ's page does, and returns how many a second.
func (a *adopting) shovel(ctx context.Context, to string, n int) (rate float64, err error) {
	if err := onChannel(a.url, func(ch *amqp.Channel) error {
		return declare(ch, to, amqp.Table{"x-queue-type": "quorum"})
	}); err != nil {
		return 0, err
	}
	here := "amqp:///" + a.name
	value := map[string]any{"src-protocol": "amqp091", "src-uri": here, "src-queue": deadLetters,
		"src-prefetch-count": prefetch, "src-delete-after": "queue-length", "ack-mode": "on-confirm",
		"dest-protocol": "amqp091", "dest-uri": here, "dest-queue": to, "dest-add-forward-headers": false}
	path := "parameters/shovel/" + a.name + "/" + to
	err = a.manage.Call(ctx, http.MethodPut, path, map[string]any{"value": value}, nil)
	if err != nil && strings.Contains(err.Error(), "component shovel not found") {
		return 0, notThere("the plugin rabbitmq_shovel is not enabled")
	}
	if err != nil {
		return 0, err
	}
	took, err := a.untilReady(ctx, to, n)
	if err != nil {
		return 0, err
	}
	left := n
	return float64(n) / took.Seconds(), eachDelivery(ctx, a.url, to, func(d amqp.Delivery) (bool, error) {
		left--
		a.seen[d.MessageId]++
		return left == 0, d.Ack(false)
	})
}

// account finds each message that was published exactly once: parked, or out of RabbitMQ.
func (a *adopting) account(ctx context.Context) error {
	r, w := io.Pipe()
	go func() {
		_, err := a.client.Export(ctx, "state:parked", "jsonl", w)
		w.CloseWithError(err)
	}()
	defer r.Close()
	for lines := json.NewDecoder(r); ; {
		var line struct {
			Message struct {
				ID string `json:"message_id"`
			}
		}
		if err := lines.Decode(&line); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		a.seen[line.Message.ID]++
	}
	lost, doubled := 0, 0
	for i := range a.published {
		times := a.seen[strconv.Itoa(i)]
		lost, doubled = lost+max(0, 1-times), doubled+max(0, times-1)
	}
	if others := len(a.seen) + lost - a.published; lost+doubled+others > 0 {
		return fmt.Errorf("%d lost, %d duplicates, %d that were never published", lost, doubled, others)
	}
	return nil
}

// Package redrive consumes RabbitMQ queues with retries: a message whose handler
// fails comes back after a delay that grows, and what keeps failing is parked where
// a person finds it. It needs nothing but RabbitMQ.
//
//	c, err := redrive.NewConsumer(redrive.Config{
//		URL:    "amqp://guest:guest@localhost",
//		Queue:  "orders.created",
//		Policy: policy.Policy{Attempts: 8, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
//		Wait:   redrive.Levels(),
//	})
//	...
//	err = c.Run(ctx, func(ctx context.Context, m *redrive.Message) error {
//		return ship(ctx, m.Body)
//	})
//
// The work queue must exist; NewConsumer and Run make what else is needed, or only
// find it with Config.Verify. A quorum queue is the better work queue.
//
// # What a handler says
//
// A handler says what it wants by its error:
//
//   - nil: the message is done, and acknowledged;
//   - any error, or a panic: it is tried again, as [policy.Policy] says;
//   - [Park]: it is parked at once, since trying again is in vain;
//   - [RetryIn]: it is tried again after that long, as an upstream asked for;
//   - [Discard]: it is acknowledged and gone.
//
// Config.Retry tells by the error alone which ones are tried again. These may be
// wrapped, with %w, like any error.
//
// A handler sees the message as it was first published: exchange, routing key,
// headers and properties are restored at each attempt. Message.Attempt,
// Message.FirstFailed and Message.LastError say what happened since. What a handler
// adds to the headers is there at the next attempt.
//
// # What is promised
//
// A failed message is published to where it waits, RabbitMQ confirms that, and only
// then is it acknowledged. If it cannot be published it stays unacknowledged, and
// that is tried until it works or Run ends; then RabbitMQ delivers it again. So no
// message is lost, and none comes back before its time. A crash between confirm and
// acknowledgement makes a duplicate: it has the same Message.ID, if the publisher
// has set a message id, and the same Message.Attempt.
//
// After the last attempt a message is in the queue redrive.parked, with the error
// in its header x-redrive-error and the reason for parking in x-redrive-parked-for,
// unless the policy discards or forwards it. Moved back from there to its queue by
// hand it begins anew.
//
// # Ways to wait
//
// A [Way] is how messages wait; each has its [Limits], and NewConsumer refuses a
// policy that a way cannot keep. [Levels] suits most. [Fixed], [Dynamic],
// [MessageTTL], [DelayedExchange] and [Binary] are other arrangements of queues,
// [Native] leaves it to RabbitMQ 4.3, and [Service] to the Redrive service, whose
// headers and policies are the same.
//
// # The end
//
// When the context of Run ends it takes no more, what was only prefetched goes back
// untouched, and handlers under way have Config.Shutdown to finish. A lost
// connection is made again for as long as it takes. Run ends by itself only when it
// could not begin, over what a person must mend: a missing queue, right or plugin.
//
// # Around it
//
// [Settler] is for those who keep an amqp091-go loop of their own. Package
// redrivetest tells in tests what would happen to a message and when. Packages
// redriveprom and redriveotel have metrics for Prometheus and traces for
// OpenTelemetry; Config.Log takes a [log/slog.Logger], which never gets a payload.
package redrive

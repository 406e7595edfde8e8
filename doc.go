// Package redrive consumes RabbitMQ queues with retries: a message whose handler fails is retried after a delay that
// grows, and what keeps failing is parked for a person. It needs nothing but RabbitMQ 3.10 or later.
//
//	err := redrive.Consume(ctx, redrive.Config{URLs: []string{"amqp://guest:guest@localhost"}}, redrive.Consumer{
//		Queue:  "orders.created",
//		Policy: policy.Policy{Attempts: 8, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
//		Wait:   redrive.Levels(),
//		Handler: func(ctx context.Context, m *redrive.Message) error {
//			return ship(ctx, m.Body)
//		},
//	})
//
// It consumes until ctx ends. The work queue must exist, and should be a quorum queue. What else
// is needed is declared, or only checked with Config.Verify.
//
// # Several queues
//
// A [Client] serves any number of consumers with two connections, one that consumes and one that publishes:
//
//	client, err := redrive.NewClient(ctx, redrive.Config{URLs: urls})
//	if err != nil {
//		return err // a wrong password, no such virtual host
//	}
//	defer client.Close()
//	go client.Consume(ctx, orders) // each returns when ctx ends, or with its own error
//	go client.Consume(ctx, payments)
//
// # The handler's error
//
//   - nil: the message is acknowledged;
//   - any error, or a panic: it is retried, as [policy.Policy] says;
//   - [Park]: it is parked at once, since no retry can help;
//   - [RetryAfter]: it is retried after that delay, as an upstream asked for;
//   - [ErrDiscard]: it is discarded: acknowledged, and not retried.
//
// They may be wrapped with %w. Consumer.Retry chooses which other errors are retried. A test asserts a
// handler's error with errors.Is and errors.As: the types are [*ParkError] and [*RetryAfterError].
//
// A handler sees the message as it was first published: exchange, routing key, headers and properties are restored at
// each attempt. Message.Attempt, Message.FirstFailed and Message.LastError say what happened since.
//
// [Middleware] wraps handlers. A [Batch] handles several messages at once, each with an outcome of its own.
//
// # What is promised
//
// A failed message is published to where it waits, RabbitMQ confirms that, and only then is it acknowledged. If it
// cannot be published it stays unacknowledged, and that is tried until it works or the consumer ends; then RabbitMQ
// delivers it again. So no message is lost, and none is retried early. A crash between confirm and acknowledgement
// makes a duplicate: it has the same Message.ID, if the publisher has set a message id, and the same Message.Attempt.
//
// After the last attempt a message is in the queue redrive.parked, with the error in its header x-redrive-error and the
// reason for parking in x-redrive-parked-for, unless the policy discards or forwards it. Config.OnParked is called for
// it. When a person moves it from there to its queue, it begins again at attempt 1.
//
// # Ways to wait
//
// A [Way] is where messages wait; each has its [Limits], and a policy that a way cannot
// keep is refused. [Levels] suits most. [Dynamic], [MessageTTL] and [Binary] are other
// arrangements of queues, [DelayedExchange] is a plugin's exchange, [Native] leaves it to
// RabbitMQ 4.3, and [Service] to the Redrive service, whose headers and policies are the same.
//
// # Stopping, and lost connections
//
// When ctx ends, or Close is called, a consumer starts no more attempts, messages that were only
// prefetched are requeued, and handlers have Consumer.Shutdown to finish. A lost connection is
// made again for as long as it takes. An error is returned only for what a person must fix: a
// setting that is not valid, a password, a missing queue, permission or plugin.
//
// # Related packages
//
// A [Settler] is for programs that keep an amqp091-go loop of their own. Package redrivetest follows a message through
// its attempts in tests, without a broker. Packages redriveprom and redriveotel have metrics for Prometheus and traces
// for OpenTelemetry; Config.Log takes a [log/slog.Logger], which never gets a payload.
package redrive

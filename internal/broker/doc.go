// Package broker is the only one that speaks AMQP: it connects and reconnects, consumes dead
// letters, and publishes with confirms. Consumers and publishers have a connection each,
// since an alarm stops RabbitMQ reading from a connection that publishes, and with it the
// acknowledgements on it. Read it in this order:
//
//	link.go          connects, and connects again
//	(tls.go, signin.go, declare.go, topology.go: TLS, refused users, what is declared)
//	batchconsumer.go consumes redrive.intake and redrive.parked, a batch at a time
//	(batcher.go, bytelimit.go, redeclare.go: batches, a bound for their bodies, what
//	was deleted)
//	frames.go        messages that amqp091-go cannot read
//	(headerrepair.go, duplicateheaders.go: their headers)
//	publisher.go     publishes with confirms
//	(worker.go, session.go, writecoalesce.go: a worker for each destination, its channels,
//	and fewer system calls)
//	retryexchange.go the exchange through which a queue's messages are retried
//	subscriber.go    consumes work queues, for the library
//	precondition.go  the remedy where RabbitMQ has something else by that name
//	mover.go         moves messages to another queue, for `redrive move`
//	(movewindow.go, movepublish.go: a window at a time)
//	probe.go         what the doctor asks
//	consumers.go     how many consumers queues have
//	channel.go       questions on a channel of their own
//	majority.go      declarations while a node hangs
//	message.go       deliveries and messages of package wire
package broker

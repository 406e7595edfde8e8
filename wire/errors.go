package wire

import "errors"

// Results of publishing a message that RabbitMQ has not confirmed, or has returned. Test for them
// with errors.Is.
var (
	// ErrUnroutable: the broker received the message and had no queue for it.
	ErrUnroutable = errors.New("no queue is bound there")
	// ErrNacked: the broker refused the message (a full queue that rejects
	// publishes, or an error in a queue). It may take it later.
	ErrNacked = errors.New("the broker refused the message")
	// ErrUnacceptable: the message will never be accepted: its properties do not fit one frame,
	// its body exceeds the broker's limit, or a header has a type that the client cannot send.
	ErrUnacceptable = errors.New("the broker or its client never takes such a message")
	// ErrNoAnswer: there is no answer, since the connection or the context ended first. The
	// message may have arrived or not. Lookups and declarations have this error too.
	ErrNoAnswer = errors.New("the broker has not answered")
	// ErrForbidden: the broker user lacks a permission, or its password is wrong. Declaring and
	// connecting have this error too.
	ErrForbidden = errors.New("permission denied by the broker")
)

// Why the broker cannot be connected to, or something cannot be declared there.
var (
	// ErrQueueGone: the work queue does not exist.
	ErrQueueGone = errors.New("the queue does not exist")
	// ErrExclusive: the queue is another connection's alone, and no other may bind it.
	ErrExclusive = errors.New("the queue is exclusive to another connection")
	// ErrDiffers: an exchange or queue of that name exists with other settings.
	ErrDiffers = errors.New("it exists with other settings")
	// ErrNoType: the broker has no exchange of that type.
	ErrNoType = errors.New("the broker has no such type of exchange: its plugin is missing or not enabled")
	// ErrTLS: TLS with the broker fails: one side refuses the other's certificate, or a file of
	// ours cannot be used.
	ErrTLS = errors.New("TLS")
	// ErrNoVHost: the virtual host of the broker's URL does not exist.
	ErrNoVHost = errors.New("the virtual host does not exist")
)

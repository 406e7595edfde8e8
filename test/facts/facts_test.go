// Package facts_test pins what Redrive relies on in RabbitMQ. A test that fails
// here after an update means that RabbitMQ has changed, and that the design must
// be looked at again, not only the test.
//
// Facts that the model of RabbitMQ (testenv/model) needs are tried on it too. REDRIVE_FACTS_ON=model tries
// them on the model alone, without RabbitMQ.
package facts_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// These tests wait far more than they work.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// since tells whether the broker is of this version or later.
func since(v *vhost, major, minor int) bool {
	var m, n int
	if _, err := fmt.Sscanf(v.Version, "%d.%d", &m, &n); err != nil {
		panic(err)
	}
	return m > major || m == major && n >= minor
}

// deadLetters declares a queue whose dead letters go to another, which is
// declared as well.
func deadLetters(v *vhost, from, to string, args amqp.Table) {
	v.Queue(to, nil)
	all := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
	for k, a := range args {
		all[k] = a
	}
	v.Queue(from, all)
}

var bothTypes = []string{"classic", "quorum"}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused fails unless err is RabbitMQ's, with this code.
func refused(t *testing.T, what string, err error, code int) {
	t.Helper()
	if !isRefused(err, code) {
		t.Errorf("%s: %v, want code %d", what, err, code)
	}
}

func isRefused(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// closes waits for a channel to be closed by RabbitMQ.
func closes(ch *amqp.Channel) <-chan *amqp.Error { return ch.NotifyClose(make(chan *amqp.Error, 1)) }

// held is how many messages a queue holds, those in no consumer's reach too.
func held(t *testing.T, v *vhost, queue string) int {
	t.Helper()
	q, is := v.queue(t, queue)
	if !is {
		t.Fatalf("there is no queue %q", queue)
	}
	return q.messages
}

// gone tells whether a queue does not exist.
func gone(t *testing.T, v *vhost, queue string) bool {
	t.Helper()
	_, is := v.queue(t, queue)
	return !is
}

// deaths are the entries of x-death.
func deaths(t *testing.T, d amqp.Delivery) (entries []amqp.Table) {
	t.Helper()
	all, ok := d.Headers["x-death"].([]any)
	if !ok {
		t.Fatalf("x-death of %q is %v", d.Body, d.Headers["x-death"])
	}
	for _, e := range all {
		entries = append(entries, e.(amqp.Table))
	}
	return entries
}

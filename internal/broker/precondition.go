package broker

import (
	"errors"
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// preconditionRemedy returns the remedy where RabbitMQ refuses to declare an exchange or queue
// of ours, since one of that name has other arguments (406); "" for all other errors.
// RabbitMQ's reason, which the error contains, names the first argument that differs, with both
// values.
func preconditionRemedy(what, name string, err error) string {
	if !errors.Is(err, wire.ErrDiffers) {
		return ""
	}
	if what == "exchange" {
		return "delete the exchange on RabbitMQ's management page, and start the service again, which declares it as it must be"
	}
	// RabbitMQ refuses to delete a quorum queue only if it is empty, so the first command shows
	// whether it is. (TestAQueueDeclaredOtherwiseSaysWhatToDo)
	vhost := vhostOf(err.Error())
	return "another version of Redrive, or another program, declared it: let that empty the queue, stop the consumers whose messages fail meanwhile, and when `rabbitmqctl list_queues -p " + vhost + " name messages` shows 0 for it, run `rabbitmqctl delete_queue -p " + vhost + " " + name + "`; the service then declares it as it must be"
}

// vhostOf returns the virtual host that RabbitMQ's reason names, quoted for a shell.
func vhostOf(reason string) string {
	_, rest, _ := strings.Cut(reason, "in vhost '")
	vhost, _, _ := strings.Cut(rest, "': received")
	return quote(vhost)
}

func quote(vhost string) string { return "'" + strings.ReplaceAll(vhost, "'", `'\''`) + "'" }

// RemoveQuarantined returns a command that shows the first message in quarantine and removes it,
// also one that RabbitMQ delivers to no AMQP client.
func RemoveQuarantined(vhost string) string {
	return "rabbitmqadmin --vhost=" + quote(vhost) + " get queue=" + wire.QueueQuarantine + " ackmode=ack_requeue_false"
}

package broker

import (
	"context"
	"net"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Each delivery is in one batch, in order; a batch is as large as what has arrived, up to a
// bound of messages and bytes, and its tag is that of its last message.
func TestEachDeliveryIsInOneBatch(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	deliveries := make(chan amqp.Delivery, 2000)
	bodies := make([][]byte, 1200)
	for i, size := range map[int]int{3: 7 << 20, 4: 2 << 20, 5: 7 << 20, 6: 9 << 20} {
		bodies[i] = make([]byte, size)
	}
	for i, b := range bodies {
		deliveries <- amqp.Delivery{DeliveryTag: uint64(i + 1), Body: b, CorrelationId: string(rune('0' + i))}
	}
	close(deliveries)
	g := &batcher{deliveries: deliveries, frames: newConsumingConn(client)}
	var got []string
	var sizes []int
	var tags []uint64
	for more := true; more; {
		var batch []wire.Delivery
		var last uint64
		if batch, last, more = g.next(context.Background()); len(batch) == 0 {
			continue
		}
		bytes := 0
		for _, d := range batch {
			got = append(got, d.Message.CorrelationID)
			bytes += len(d.Message.Body)
		}
		if bytes > batchBytes && len(batch) > 1 {
			t.Errorf("a batch of %d messages has %d bytes", len(batch), bytes)
		}
		sizes, tags = append(sizes, len(batch)), append(tags, last)
	}
	for i := range bodies {
		if i >= len(got) || got[i] != string(rune('0'+i)) {
			t.Fatalf("number %d is missing or not in its place", i)
		}
	}
	if len(got) != len(bodies) || !slices.Equal(sizes, []int{4, 1, 1, 1, 512, 512, 169}) || !slices.Equal(tags, []uint64{4, 5, 6, 7, 519, 1031, 1200}) {
		t.Errorf("%d deliveries in batches of %v that end with the tags %v", len(got), sizes, tags)
	}
}

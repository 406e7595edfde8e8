package retry

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// What is known for telling copies stays in a bound, however long a connection lasts,
// however much other replicas store and however many queues there are.
func TestKnownReceiptsAreBounded(t *testing.T) {
	var r receipts
	r.reset(outage{}, true)
	n := uint64(0)
	for range 3 { // what 20 processes write, a batch at a time
		for p := range 20 {
			kept := make([]store.Receipt, store.ReceiptsKept)
			for i := range kept {
				n++
				kept[i] = store.Receipt{ID: uuid.New(), FirstFailed: time.Unix(int64(n), 0), Process: fmt.Sprint(p)}
				binary.BigEndian.PutUint64(kept[i].Fingerprint[:], n)
			}
			r.load(kept)
		}
	}
	if most := r.processes.maxNames * 2 * store.ReceiptsKept; len(r.byContent) > most || len(r.processes.byName) != r.processes.maxNames {
		t.Errorf("%d receipts of other processes are known, want at most %d", len(r.byContent), most)
	}
	for _, c := range []struct{ messages, queues, most int }{{2 * maxIssued, 10, maxIssued}, {3000, 3000, 512}} {
		r.reset(outage{}, true)
		now := time.Now()
		for i := range c.messages {
			d := wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDeadLetters, MessageID: fmt.Sprint(i),
				Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": fmt.Sprint(i % c.queues), "time": now}}}}}
			r.identify(&d, now)
		}
		if len(r.byContent) > c.most || len(r.queues.byName) > c.queues {
			t.Errorf("%d receipts of %d queues are known, want at most %d", len(r.byContent), len(r.queues.byName), c.most)
		}
	}
}

// The receipts of a process that has vanished stay known while another writes many: RabbitMQ
// delivers again what it held up to 31 s later.
func TestKnownReceiptsAreOfEachProcess(t *testing.T) {
	var r receipts
	r.reset(outage{}, true)
	gone := store.Receipt{ID: uuid.New(), Fingerprint: [16]byte{1}, FirstFailed: time.Unix(1, 0), Process: "gone"}
	r.load([]store.Receipt{gone})
	for i := range uint64(10 * store.ReceiptsKept) {
		k := store.Receipt{ID: uuid.New(), FirstFailed: time.Unix(2, 0), Process: "busy"}
		binary.BigEndian.PutUint64(k.Fingerprint[:], 1<<32+i)
		r.load([]store.Receipt{k})
	}
	if k := r.byContent[contentOf(gone.Fingerprint)]; len(k) != 1 || k[0].id != gone.ID {
		t.Errorf("the receipt of the process that vanished is %v", k)
	}
}

// What was issued stays known while thousands of the same queue come, and while a busy
// queue's come: RabbitMQ publishes again late what it has not had confirmed.
func TestKnownReceiptsOutlastABusyQueue(t *testing.T) {
	now := time.Now()
	dead := func(queue string, i int) *wire.Delivery {
		return &wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDeadLetters, MessageID: fmt.Sprint(i),
			Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": queue, "time": now}}}}}
	}
	for name, c := range map[string]struct {
		busy  string
		after int
	}{"of its queue": {"q", maxIssued / 2}, "of another": {"busy", 4 * maxIssued}} {
		var r receipts
		r.reset(outage{}, true)
		first := r.identify(dead("q", 0), now)
		for i := range c.after {
			r.identify(dead(c.busy, i+1), now)
		}
		if again := r.identify(dead("q", 0), now); again.id != first.id {
			t.Errorf("%s: after %d others a copy has another id", name, c.after)
		}
	}
}

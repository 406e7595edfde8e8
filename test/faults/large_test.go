package faults_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// A service has a large body some times in memory: as RabbitMQ sends it, as it is
// written, and as it is read and published. docs/explanation/speed.md states the bound, for
// any number of them: 270 MiB and ten times the largest body; here, where nothing else is under
// way, 160 MiB.
func TestLargeBodiesTakeBoundedMemory(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			takesBoundedMemory(t, v, newProcess(t, v.ServiceURL(brokertest.Works("orders"))))
		})
	})
	t.Run("Redis", func(t *testing.T) {
		eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
			takesBoundedMemory(t, v, replicas(t, v, redisnode.New(t, o).URL(), synced, longLease)[0])
		})
	})
}

func takesBoundedMemory(t *testing.T, v *brokertest.VHost, p *process) {
	const messages = 4
	size := 48 << 20
	if v.Since4() {
		size = 15 << 20 // RabbitMQ 4 takes 16 MiB
	}
	l := newTally(t, v, "orders")
	p.start()
	p.waitReady()
	l.publishLarge(messages, size)
	consuming(t, l)
	l.awaitAcknowledged(2 * acknowledgedWithin)
	// The second is red where garbage waits for Go's default pace (578 to 677 MiB of 536).
	most := min(160+10*size>>20, 200+7*size>>20)
	if is := p.peakMemory(); is > most {
		t.Errorf("%d bodies of %d MiB took %d MiB, more than %d", messages, size>>20, is, most)
	} else {
		t.Logf("%d bodies of %d MiB took %d MiB", messages, size>>20, is)
	}
	l.account()
}

// publishLarge publishes n messages of so many bytes that do not compress, one at a time.
func (t *tally) publishLarge(n, size int) {
	t.test.Helper()
	ch := t.v.Channel()
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		t.test.Fatal(err)
	}
	body := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	for i := range n {
		_, _ = random.Read(body)
		id := fmt.Sprintf("large-%d", i)
		t.mu.Lock()
		t.bodies[id] = sha256.Sum256(body)
		t.mu.Unlock()
		c, err := ch.PublishWithDeferredConfirm("", t.queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: 2, Body: body, Headers: amqp.Table{"n": id, "of": t.v.Name}})
		if err != nil || !c.Wait() {
			t.test.Fatalf("RabbitMQ did not confirm a message of the test's own: %v", err)
		}
	}
}

// peakMemory is the most that the service had resident, in MiB.
func (p *process) peakMemory() (mib int) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			if _, err := fmt.Sscan(rest, &mib); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	return mib >> 10
}

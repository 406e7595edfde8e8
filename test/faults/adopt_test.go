package faults_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// A dead-letter queue that is adopted while the service is killed again and again is adopted once: each
// message is parked, and none twice, also where several are equal.
func TestKillingTheServiceWhileItAdopts(t *testing.T) {
	t.Parallel()
	const kills, first, each = 12, 6000, 100
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"classic", "quorum"} {
			t.Run(kind, func(t *testing.T) {
				queue := kind + ".dlq"
				v.Queue(queue, amqp.Table{"x-queue-type": kind})
				works := brokertest.Works("orders")
				p := newProcess(t, v.ServiceURL(works))
				rights := permissions.Adopting(works, "*.dlq")
				v.Give(v.ServiceUser(), rights)
				p.start()
				p.waitReady()
				want := map[string]int{}
				publish := func(n int) {
					ch := v.Channel()
					defer ch.Close()
					if err := ch.Confirm(false); err != nil {
						t.Fatal(err)
					}
					var last *amqp.DeferredConfirmation
					for i := range n {
						m := amqp.Publishing{DeliveryMode: 2, Body: fmt.Append(nil, "equal ", len(want)/50)}
						if i%4 != 0 {
							m.MessageId = fmt.Sprint(kind, " ", len(want))
							m.Body = []byte(m.MessageId)
						}
						want[string(m.Body)]++
						var err error
						if last, err = ch.PublishWithDeferredConfirm("", queue, true, false, m); err != nil {
							t.Fatal(err)
						}
					}
					last.Wait()
				}
				publish(first)
				p.cli("adopt", queue, "--follow", "--yes")
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				for range kills {
					<-time.After(time.Duration(random.IntN(500)) * time.Millisecond)
					p.kill()
					publish(each)
					p.start()
					p.waitReady()
				}
				brokertest.EventuallyWithin(t, 2*time.Minute, "the queue is adopted", func() bool {
					var all struct {
						Adoptions []struct{ Adopted int }
					}
					if err := json.Unmarshal([]byte(p.cli("adopt", "--list", "--output", "json")), &all); err != nil {
						t.Fatal(err)
					}
					return all.Adoptions[0].Adopted >= first+kills*each
				})
				if err := p.term(); err != nil { // what is parked is acknowledged
					t.Errorf("after SIGTERM: %v", err)
				}
				if n := v.Depth(queue); n != 0 {
					t.Errorf("%d came back", n)
				}
				p.start()
				p.waitReady()
				lost, doubled := 0, 0
				got := parkedBodies(t, p)
				for id, n := range want {
					lost, doubled = lost+max(n-got[id], 0), doubled+max(got[id]-n, 0)
				}
				if lost > 0 || doubled > 0 || len(got) != len(want) {
					t.Errorf("%d messages are lost and %d doubled of %d different ones; %d different ones are parked", lost, doubled, len(want), len(got))
				}
				t.Log(p.cli("ledger", "--recount"))
				p.kill()
			})
		}
	})
}

// parkedBodies counts what is parked, by its body.
func parkedBodies(t *testing.T, p *process) map[string]int {
	t.Helper()
	got := map[string]int{}
	for line := range strings.Lines(p.cli("export", "state:parked")) {
		var r struct {
			Message struct {
				Body []byte `json:"body"`
			} `json:"message"`
		}
		if !strings.HasPrefix(line, "{") { // how many there are
			continue
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		got[string(r.Message.Body)]++
	}
	return got
}

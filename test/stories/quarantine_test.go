package stories_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/quarantine"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// A message whose dead letter RabbitMQ 3.10 itself cannot deliver (it ends each
// connection that consumes it) is out of the way of all others within seconds,
// and a person is notified. RabbitMQ 4 can deliver it, and it comes back.
func TestWhatRabbitMQCannotDeliverIsQuarantined(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		work := consume(t, v, "work")
		culprit := amqp.Table{"x-death": []any{amqp.Table{"queue": "work", "reason": "rejected", "exchange": "", "count": 1.5,
			"routing-keys": []any{"work"}, "time": time.Unix(1_700_000_000, 0)}}}
		n := 0
		ids := map[string]any{}
		round := func(many, culprits int) {
			t.Helper()
			own := v.Channel()
			due := map[string]bool{} // to come back
			for i := range many {
				n++
				p := amqp.Publishing{Body: fmt.Append(nil, "message ", n)}
				if i%(many/culprits) == many/culprits/2 {
					p.Headers, p.Body = culprit, fmt.Append(nil, "culprit ", n)
				}
				publish(t, own, "", "work", p)
				if v.Since4() || p.Headers == nil {
					due[string(p.Body)] = true
				}
			}
			for len(due) > 0 {
				d := work.next()
				if d.Headers[wire.HeaderAttempt] == nil {
					reject(t, d)
					continue
				}
				body, id := string(d.Body), d.Headers[wire.HeaderID]
				// RabbitMQ's crash is one: what was taken and not acknowledged comes twice.
				if ids[body] == nil && !due[body] || ids[body] != nil && ids[body] != id || d.Headers[wire.HeaderAttempt] != int64(1) {
					t.Errorf("%q came back with attempt %v and id %v, before with %v", body, d.Headers[wire.HeaderAttempt], id, ids[body])
				}
				ids[body] = id
				delete(due, body)
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
			}
		}
		quarantined := func(want int) {
			t.Helper()
			if v.Since4() {
				want = 0
			}
			brokertest.Eventually(t, fmt.Sprint(want, " are in quarantine, and the service says so"), func() bool {
				notices := strings.Join(s.Notices(), "\n")
				return v.Depth(wire.QueueQuarantine) == want && (want == 0 && notices == "" || strings.Contains(notices, fmt.Sprint("redrive.quarantine: ", want)))
			})
			s.ready(t)
		}
		round(200, 1)
		quarantined(1)
		v.CloseConnections(v.ServiceUser())
		round(60, 3)
		quarantined(4)
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		s = startAt(t, v, soon, s.Data).ready(t)
		quarantined(4)
		round(20, 1)
		quarantined(5)
		v.Must("DELETE", "queues/"+v.Name+"/"+wire.QueueQuarantine+"/contents", nil)
		quarantined(0)
	})
}

// What is in quarantine can be seen without being touched, replayed and exported, also what
// RabbitMQ 3.10 gives to no AMQP client.
func TestTheQuarantineIsListedReplayedAndExported(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := servertest.Config(t, v, soon)
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		yaml := fmt.Sprintf("broker: {url: %q, management: %q}\n%s\n", c.Broker.URL, v.Management, soon)
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		redrive := func(args ...string) (code int, out, said string) {
			var o, e bytes.Buffer
			code = cli.Run(t.Context(), append([]string{"quarantine", args[0], "--config", file}, args[1:]...), &o, &e, cli.Build{Version: "test"})
			return code, o.String(), e.String()
		}
		deadLettered(v, "work", "quorum")
		if err := run(t, c).ready(t).Stop(); err != nil { // it has declared what it needs
			t.Fatal(err)
		}
		work := consume(t, v, "work")
		bodies := []string{"one", "two", "culprit", "three"}
		for _, body := range bodies {
			p := amqp.Publishing{Body: []byte(body), Headers: amqp.Table{"kept": int32(7)}, MessageId: "id of " + body}
			if body == "culprit" {
				p.Headers["x-death"] = []any{amqp.Table{"queue": "work", "reason": "rejected", "exchange": "", "count": 1.5,
					"routing-keys": []any{"work"}, "time": time.Unix(1_700_000_000, 0)}}
			}
			publish(t, v.Channel(), "", "work", p)
			reject(t, work.next())
		}
		quarantineAll(t, v, len(bodies))

		var listed []quarantine.Message
		for range 2 {
			code, out, said := redrive("list", "-o", "json")
			if err := json.Unmarshal([]byte(out), &listed); code != 0 || err != nil || len(listed) != len(bodies) {
				t.Fatalf("exit %d, %v, %s%s", code, err, out, said)
			}
			sizes := 0
			for i, m := range listed {
				if m.Queue != "work" || m.Reason != "rejected" || m.Attempt != 1 || m.RoutingKey != "work" || m.ByAPI == v.Since4() || m.Claimed == v.Since4() || v.Since4() && m.Size != len(bodies[i]) {
					t.Errorf("%d is %+v", i, m)
				}
				sizes += m.Size
			}
			if sizes != len(strings.Join(bodies, "")) {
				t.Errorf("listed are %+v", listed)
			}
			brokertest.Eventually(t, "all are there still", func() bool { return v.Depth(wire.QueueQuarantine) == len(bodies) })
		}
		if code, out, said := redrive("replay", "--dry-run"); code != 0 || strings.Count(out, "rejected") != len(bodies) || strings.Contains(out, "work (claimed)") == v.Since4() {
			t.Errorf("exit %d, %s%s", code, out, said)
		}
		brokertest.Eventually(t, "all are there still", func() bool { return v.Depth(wire.QueueQuarantine) == len(bodies) })
		exported := filepath.Join(t.TempDir(), "exported.jsonl")
		if code, out, said := redrive("export", exported, "--limit", "1"); code != 0 {
			t.Fatalf("exit %d, %s%s", code, out, said)
		}
		if text, err := os.ReadFile(exported); err != nil || strings.Contains(string(text), "its headers claim") == v.Since4() {
			t.Errorf("exported is %s, %v", text, err)
		}
		s := run(t, c).ready(t)
		lines, err := os.Open(exported)
		if err != nil {
			t.Fatal(err)
		}
		defer lines.Close()
		if done, err := s.Client.Import(t.Context(), lines, false); err != nil || done.Queues["work"] != 1 {
			t.Errorf("the export is imported as %+v, %v", done, err)
		}
		brokertest.Eventually(t, "the service says so", func() bool {
			return strings.Contains(strings.Join(s.Notices(), "\n"), "redrive quarantine list")
		})
		replay := []string{"replay", "--yes"}
		if !v.Since4() { // there a publisher can forge the queue
			for _, args := range [][]string{replay, {"replay"}} {
				if code, out, said := redrive(args...); code != cli.ExitUsage || !strings.Contains(said, "give --queue") || v.Depth(wire.QueueQuarantine) != 3 {
					t.Errorf("%q: exit %d, %s%s", args, code, out, said)
				}
			}
			replay = append(replay, "--queue", "work")
		}
		if code, out, said := redrive(replay...); code != 0 || !strings.Contains(out, "3 messages are replayed") || strings.Contains(said, "management API") && v.Since4() {
			t.Fatalf("exit %d, %s%s", code, out, said)
		}
		// On 3.10 the management API may turn their order when it puts them back.
		left := map[string]bool{}
		for _, body := range bodies {
			left[body] = true
		}
		for range bodies[1:] {
			d := work.next()
			if !left[string(d.Body)] || d.Headers[wire.HeaderAttempt] != int64(1) || d.Headers["x-death"] != nil || d.Headers["kept"] == nil || d.MessageId != "id of "+string(d.Body) || d.RoutingKey != "work" {
				t.Errorf("%q came back as %+v", d.Body, d)
			}
			delete(left, string(d.Body))
		}
		brokertest.Eventually(t, "nothing is in quarantine", func() bool { return v.Depth(wire.QueueQuarantine) == 0 && len(s.Notices()) == 0 })
		if n := s.Replay(t, ""); n != 1 {
			t.Errorf("%d imported messages", n)
		}
		if d := work.next(); !left[string(d.Body)] {
			t.Errorf("%q came back, and not %v", d.Body, left)
		}
		work.none(300 * time.Millisecond)
	})
}

// quarantineAll uses up the delivery limit of all that is in the intake, while no service
// consumes it, as a small one of a policy's.
func quarantineAll(t *testing.T, v *brokertest.VHost, n int) {
	t.Helper()
	v.Policy("small", `^redrive\.intake$`, 0, map[string]any{"delivery-limit": 2})
	brokertest.Eventually(t, "all are in quarantine", func() bool {
		ch, err := v.Dial().Channel()
		if err != nil {
			return false
		}
		if d, ok, err := ch.Get(wire.QueueIntake, false); ok && err == nil {
			_ = d.Reject(true)
		}
		_ = ch.Close()
		return v.Depth(wire.QueueQuarantine) == n
	})
	v.Must("DELETE", "policies/"+v.Name+"/small", nil)
}

// Each look counts as a delivery: where that could use up a limit, nothing is looked at.
func TestTheQuarantineIsNotListedBelowASmallDeliveryLimit(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configured(t, v, soon, t.TempDir())
		if err := run(t, c).ready(t).Stop(); err != nil {
			t.Fatal(err)
		}
		publish(t, v.Channel(), "", wire.QueueQuarantine, amqp.Publishing{Body: []byte("m"), DeliveryMode: amqp.Persistent})
		v.Policy("everything", ".*", 0, map[string]any{"delivery-limit": 1})
		q := &quarantine.Quarantine{Broker: broker.Config{URL: c.Broker.URL}, API: v.API()}
		brokertest.Eventually(t, "it is refused", func() bool { return errors.Is(q.CheckLimit(t.Context()), quarantine.ErrLimit) })
		v.Must("DELETE", "policies/"+v.Name+"/everything", nil)
		brokertest.Eventually(t, "it is not", func() bool { return q.CheckLimit(t.Context()) == nil })
		for range 3 {
			if all, total, err := q.List(t.Context(), 10); err != nil || len(all) != 1 || total != 1 {
				t.Fatalf("%v, %d, %v", all, total, err)
			}
			brokertest.Eventually(t, "it is there", func() bool { return v.Depth(wire.QueueQuarantine) == 1 })
		}
	})
}

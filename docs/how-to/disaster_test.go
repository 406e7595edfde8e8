package howto_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// Each scene of the page, on real servers, with the page's commands.
func TestWhenSomethingIsLost(t *testing.T) {
	page, program := scriptOf(t, "disaster.md"), build(t)
	each := func(name, yaml string, test func(*scene)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) { test(page.scene(t, v, program, yaml)) })
		})
	}
	const parks = "policies: [{name: orders, queues: [orders], attempts: 1}]"
	each("the wrong messages", parks, theWrongMessages)
	each("discarded by mistake", parks, discardedByMistake)
	each("the disk, in part", parks, theDiskInPart)
	each("the disk, whole", parks, theWholeDisk)
	each("redrive is down", parks, redriveIsDown)
	each("redis", parks, redisIsLost)
	t.Run("rabbitmq", func(t *testing.T) {
		t.Parallel()
		brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
			rabbitMQIsLost(page.scene(t, v, program, "policies: [{name: all, queues: [orders, invoices], attempts: 5, backoff: {fixed: 1s}, jitter: none}]"), n)
		})
	})
}

// serve starts the service of a scene, in its own folder or another.
func (s *scene) serve(dir string) {
	s.Helper()
	text, err := os.ReadFile(s.config)
	if err != nil {
		s.Fatal(err)
	}
	c := servertest.Config(s.T, s.v, string(text))
	if dir != "" {
		c.Store.Disk = dir
	}
	s.service = servertest.Run(s.T, c).Ready(s.T)
}

func (s *scene) stop() {
	s.Helper()
	if err := s.service.Stop(); err != nil {
		s.Fatal(err)
	}
}

// fail has messages fail in a queue that dead-letters to Redrive, and its consumer go.
func (s *scene) fail(queue string, n int) {
	s.Helper()
	work := s.v.Consume(queue)
	for i := range n {
		s.v.Publish("", queue, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, "%s %d", queue, i)})
		work.Reject()
	}
	if err := work.Channel.Close(); err != nil {
		s.Fatal(err)
	}
}

// count is how many messages a query finds.
func (s *scene) count(query string) int {
	s.Helper()
	n, err := s.service.Client.Count(context.Background(), query)
	if err != nil {
		s.Fatal(err)
	}
	return int(n.Count)
}

var enrolled = amqp.Table{"x-dead-letter-exchange": wire.ExchangeDeadLetters}

const anID = "0198f0a0-0000-7000-8000-000000000001"

func theWrongMessages(s *scene) {
	s.serve("")
	s.v.Queue("orders", enrolled)
	s.fail("orders", 20)
	s.service.WaitParked(s.T, 20)
	fields := strings.Fields(run(s.T, s.v, s.program, "replay", "queue:orders", "--rate", "2", "--yes", "--detach", "--address", s.service.Client.Addr))
	id := fields[len(fields)-1]
	brokertest.Eventually(s, "some are replayed", func() bool { return s.count("queue:orders state:waiting") >= 2 })
	s.has(s.run("redrive ops list"), id)
	s.run("redrive ops cancel "+anID, anID, id)
	waiting := s.count("queue:orders state:waiting")
	if parked := s.count("queue:orders state:parked"); parked == 0 || parked+waiting != 20 {
		s.Fatalf("after it was cancelled %d are parked and %d wait", parked, waiting)
	}
	s.run("redrive pause orders --reason 'replayed by mistake'")
	s.has(s.run("redrive discard 'queue:orders state:waiting' --dry-run"), fmt.Sprint(waiting))
	if now := s.count("queue:orders state:waiting"); now != waiting {
		s.Errorf("%d waited, and %d do after a dry run", waiting, now)
	}
	// What RabbitMQ has confirmed is known by its id.
	work := s.v.Consume("orders")
	s.run("redrive resume QUEUE", "QUEUE", "orders")
	results := s.run("redrive ops show "+anID, anID, id)
	for range waiting {
		d := work.Next()
		s.has(results, d.Headers[wire.HeaderID].(string))
		if err := d.Ack(false); err != nil {
			s.Fatal(err)
		}
	}
}

func discardedByMistake(s *scene) {
	s.serve("")
	s.v.Queue("orders", enrolled)
	s.fail("orders", 3)
	s.service.WaitParked(s.T, 3)
	run(s.T, s.v, s.program, "discard", "queue:orders", "--yes", "--address", s.service.Client.Addr)
	s.service.WaitParked(s.T, 0)
	s.has(s.run("redrive messages count 'state:discarded queue:orders'"), "3")
	s.run("redrive restore 'state:discarded queue:orders'")
	s.service.WaitParked(s.T, 3)
}

func theDiskInPart(s *scene) {
	s.serve("")
	s.v.Queue("orders", enrolled)
	s.fail("orders", 3)
	s.service.WaitParked(s.T, 3)
	snapshot := filepath.Join(s.TempDir(), "snapshot")
	run(s.T, s.v, s.program, "snapshot", snapshot, "--address", s.service.Client.Addr)
	s.stop()
	s.run("redrive store check", snapshot)
	manifests, err := filepath.Glob(filepath.Join(s.service.Data, "MANIFEST-*"))
	if err != nil || len(manifests) == 0 {
		s.Fatalf("the folder has %q, %v", manifests, err)
	}
	for _, file := range manifests {
		if err := os.Remove(file); err != nil {
			s.Fatal(err)
		}
	}
	saved := filepath.Join(s.TempDir(), "saved")
	if out, err := s.try("redrive store salvage DIR --to NEWDIR", "NEWDIR", saved, "DIR", s.service.Data); err != nil && !strings.Contains(err.Error(), "exit status 3") {
		s.Fatalf("%v\n%s", err, out)
	}
	s.serve(saved)
	s.service.WaitParked(s.T, 3)
}

func theWholeDisk(s *scene) {
	s.serve("")
	s.v.Queue("orders", nil)
	run(s.T, s.v, s.program, "enroll", "orders", "--yes")
	policy(s.T, s.v, "redrive.orders")
	s.fail("orders", 3)
	s.service.WaitParked(s.T, 3)
	s.stop()
	s.fail("orders", 2) // to the intake
	s.serve(s.TempDir())
	s.service.WaitParked(s.T, 2)
	s.fail("orders", 1) // it is still enrolled
	s.service.WaitParked(s.T, 3)
	out := run(s.T, s.v, s.program, "ledger", "-o", "json", "--address", s.service.Client.Addr)
	var ledger struct{ Total struct{ In int } }
	if err := json.Unmarshal([]byte(out), &ledger); err != nil || ledger.Total.In != 3 {
		s.Errorf("the ledger begins with what came since: %v\n%s", err, out)
	}
}

func redriveIsDown(s *scene) {
	s.v.Queue("orders", nil)
	s.v.Policy("theirs", "^orders$", 0, map[string]any{"max-length": 1000})
	policy(s.T, s.v, "theirs")
	s.serve("")
	run(s.T, s.v, s.program, "enroll", "orders", "--yes")
	policy(s.T, s.v, "redrive.orders")
	s.fail("orders", 2)
	s.service.WaitParked(s.T, 2)
	s.stop()
	s.fail("orders", 1)
	s.run("redrive unenroll QUEUE", "QUEUE", "orders")
	policy(s.T, s.v, "theirs")
	brokertest.Eventually(s, "it is in the intake", func() bool { return s.v.Messages(wire.QueueIntake) == 1 })
	elsewhere := filepath.Join(s.TempDir(), "copy")
	if err := os.CopyFS(elsewhere, os.DirFS(s.service.Data)); err != nil {
		s.Fatal(err)
	}
	s.serve(elsewhere)
	s.service.WaitParked(s.T, 3)
}

func redisIsLost(s *scene) {
	redis := redisnode.New(s.T, redisnode.Options{})
	text, err := os.ReadFile(s.config)
	if err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(s.config, fmt.Appendf(text, "\nstore: {redis: {url: %s}}\n", redis.URL()), 0o600); err != nil {
		s.Fatal(err)
	}
	s.serve("")
	s.v.Queue("orders", enrolled)
	s.fail("orders", 2)
	s.service.WaitParked(s.T, 2)

	// It comes back with its data, and the service continues.
	redis.Kill()
	s.fail("orders", 1)
	brokertest.Eventually(s, "the service says that Redis is away", func() bool { return len(s.service.Problems()) > 0 })
	if err := redis.Restart(context.Background()); err != nil {
		s.Fatal(err)
	}
	s.service.WaitParked(s.T, 3)
	s.service.Ready(s.T)

	// It comes back empty: nothing is stored, until the service is started again.
	if _, err := redis.Do(context.Background(), "FLUSHALL"); err != nil {
		s.Fatal(err)
	}
	brokertest.Eventually(s, "the service says that Redis is empty", func() bool { return len(s.service.Problems()) > 0 })
	s.fail("orders", 1)
	brokertest.Eventually(s, "it stays in the intake", func() bool { return s.v.Messages(wire.QueueIntake) == 1 })
	s.stop()
	s.serve("")
	s.service.WaitParked(s.T, 1)
}

// RabbitMQ on an empty disk: the invoices are paused, their queue is declared again and enrolled;
// the orders are retried before their queue is there.
func rabbitMQIsLost(s *scene, n *rabbitnode.Node) {
	s.serve("")
	for _, queue := range []string{"orders", "invoices"} {
		s.v.Queue(queue, nil)
		run(s.T, s.v, s.program, "enroll", queue, "--yes")
	}
	for _, queue := range []string{"orders", "invoices"} {
		brokertest.Eventually(s, queue+" is enrolled", func() bool {
			q, err := s.v.API().Queue(context.Background(), queue)
			return err == nil && q.Policy == "redrive."+queue
		})
		s.run("redrive pause QUEUE", "QUEUE", queue)
		s.fail(queue, 1)
	}
	brokertest.Eventually(s, "both wait", func() bool { return s.count("state:waiting") == 2 })
	var definitions map[string]json.RawMessage
	if err := s.v.API().Call(context.Background(), "GET", "definitions", nil, &definitions); err != nil {
		s.Fatal(err)
	}
	if _, err := n.Shell(context.Background(), "rabbitmqctl stop_app && rabbitmqctl reset && rabbitmqctl start_app"); err != nil {
		s.Fatal(err)
	}
	// The users first: the service needs no more for its own.
	users := map[string]json.RawMessage{}
	for _, key := range []string{"users", "vhosts", "permissions", "topic_permissions"} {
		users[key] = definitions[key]
	}
	brokertest.Eventually(s, "RabbitMQ takes definitions", func() bool {
		return s.v.API().Call(context.Background(), "POST", "definitions", users, nil) == nil
	})
	brokertest.Eventually(s, "the service has declared its own", func() bool {
		_, err := s.v.API().Queue(context.Background(), wire.QueueIntake)
		return err == nil
	})
	s.service.Ready(s.T)
	s.has(s.run("redrive permissions"), "set_permissions")
	if got := s.count("state:waiting"); got != 2 {
		s.Errorf("%d messages are kept", got)
	}
	s.v.Queue("invoices", nil)
	s.run("redrive enroll QUEUE", "QUEUE", "invoices")
	s.looks("redrive doctor")
	work := s.v.Consume("invoices")
	s.run("redrive resume QUEUE", "QUEUE", "invoices")
	work.Take("invoices 0")

	// Its queue is not there.
	s.run("redrive resume QUEUE", "QUEUE", "orders")
	if parked := s.service.WaitParked(s.T, 1); !strings.Contains(parked[0].ParkedFor, "does not exist") {
		s.Errorf("it is parked for %q", parked[0].ParkedFor)
	}
	s.v.Queue("orders", nil)
	s.run("redrive replay 'queue:orders state:parked'")
	s.v.Consume("orders").Take("orders 0")
}

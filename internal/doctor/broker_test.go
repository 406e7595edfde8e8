package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}

const everyQueue = `policies: [{name: p, queues: ["*"], attempts: 8, backoff: {fixed: 1m}}]`

func configFor(t *testing.T, v *brokertest.VHost, yaml string) *config.Config {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(yaml))
	must(t, err)
	c.Broker.URL, c.Broker.Management, c.Store.Disk = v.URL(), v.Management, t.TempDir()
	return c
}

func gather(t *testing.T, c *config.Config) *Scene {
	t.Helper()
	// The tests' RabbitMQ tells more often how it is.
	s, err := Gather(context.Background(), Options{Config: c, Standing: 3 * time.Second})
	must(t, err)
	return s
}

func check(name string) Check {
	for _, c := range Checks {
		if c.Name == name {
			return c
		}
	}
	panic("no check " + name)
}

// ills are what a check finds that is not ok, a line each.
func ills(s *Scene, name string) string {
	var lines []string
	for _, f := range found(s, name) {
		lines = append(lines, line(f)+" $ "+strings.Join(f.Commands, " $ "))
	}
	return strings.Join(lines, "\n")
}

// found are the findings of a check that are not ok. Each command in them is one that a test runs.
func found(s *Scene, name string) []Finding {
	c := check(name)
	all := slices.DeleteFunc(c.make(s), func(f Finding) bool { return f.Status == OK })
	for _, f := range all {
		for _, command := range f.Commands {
			if is := name + ": " + verb(command); !slices.Contains(notRun, is) &&
				!slices.ContainsFunc(faults, func(f fault) bool { return slices.Contains(f.runs(), is) }) {
				panic("no test runs the command of " + is)
			}
		}
	}
	return all
}

func line(f Finding) string { return strings.TrimSpace(string(f.Status)+" "+f.Queue) + ": " + f.What }

// finds waits until a check says all of the wants, and nothing when there are none:
// what the management API knows of a queue is some seconds old.
func finds(t *testing.T, c *config.Config, name string, wants ...string) {
	t.Helper()
	var said string
	brokertest.Eventually(&saying{t, func() string { return name + " says: " + said }}, "the check "+name+" says "+strings.Join(wants, " and "), func() bool {
		said = ills(gather(t, c), name)
		is := len(wants) > 0 || said == ""
		for _, want := range wants {
			is = is && strings.Contains(said, want)
		}
		if !is {
			<-time.After(200 * time.Millisecond) // each look is a dozen requests
		}
		return is
	})
}

// saying adds what was said last to a failure.
type saying struct {
	testing.TB
	last func() string
}

func (s *saying) Fatal(args ...any) {
	s.TB.Helper()
	s.TB.Fatal(append(args, "\n"+s.last())...)
}

func mendAll(t *testing.T, c *config.Config) {
	t.Helper()
	r := Examine(gather(t, c))
	must(t, expect.ErrOf(r.Plan().Apply(context.Background(), c)))
}

// deleted does what a command with curl says.
func deleted(t *testing.T, v *brokertest.VHost, said string) {
	t.Helper()
	_, path, ok := strings.Cut(said, "/api/")
	if !ok {
		t.Fatalf("no command in %q", said)
	}
	path, _, _ = strings.Cut(path, " ")
	path = strings.TrimSuffix(path, "'")
	v.Must(http.MethodDelete, path, nil)
}

var must, errOf = expect.NoError, expect.ErrOf

// A virtual host that has everything is well; each check finds what is then made
// wrong, and is well again when it is repaired.
func TestWhatTheServiceDeclares(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, everyQueue)
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive does not exist", "redrive doctor --fix")
		finds(t, c, "intake", "wrong: the queue redrive.intake does not exist")
		mendAll(t, c)
		for _, name := range []string{"connection", "dead-letter-exchange", "intake", "foreign-policies", "quarantine", "another-service", "reports", "parked-in-rabbitmq", "clock", "sizes", "transport", "guest", "alarms", "disk-room", "store-room", "permissions"} {
			finds(t, c, name)
		}
		if !v.Since4() {
			finds(t, c, "rabbitmq-version", "warning: RabbitMQ "+v.Version)
		} else {
			finds(t, c, "rabbitmq-version")
		}

		ch := v.Channel()
		v.Publish("", wire.QueueQuarantine, amqp.Publishing{})
		finds(t, c, "quarantine", "messages in redrive.quarantine: 1", "rabbitmqadmin", "ackmode=ack_requeue_false")
		for range 2 {
			v.Consume(wire.QueueIntake)
		}
		finds(t, c, "another-service", "wrong: redrive.intake has 2 consumers", "rabbitmqctl list_consumers")
		v.Publish("", wire.QueueParked, amqp.Publishing{})
		finds(t, c, "parked-in-rabbitmq", "messages in redrive.parked: 1")

		v.Queue("copies", nil)
		must(t, ch.QueueBind("copies", "", wire.ExchangeDeadLetters, false, nil))
		finds(t, c, "dead-letter-exchange", "warning: the exchange redrive also leads to the queue copies", "curl -u guest -X DELETE")
		deleted(t, v, ills(gather(t, c), "dead-letter-exchange"))
		finds(t, c, "dead-letter-exchange")
		must(t, ch.QueueUnbind(wire.QueueIntake, "", wire.ExchangeDeadLetters, nil))
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive is not bound to redrive.intake")
		mendAll(t, c)
		finds(t, c, "dead-letter-exchange")
		must(t, ch.ExchangeDelete(wire.ExchangeDeadLetters, false, false))
		must(t, ch.ExchangeDeclare(wire.ExchangeDeadLetters, "fanout", true, false, false, false, nil))
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive is not internal", "not bound")

		v.Policy("all", ".*", 1, map[string]any{"message-ttl": 60000})
		finds(t, c, "foreign-policies", "wrong: a RabbitMQ policy (all) puts message-ttl: 60000 on our queue redrive.intake and 2 more", `'^(?!redrive(\.|$)).*?(?:.*)' '{"message-ttl":60000}' --priority 1 --apply-to queues`)
		v.Policy("all", `^(?!redrive(\.|$)).*?(?:.*)`, 1, map[string]any{"message-ttl": 60000}) // what it says
		finds(t, c, "foreign-policies")
		must(t, errOf(ch.QueueDelete(wire.QueueIntake, false, false, false)))
		v.Queue(wire.QueueIntake, amqp.Table{"x-queue-type": "classic"})
		finds(t, c, "intake", "wrong: redrive.intake is classic, not quorum", "x-dead-letter-exchange <nil>")
	})
}

func TestQueues(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, `policies: [{name: exact, queues: [orders]}, {name: strict, queues: [nolimit], reasons: [rejected]}, {name: rest, queues: ["w*", "e*", "l*", "n*", "-*"]}]`)
		mendAll(t, c)
		quorum := func(more amqp.Table) amqp.Table {
			more["x-queue-type"] = "quorum"
			return more
		}
		safe := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
		v.Queue("well", safe)
		v.Consume("well")
		for _, name := range []string{"dead-lettering", "at-least-once", "policy-in-force", "retry-policy", "native-retry", "lifetime", "overflow", "consumers", "deliveries", "retry-exchange", "delivery-limit", "requeue"} {
			finds(t, c, name)
		}

		v.Queue("orders", quorum(amqp.Table{}))
		v.Queue("--names", quorum(amqp.Table{}))
		v.Queue("nowhere", quorum(amqp.Table{"x-dead-letter-exchange": "gone"}))
		v.Queue("elsewhere", quorum(amqp.Table{"x-dead-letter-exchange": "amq.fanout"}))
		v.Queue("elsewhere.dead", quorum(amqp.Table{}))
		v.Channel().QueueBind("elsewhere.dead", "", "amq.fanout", false, nil)
		finds(t, c, "dead-lettering", "wrong orders: it has no dead-letter exchange", "redrive enroll orders", "redrive enroll -- --names", "wrong nowhere: it dead-letters to the exchange gone, which does not exist",
			`warning elsewhere: it dead-letters to the exchange "amq.fanout"`, "redrive move --dry-run --to=elsewhere.v2 elsewhere")
		if said := ills(gather(t, c), "dead-lettering"); strings.Contains(said, " elsewhere.dead:") || strings.Contains(said, " well:") {
			t.Errorf("dead-lettering says %s", said)
		}

		v.Queue("whats.classic", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"})
		v.Queue("whats.quorum", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		v.Queue("whats.half", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive", "x-dead-letter-strategy": "at-least-once"})
		finds(t, c, "at-least-once",
			"warning: dead-lettering is at-most-once for all but quorum queues: whats.classic $",
			"whats.quorum: its dead-lettering is at-most-once", "redrive enroll --at-least-once whats.quorum",
			"whats.half: its dead-lettering says at-least-once and is at-most-once")

		v.Queue("zoo", safe)
		finds(t, c, "retry-policy", "warning zoo: no policy of Redrive's config matches it")

		v.Queue("native", quorum(amqp.Table{"x-dead-letter-exchange": "redrive", "x-delayed-retry-type": "all", "x-delayed-retry-min": 1000}))
		if v.Since4() {
			finds(t, c, "native-retry", "warning native: RabbitMQ delays what its consumers requeue (delayed-retry-type: all)")
		} else {
			finds(t, c, "native-retry", "which RabbitMQ "+v.Version+" ignores")
		}

		v.Queue("away", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive", "x-expires": 600_000})
		if _, err := v.Channel().QueueDeclare("auto", true, true, false, false, amqp.Table{"x-dead-letter-exchange": "redrive"}); err != nil {
			t.Fatal(err)
		}
		finds(t, c, "lifetime", "wrong away: RabbitMQ deletes it, with its messages, when it has not been used for 600000 ms", "wrong auto: it is auto-delete")
		finds(t, c, "consumers", "warning away: it has no consumer; RabbitMQ does not record since when", "redrive pause away")
		if said := ills(gather(t, c), "consumers"); strings.Contains(said, " well:") {
			t.Errorf("consumers says %s", said)
		}

		limited := func(kind, overflow string) amqp.Table {
			args := amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive", "x-max-length": 1}
			if overflow != "" {
				args["x-overflow"] = overflow
			}
			return args
		}
		v.Queue("l.quorum", limited("quorum", ""))
		v.Queue("l.dlx", limited("classic", "reject-publish-dlx"))
		v.Queue("l.refuses", limited("classic", "reject-publish"))
		v.Queue("l.classic", limited("classic", ""))
		v.Policy("theirs", "^l.classic$", 4, map[string]any{"max-length-bytes": 5000})
		for range 2 {
			v.Publish("", "l.classic", amqp.Publishing{})
			must(t, v.Channel().PublishWithContext(t.Context(), "", "l.dlx", false, false, amqp.Publishing{})) // refuses the second
		}
		brokertest.Eventually(t, "both are dead letters", func() bool { return v.Depth(wire.QueueIntake) == 2 })
		finds(t, c, "overflow", "warning l.quorum: full (max-length: 1), it dead-letters its oldest message for each new one, also for a retry (overflow drop-head) $ redrive enroll --at-least-once l.quorum",
			"wrong l.dlx: it is full now; full (max-length: 1), it dead-letters each message that it refuses: a retry then waits twice",
			"wrong l.classic: it is full now; full (max-length: 1), it dead-letters its oldest message", "rabbitmqctl set_policy -p "+v.Name+` redrive.l.classic '^l\.classic$' '{"max-length-bytes":5000,"overflow":"reject-publish"}' --priority 5 --apply-to queues`)
		v.Policy("redrive.l.classic", `^l\.classic$`, 5, map[string]any{"max-length-bytes": 5000, "overflow": "reject-publish"}) // what it says
		brokertest.Eventually(t, "l.classic refuses", func() bool { return !strings.Contains(ills(gather(t, c), "overflow"), " l.classic:") })
		if said := ills(gather(t, c), "overflow"); strings.Contains(said, " l.refuses:") || strings.Contains(said, " well:") {
			t.Errorf("overflow says %s", said)
		}

		for _, name := range []string{"limited", "nolimit"} {
			v.Queue(name, quorum(amqp.Table{"x-dead-letter-exchange": "redrive", "x-delivery-limit": 2}))
		}
		finds(t, c, "delivery-limit", `wrong nolimit: its delivery limit is 2, and policy "strict" has 8 attempts and no reason delivery_limit`, `warning limited: its delivery limit is 2, and policy "rest" has 8 attempts`)
		if said := ills(gather(t, c), "delivery-limit"); strings.Contains(said, " well:") { // 20 on RabbitMQ 4
			t.Errorf("delivery-limit says %s", said)
		}
		v.Queue("library", quorum(amqp.Table{"x-delivery-limit": 5}))
		v.Queue("large", quorum(amqp.Table{"x-delivery-limit": 50}))
		v.Queue("classic", nil)
		v.Exchange("redrive.due", "direct", "library", "large", "classic")
		finds(t, c, "delivery-limit", "wrong library: its delivery limit is 5, and it has no dead-letter exchange", "warning classic: it is classic, and counts no deliveries")
		if said := ills(gather(t, c), "delivery-limit"); strings.Contains(said, " large:") {
			t.Errorf("delivery-limit says %s", said)
		}
	})
}

func TestPoliciesAndRetryExchanges(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, c, m := context.Background(), configFor(t, v, everyQueue), v.API()
		mendAll(t, c)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		enrolled := func() {
			t.Helper()
			all, _, err := enroll.PlanMany(ctx, m, []string{"orders"}, "", true)
			must(t, err)
			must(t, all[0].Err)
			must(t, all[0].Plan.Apply(ctx, m))
		}
		enrolled()
		for _, name := range []string{"dead-lettering", "at-least-once", "policy-in-force", "retry-exchange"} {
			finds(t, c, name)
		}
		v.Policy("limits", "orders", 9, map[string]any{"max-length": 5})
		finds(t, c, "policy-in-force", `wrong orders: its enrolment, a policy of priority 0, is not in force: policy "limits" of priority 9 is $ redrive enroll --at-least-once orders`)
		finds(t, c, "dead-lettering") // which the same command repairs
		enrolled()                    // what it says
		finds(t, c, "policy-in-force")
		v.Must(http.MethodPut, "operator-policies/"+v.Name+"/op", map[string]any{"pattern": "orders", "apply-to": "queues", "definition": map[string]any{"message-ttl": 5000}})
		finds(t, c, "policy-in-force", `warning orders: the operator policy "op" puts message-ttl: 5000 on it`, "rabbitmqctl clear_operator_policy -p "+v.Name+" op")

		ch, exchange := v.Channel(), wire.RetryExchange("orders")
		must(t, ch.ExchangeDelete(exchange, false, false))
		finds(t, c, "retry-exchange", "wrong orders: its retry exchange redrive.retry.orders does not exist $ redrive doctor --fix --queue=orders")
		mendAll(t, c)
		finds(t, c, "retry-exchange")
		v.Queue("copies", nil)
		must(t, ch.QueueBind("copies", "k/y", exchange, false, nil))
		finds(t, c, "retry-exchange", "wrong orders: its retry exchange also leads to the queue copies")
		deleted(t, v, ills(gather(t, c), "retry-exchange"))
		finds(t, c, "retry-exchange")
		must(t, ch.QueueUnbind("orders", "", exchange, nil))
		finds(t, c, "retry-exchange", "wrong orders: its retry exchange redrive.retry.orders does not lead to it")
		mendAll(t, c)
		finds(t, c, "retry-exchange")
		must(t, ch.ExchangeDelete(exchange, false, false))
		must(t, ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
		finds(t, c, "retry-exchange", "wrong orders: its retry exchange redrive.retry.orders is of type topic, not fanout")
		deleted(t, v, ills(gather(t, c), "retry-exchange"))
		mendAll(t, c)
		finds(t, c, "retry-exchange")
		for i := range 6 {
			must(t, ch.ExchangeDeclare(wire.RetryExchange(fmt.Sprint("gone", i)), "fanout", true, false, false, false, nil))
		}
		finds(t, c, "retry-exchange", "warning: retry exchanges without a queue of their name: redrive.retry.gone0, ", "redrive.retry.gone3 and 2 more;")
		if said := ills(gather(t, c), "retry-exchange"); strings.Contains(said, "\n") {
			t.Errorf("more than one finding: %s", said)
		}
		for i := range 6 {
			must(t, ch.ExchangeDelete(wire.RetryExchange(fmt.Sprint("gone", i)), false, false))
		}
		finds(t, c, "retry-exchange")
	})
}

// Tests that need a node of their own run one after the other.
func TestOnANodeOfItsOwn(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, own *brokertest.VHost, n *rabbitnode.Node) {
		for name, test := range map[string]func(*testing.T, *brokertest.VHost, *rabbitnode.Node){
			"dead letters that stand still":              deadLettersThatStandStill,
			"the queue that blocks its retries is named": theQueueThatBlocksItsRetriesIsNamed,
			"alarms": alarmsOfANode,
		} {
			t.Run(name, func(t *testing.T) { test(t, brokertest.NewVHost(t, own.Broker), n) })
		}
	})
}

// Dead letters whose target is missing stand still in their queue, all of them, and go on
// by themselves when it is there: nothing is lost.
func deadLettersThatStandStill(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
	c := configFor(t, v, everyQueue)
	mendAll(t, c)
	finds(t, c, "standing")
	kept := func(to string) amqp.Table {
		return amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": to,
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
	}
	for queue, to := range map[string]string{"orders": wire.ExchangeDeadLetters, "lost": "gone", "fine": wire.ExchangeDeadLetters} {
		v.Queue(queue, kept(to))
	}
	dies := func(queue string, n int) {
		work := v.Consume(queue)
		for range n {
			v.Publish("", queue, amqp.Publishing{DeliveryMode: amqp.Persistent})
			work.Reject()
		}
	}
	dies("fine", 1) // it arrives
	must(t, v.Channel().ExchangeDelete(wire.ExchangeDeadLetters, false, false))
	dies("orders", 40) // more than RabbitMQ has on their way at once
	dies("lost", 2)
	finds(t, c, "standing",
		"wrong orders: 40 of its dead letters stand still in it: they go to the exchange redrive, which does not exist $ redrive doctor --fix",
		"wrong lost: 2 of its dead letters stand still in it: they go to the exchange gone, which does not exist")
	finds(t, c, "dead-lettering",
		"wrong lost: it dead-letters to the exchange gone, which does not exist: its dead letters stand still in it")
	if said := ills(gather(t, c), "standing"); strings.Contains(said, " fine:") {
		t.Errorf("standing says %s", said)
	}
	mendAll(t, c)
	must(t, v.Channel().ExchangeDeclare("gone", "fanout", true, false, false, false, nil))
	finds(t, c, "standing", "wrong lost: 2 of its dead letters stand still in it: they go to the exchange gone, which is bound to nothing")
	v.Queue("found", nil)
	must(t, v.Channel().QueueBind("found", "", "gone", false, nil))
	finds(t, c, "standing")
	brokertest.Eventually(t, "all have arrived", func() bool { return v.Depth(wire.QueueIntake) == 41 && v.Depth("found") == 2 })
}

// Another leader starts RabbitMQ's dead-lettering again, and nothing is lost: what the check
// says is run, as it stands there, on RabbitMQ; as what it says of replicas is.
func TestCommandsForAClusterMend(t *testing.T) {
	brokertest.OneCluster(t, "", func(t *testing.T, v *brokertest.VHost, cluster *rabbitnode.Cluster) {
		c := configFor(t, v, everyQueue)
		mendAll(t, c)
		must(t, cluster.Grow(context.Background()))
		finds(t, c, "replicas", "warning: the cluster has 3 nodes, and of our quorum queues some have fewer than 3 replicas")
		for _, f := range found(gather(t, c), "replicas") {
			for _, command := range f.Commands {
				must(t, errOf(cluster.Node(gather(t, c).Nodes[0].Name).Shell(t.Context(), command)))
			}
		}
		finds(t, c, "replicas")
		const name = `it's "q"\ é`
		v.Queue(name, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		brokertest.Eventually(t, "RabbitMQ tells where its replicas are", func() bool {
			q := gather(t, c).queue(name)
			return q != nil && q.Leader != "" && len(q.Online) == 3
		})
		s := gather(t, c)
		was := s.queue(name).Leader
		s.Standing = map[string]int{name: 7} // what no test can bring about for certain
		said := ills(s, "standing")
		what, command, _ := strings.Cut(said, " $ ")
		if want := "wrong " + name + ": 7 of its dead letters stand still in it, and their target is there"; what != want {
			t.Fatalf("it says %q, want %q", what, want)
		}
		must(t, errOf(cluster.Node(was).Shell(context.Background(), command)))
		brokertest.Eventually(t, "another node leads the queue", func() bool {
			q := gather(t, c).queue(name)
			return q.Leader != was && q.Leader != ""
		})
	})
}

// A consumer that requeues what it cannot do goes round, as fast as it can or after a pause; one that
// hangs keeps the others of a single-active-consumer queue out.
func TestConsumersThatRequeueOrHang(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, everyQueue)
		pauses := map[string]time.Duration{"orders": 0, "slow": 1500 * time.Millisecond}
		for queue := range pauses {
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		}
		for _, kind := range []string{"quorum", "classic"} {
			v.Queue(kind, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive", "x-single-active-consumer": true})
			for range 2 { // the first one takes five and hangs
				ch := v.Channel()
				must(t, ch.Qos(5, 0, false))
				must(t, errOf(ch.Consume(kind, "", false, false, false, false, nil)))
			}
			for range 15 {
				v.Publish("", kind, amqp.Publishing{})
			}
		}
		finds(t, c, "requeue")
		var circles sync.WaitGroup
		defer circles.Wait()
		for queue, pause := range pauses {
			ch := v.Channel()
			must(t, ch.Qos(1, 0, false))
			in, err := ch.Consume(queue, "", false, false, false, false, nil)
			must(t, err)
			circles.Go(func() {
				for d := range in {
					<-time.After(pause)
					_ = d.Nack(false, true)
				}
			})
			defer ch.Close()
			v.Publish("", queue, amqp.Publishing{})
		}
		said := " deliveries in the last minute were of messages that were delivered before" +
			map[bool]string{true: "; after basic.reject the delivery limit (20) ends that, after basic.nack nothing does", false: ", and no delivery limit ends that"}[v.Since4()]
		finds(t, c, "requeue", "warning orders: ", "warning slow: ", said)
		const hangs = ": messages ready: 10, unacknowledged: 5, consumers: 2; and none was delivered in the last minute. It has a single active"
		finds(t, c, "deliveries", "warning quorum"+hangs, "warning classic"+hangs)
	})
}

// The doctor looks, and no message notices.
func TestLookingTouchesNothing(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, `policies: [{name: p, queues: [orders]}]`)
		mendAll(t, c)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		for _, q := range []string{"orders", wire.QueueIntake, wire.QueueQuarantine, wire.QueueParked} {
			v.Publish("", q, amqp.Publishing{})
		}
		Examine(gather(t, c))
		for _, q := range []string{"orders", wire.QueueIntake, wire.QueueQuarantine, wire.QueueParked} {
			d, ok, err := v.Channel().Get(q, true)
			if err != nil || !ok || d.Redelivered {
				t.Errorf("%s: %v %v, redelivered %v", q, ok, err, d.Redelivered)
			}
		}
		if err := v.Channel().ExchangeDeclarePassive(wire.RetryExchange("orders"), "fanout", true, false, false, false, nil); err == nil {
			t.Error("it made a retry exchange")
		}
	})
}

func alarmsOfANode(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	c := configFor(t, v, everyQueue)
	finds(t, c, "alarms")
	finds(t, c, "disk-room")
	eval := func(expression string) {
		t.Helper()
		must(t, errOf(n.Eval(context.Background(), expression)))
	}
	eval("vm_memory_monitor:set_check_interval(100), rabbit_disk_monitor:set_min_check_interval(100), rabbit_disk_monitor:set_max_check_interval(100).")
	eval("vm_memory_monitor:set_vm_memory_high_watermark(0.00001).")
	finds(t, c, "alarms", "wrong: node ", "has a memory alarm")
	eval("vm_memory_monitor:set_vm_memory_high_watermark(0.9).")
	finds(t, c, "alarms")
	eval("rabbit_disk_monitor:set_disk_free_limit(round(0.7 * rabbit_disk_monitor:get_disk_free())).")
	finds(t, c, "disk-room", "warning: node ", "and its alarm comes at")
	eval("rabbit_disk_monitor:set_disk_free_limit(2 * rabbit_disk_monitor:get_disk_free()).")
	finds(t, c, "alarms", "has a disk alarm")
	eval("rabbit_disk_monitor:set_disk_free_limit(50000000).")
	finds(t, c, "alarms")
}

// guest is let in from this machine; that is what is asked of another.
func TestLettingGuestIn(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		if !letsGuestIn(context.Background(), v.API()) {
			t.Error("guest was not let in")
		}
		u, err := url.Parse(v.Management)
		must(t, err)
		nobody, err := management.New("http://"+u.Hostname()+":1", v.Name)
		must(t, err)
		if letsGuestIn(context.Background(), nobody) {
			t.Error("nobody let guest in")
		}
	})
}

// The delivery limit in force is judged, and its command repairs it, whatever our queues were
// declared with.
func TestASmallDeliveryLimitInForce(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, everyQueue)
		mendAll(t, c)
		v.Policy("everything", ".*", 0, map[string]any{"delivery-limit": 7})
		brokertest.Eventually(t, "RabbitMQ tells what is in force", func() bool {
			q, err := v.API().QueueState(t.Context(), wire.QueueQuarantine)
			limit, limited := q.LimitInForce(v.Version)
			return err == nil && limited && limit == 7
		})
		finds(t, c, "intake", "wrong: the delivery limit in force of our queue redrive.intake is 7, by a RabbitMQ policy (everything)", "rabbitmqctl set_policy -p "+v.Name+" everything",
			"wrong: the delivery limit in force of our queue redrive.quarantine is 7")
	})
}

// Without the management API no one can be asked for consent: that is reported beforehand.
func TestReportsThatWouldWait(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, everyQueue)
		finds(t, c, "reports")
		user := "untagged-" + uuid.NewString()
		v.User(user, "pw")
		c.Broker.Management = strings.Replace(v.Management, "guest:guest", user+":pw", 1)
		const said = `warning: reports of failures for queues that only "*" matches`
		finds(t, c, "reports", said, "rabbitmqctl set_user_tags "+user+" management")
		v.Must(http.MethodPut, "users/"+user, map[string]any{"password": "pw", "tags": "management"})
		denied := "the user of broker.management has no rights in the virtual host $ "
		if v.Since4() {
			denied = "not found, or not to be seen by user"
		}
		finds(t, c, "reports", said, denied)
		c.Broker.Management = strings.Replace(v.Management, "guest:guest", user+":wrong", 1)
		finds(t, c, "reports", said, "not allowed for user", "; check the password", " $ ")
		if said := ills(gather(t, c), "reports"); strings.Contains(said, "set_user_tags") {
			t.Errorf("it says %s", said)
		}
	})
}

// The doctor says of a certificate what is wrong and what to do, by AMQP and of the
// management API.
func TestDoctorExplainsCertificates(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		c := configFor(t, v, everyQueue)
		c.Broker.URL, c.Broker.Management = v.SecureURL("guest", "guest", nil), v.HTTPS
		c.Broker.URL, _, _ = strings.Cut(c.Broker.URL, "?")
		c.Broker.Credentials.TLS.CA = stranger.CAFile()
		_, err = Gather(context.Background(), Options{Config: c})
		if !errors.Is(err, ErrNothing) || !errors.Is(err, wire.ErrTLS) || strings.Count(err.Error(), "unknown authority (CN=Redrive's tests); name the file of that CA (broker.tls.ca;") != 2 {
			t.Error(err)
		}
		c.Broker.Credentials.TLS.CA = v.CA(t).CAFile()
		must(t, errOf(Gather(context.Background(), Options{Config: c})))
	})
}

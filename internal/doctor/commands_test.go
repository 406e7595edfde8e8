package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// fault is one that a check finds, and that the commands repair which it prints.
type fault struct {
	check    string
	says     string // by the finding, at the start
	commands string // their first words
	make     func(*faulty)
}

func (f *fault) runs() (all []string) {
	for command := range strings.SplitSeq(f.commands, ", ") {
		all = append(all, f.check+": "+command)
	}
	return all
}

// faulty is a virtual host with a fault.
type faulty struct {
	*brokertest.VHost
	t    *testing.T
	yaml string // of the config
	url  string // broker.url
}

// quorum declares one with these arguments.
func (v *faulty) quorum(name string, args amqp.Table) {
	all := amqp.Table{"x-queue-type": "quorum"}
	for key, value := range args {
		all[key] = value
	}
	v.Queue(name, all)
}

// kept is a queue that is enrolled by a policy, whose dead letters are to go to an exchange.
func (v *faulty) kept(to string) {
	v.quorum("orders", nil)
	v.Policy("theirs", "^orders$", 3, map[string]any{"dead-letter-exchange": to,
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})
}

func (v *faulty) fails() {
	work := v.Consume("orders")
	v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent})
	work.Reject()
}

// enrolled has a retry exchange that is wrong.
func (v *faulty) enrolled(kind string, queues ...string) {
	v.quorum("orders", nil)
	v.Policy("redrive.orders", "^orders$", 0, map[string]any{"dead-letter-exchange": "redrive"})
	if kind != "" {
		v.Exchange(wire.RetryExchange("orders"), kind, queues...)
	}
}

func (v *faulty) exchange(kind string) {
	must(v.t, v.Channel().ExchangeDelete(wire.ExchangeDeadLetters, false, false))
	if kind != "" {
		must(v.t, v.Channel().ExchangeDeclare(wire.ExchangeDeadLetters, kind, true, false, false, false, nil))
	}
}

func (v *faulty) operatorPolicy(definition map[string]any) {
	v.Must(http.MethodPut, "operator-policies/"+v.Name+"/op", map[string]any{"pattern": ".*", "apply-to": "queues",
		"definition": definition})
}

const doctorFix = "redrive doctor --fix"

var toRedrive = amqp.Table{"x-dead-letter-exchange": "redrive"}

var faults = []fault{
	{"permissions", "wrong: user ", "rabbitmqctl set_permissions", func(v *faulty) {
		v.quorum("unnamed", toRedrive)
		v.yaml = strings.Replace(v.yaml, `"*"`, `orders`, 1)
		v.url = v.ServiceURL(nil)
	}},
	{"permissions", `warning: user "worker-`, "rabbitmqctl set_permissions", func(v *faulty) {
		v.quorum("orders", toRedrive)
		v.Exchange("shop", "fanout", "orders")
		v.User("worker-"+v.Name, "pw")
		v.Grant("worker-"+v.Name, "^$", "^(shop|mail)$", "^orders$")
	}},
	{"service", "warning: no service answers", "redrive serve", func(*faulty) {}},
	{"parked-in-rabbitmq", "warning: messages in redrive.parked: 1", "redrive serve", func(v *faulty) {
		v.Publish("", wire.QueueParked, amqp.Publishing{})
	}},
	{"dead-letter-exchange", "wrong: the exchange redrive does not exist", doctorFix, func(v *faulty) {
		v.exchange("")
	}},
	{"dead-letter-exchange", "wrong: the exchange redrive is not internal", "curl -u, " + doctorFix,
		func(v *faulty) { v.exchange("fanout") }},
	{"dead-letter-exchange", "warning: the exchange redrive also leads to", "curl -u", func(v *faulty) {
		v.Queue("co pies", nil)
		must(v.t, v.Channel().QueueBind("co pies", "k/y", wire.ExchangeDeadLetters, false, nil))
	}},
	{"dead-letter-exchange", "wrong: the exchange redrive is not bound", doctorFix, func(v *faulty) {
		must(v.t, v.Channel().QueueUnbind(wire.QueueIntake, "", wire.ExchangeDeadLetters, nil))
	}},
	{"forwards", `wrong: policy "p" forwards to the queue de ad, which does not exist`, "curl -u", func(v *faulty) {
		v.yaml = strings.Replace(v.yaml, "attempts", "exhausted: {forward: {queue: de ad}}, attempts", 1)
	}},
	{"intake", "wrong: the queue redrive.intake does not exist", doctorFix, func(v *faulty) {
		v.DeleteQueue(wire.QueueIntake)
	}},
	{"intake", "wrong: redrive.intake is classic", "rabbitmqctl list_queues, rabbitmqctl delete_queue, " + doctorFix,
		func(v *faulty) {
			v.DeleteQueue(wire.QueueIntake)
			v.Queue(wire.QueueIntake, nil)
		}},
	{"intake", "wrong: the delivery limit in force of our queue redrive.intake is 7", "rabbitmqctl set_policy",
		func(v *faulty) { v.Policy("all of it", "", 0, map[string]any{"delivery-limit": 7}) }},
	{"intake", "wrong: the delivery limit in force of our queue redrive.intake is 7",
		"rabbitmqctl set_operator_policy",
		func(v *faulty) { v.operatorPolicy(map[string]any{"delivery-limit": 7}) }},
	{"foreign-policies", "wrong: a RabbitMQ policy (all) puts message-ttl: 60000", "rabbitmqctl set_policy",
		func(v *faulty) { v.Policy("all", "re|^x", 1, map[string]any{"message-ttl": 60000}) }},
	{"quarantine", "warning: messages in redrive.quarantine: 1", "rabbitmqadmin get", func(v *faulty) {
		v.Publish("", wire.QueueQuarantine, amqp.Publishing{})
	}},
	{"dead-lettering", "warning --it's: it has no dead-letter exchange", "redrive enroll", func(v *faulty) {
		v.quorum("--it's", nil)
	}},
	{"dead-lettering", "warning classic: it has no dead-letter exchange", "redrive enroll", func(v *faulty) {
		v.Queue("classic", nil)
	}},
	{"dead-lettering", "wrong orders: it dead-letters to the exchange gone, which does not exist", "redrive enroll",
		func(v *faulty) { v.kept("gone") }},
	{"dead-lettering", `warning orders: it dead-letters to the exchange "amq.fanout"`, "redrive enroll",
		func(v *faulty) { v.kept("amq.fanout") }},
	{"at-least-once", "warning orders: its dead-lettering is at-most-once", "redrive enroll", func(v *faulty) {
		v.quorum("orders", toRedrive)
	}},
	{"at-least-once", "warning orders: its dead-lettering says at-least-once", "redrive enroll", func(v *faulty) {
		v.quorum("orders", amqp.Table{"x-dead-letter-exchange": "redrive", "x-dead-letter-strategy": "at-least-once"})
	}},
	{"standing", "wrong orders: 1 of its dead letters stand still in it: they go to the exchange redrive", doctorFix,
		func(v *faulty) {
			v.kept("redrive")
			v.exchange("")
			v.fails()
		}},
	{"standing", "wrong orders: 1 of its dead letters stand still in it: they go to the exchange gone",
		"redrive enroll", func(v *faulty) {
			v.kept("gone")
			v.fails()
		}},
	{"policy-in-force", `wrong orders: its enrolment, a policy of priority 0, is not in force`, "redrive enroll",
		func(v *faulty) {
			v.enrolled("")
			v.Policy("limits", "orders", 9, map[string]any{"max-length": 5})
		}},
	{"policy-in-force", `warning orders: the operator policy "op" puts message-ttl`,
		"rabbitmqctl clear_operator_policy", func(v *faulty) {
			v.enrolled("")
			v.operatorPolicy(map[string]any{"message-ttl": 5000})
		}},
	{"overflow", "warning orders: full (max-length: 1)", "redrive enroll", func(v *faulty) {
		v.quorum("orders", amqp.Table{"x-dead-letter-exchange": "redrive", "x-max-length": 1})
	}},
	{"overflow", "warning cl: full (max-length: 2), it dead-letters each message", "rabbitmqctl set_policy",
		func(v *faulty) {
			v.Queue("cl", toRedrive)
			v.Policy("theirs", "cl", 4, map[string]any{"max-length": 2, "overflow": "reject-publish-dlx"})
		}},
	{"retry-exchange", "wrong orders: its retry exchange redrive.retry.orders does not exist", doctorFix,
		func(v *faulty) { v.enrolled("") }},
	{"retry-exchange", "wrong orders: its retry exchange redrive.retry.orders does not lead to it", doctorFix,
		func(v *faulty) { v.enrolled("fanout") }},
	{"retry-exchange", "wrong orders: its retry exchange redrive.retry.orders is of type topic",
		"curl -u, " + doctorFix, func(v *faulty) { v.enrolled("topic") }},
	{"retry-exchange", "wrong orders: its retry exchange also leads to the queue copies", "curl -u",
		func(v *faulty) {
			v.Queue("copies", nil)
			v.enrolled("fanout", "orders", "copies")
		}},
	{"reports", "warning: reports of failures for queues that only", "rabbitmqctl set_user_tags", func(v *faulty) {
		v.yaml = strings.Replace(v.yaml, "//guest:guest@", "//", 1) // broker.management: as broker.url
		v.url = v.ServiceURL(nil)
		v.Grant(v.ServiceUser(), ".*", ".*", ".*")
	}},
}

// notRun are commands that only show something, or that other tests run.
var notRun = []string{
	"connection: rabbitmqctl authenticate_user", "connection: rabbitmqctl list_user_permissions",
	"alarms: rabbitmqctl -n", "alarms: rabbitmq-diagnostics -n",
	"another-service: rabbitmqctl list_consumers", "deliveries: rabbitmqctl list_consumers",
	"service: redrive status", "retry-policy: redrive check", "guest: redrive permissions",
	"consumers: redrive pause", // and the finding stays
	"dead-lettering: redrive move", "dead-lettering: redrive adopt",
	// Of this machine, and of all tests.
	"clock: timedatectl set-ntp", "transport: unset REDRIVE_INSECURE", "guest: rabbitmqctl delete_user",
	"replicas: rabbitmq-queues grow", "standing: rabbitmqctl eval", // TestCommandsForAClusterMend
	"redis: redis-cli -h", // TestCommandsForRedisMend
}

// verb is what a command line does: its first two words, without options in front.
func verb(command string) string {
	words := strings.Fields(command)
	switch {
	case strings.Contains(command, " doctor --fix"):
		return doctorFix
	case words[0] == "rabbitmqadmin":
		words = append(words[:1], words[2:]...)
	}
	return words[0] + " " + words[1]
}

// Each command repairs what its finding is about, as it is printed.
func TestTheCommandsMend(t *testing.T) {
	if !brokertest.Long() {
		t.Skip("not run: it takes a minute (make test-long)")
	}
	brokertest.OnePrivate(t, "", func(t *testing.T, private *brokertest.VHost, n *rabbitnode.Node) {
		bin := filepath.Dir(brokertest.Redrive(t))
		t.Run("all", func(t *testing.T) {
			for _, f := range faults {
				t.Run(f.check+" "+f.says, func(t *testing.T) {
					t.Parallel()
					f.mended(t, brokertest.NewVHost(t, private.Broker), n, bin)
				})
			}
		})
	})
}

func (f *fault) mended(t *testing.T, host *brokertest.VHost, n *rabbitnode.Node, bin string) {
	v := &faulty{VHost: host, t: t, url: host.URL()}
	listen := brokertest.Address(t)
	v.yaml = everyQueue + fmt.Sprintf("\nlisten: %s\nstore: {disk: %q}\n", listen, t.TempDir()) +
		fmt.Sprintf("broker:\n  management: %q\n", v.Management)
	mendAll(t, configFor(t, host, everyQueue))
	f.make(v)
	file := filepath.Join(t.TempDir(), "it's.yaml")
	must(t, os.WriteFile(file, []byte(v.yaml+fmt.Sprintf("  url: %q\n", v.url)), 0o600))
	c, err := config.Load(file, func(string) string { return "" })
	must(t, err)
	look := func() *Finding {
		s, err := Gather(t.Context(), Options{Config: c, File: file, Service: "http://" + listen, Named: true,
			Standing: 3 * time.Second})
		must(t, err)
		all := found(s, f.check)
		return first(all, func(is *Finding) bool { return strings.HasPrefix(line(*is), f.says) })
	}
	var is *Finding
	brokertest.Eventually(t, "the doctor finds it", func() bool {
		is = look()
		return is != nil
	})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var runs []string
	for _, command := range is.Commands {
		runs = append(runs, f.check+": "+verb(command))
		typed(ctx, t, host, n, bin, command)
	}
	expect.Equal(t, strings.Join(runs, ", "), strings.Join(f.runs(), ", "), "its commands are")
	brokertest.Eventually(t, "the doctor no longer finds it", func() bool { return look() == nil })
}

// typed runs a command as an administrator types it, on RabbitMQ's machine where it is RabbitMQ's.
func typed(ctx context.Context, t *testing.T, v *brokertest.VHost, n *rabbitnode.Node, bin, command string) {
	t.Helper()
	if name, _, _ := strings.Cut(command, " "); strings.HasPrefix(name, "rabbitmq") && name != "rabbitmqadmin" {
		must(t, errOf(n.Shell(ctx, command)))
		return
	}
	at, err := url.Parse(n.Management())
	must(t, err)
	// What curl and enroll ask for, and a port that is not the usual one.
	line := `curl() { shift 2; command curl -sSf -u guest:guest "$@"; }
redrive() { [ "$1" != enroll ] || { shift; set -- enroll --yes "$@"; }; command redrive "$@"; }
rabbitmqadmin() { command rabbitmqadmin --port=` + at.Port() + ` "$@"; }
` + command
	serves := strings.HasPrefix(command, "redrive serve")
	if serves {
		line = "exec " + command
	}
	c := exec.CommandContext(ctx, "sh", "-c", line)
	c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if v.Management == v.HTTPS {
		c.Env = append(c.Env, "CURL_CA_BUNDLE="+v.CA(t).CAFile())
	}
	if serves {
		must(t, c.Start())
		t.Cleanup(func() { _ = c.Wait() })
		return
	}
	// The exit code of doctor is about all that it finds.
	if out, err := c.CombinedOutput(); err != nil && verb(command) != doctorFix {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

func TestCommandsForRedisMend(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.Config = "maxmemory 0\nmaxmemory-policy allkeys-lru\nappendonly no\nappendfsync no\n"
		server := redisnode.New(t, o)
		look := func() []Finding {
			return found(scene(func(s *Scene) {
				s.Config.Store.Redis.URL = server.URL()
				all, _, err := redisstore.Survey(t.Context(), redisstore.Options{URL: server.URL()})
				must(t, err)
				s.Redis = all
			}), "redis")
		}
		all := look()
		expect.Equal(t, len(all), 3, "there are so many findings")
		for _, f := range all {
			for _, command := range f.Commands {
				must(t, errOf(exec.CommandContext(t.Context(), "sh", "-c", command).Output()))
			}
		}
		expect.Equal(t, len(look()), 0, "there remain so many findings")
	})
}

package doctor

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

func TestTheServicesRights(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, `policies: [{name: p, queues: [orders]}]`)
		mendAll(t, c)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		c.Broker.URL = v.ServiceURL(c.Policies)
		finds(t, c, "permissions")
		v.Grant(v.ServiceUser(), `^redrive\..*`, "^redrive.*", "")
		command := `rabbitmqctl set_permissions -p ` + v.Name + " " + v.ServiceUser() + ` '^redrive(\..*)?$' '^(redrive\..*|orders)$' '^redrive(\..*)?$'`
		finds(t, c, "permissions", "it lacks configure on redrive; read on redrive, redrive.intake", "write on orders $ "+command)
		v.Must(http.MethodDelete, "permissions/"+v.Name+"/"+v.ServiceUser(), nil)
		finds(t, c, "connection", "wrong: ", "rabbitmqctl list_user_permissions "+v.ServiceUser())
		finds(t, c, "permissions", "it lacks configure on redrive")
	})
}

// With less than an administrator's eyes less is seen, and nothing is called ok
// that was not seen.
func TestWithFewerRights(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, `policies: [{name: p, queues: [orders, gone]}]`)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		user := "asks-" + uuid.NewString()
		v.User(user, "s3cret")
		v.Grant(user, ".*", ".*", ".*")
		tagged := func(tag string) {
			v.Must(http.MethodPut, "users/"+user, map[string]any{"password": "s3cret", "tags": tag})
		}
		as, err := url.Parse(v.Management)
		must(t, err)
		as.User = url.UserPassword(user, "s3cret")
		c.Broker.Management = as.String()
		unknown := func() (all []string) {
			for _, f := range Examine(gather(t, c)).Findings {
				if f.Status == Unknown {
					all = append(all, f.Check)
					if strings.Contains(f.Why, "s3cret") || f.Why == "" {
						t.Errorf("%s is unknown because of %q", f.Check, f.Why)
					}
				}
			}
			return all
		}
		most := "alarms disk-room clock sizes permissions topic-permissions limits dead-letter-exchange intake replicas foreign-consumers alternate-exchange federation dead-lettering named-queues dead-letter-queues forwards at-least-once standing policy-in-force retry-policy reports native-retry lifetime queue-limits full-queues consumers auto-ack prefetch unacknowledged consumer-timeout retry-exchange delivery-limit requeue"
		clients := "alarms disk-room permissions topic-permissions limits replicas foreign-consumers federation auto-ack prefetch unacknowledged"
		for tag, want := range map[string]string{"": most, "management": clients, "monitoring": "permissions topic-permissions federation", "administrator": ""} {
			tagged(tag)
			if got := strings.Join(unknown(), " "); got != want {
				t.Errorf("with the tag %q these are unknown: %s\nwant: %s", tag, got, want)
			}
		}
		// Without the API altogether.
		c.Broker.Management = "http://127.0.0.1:1"
		if got := strings.Join(unknown(), " "); got != most {
			t.Errorf("without the management API these are unknown: %s", got)
		}
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive does not exist", "unknown: looked at only as far as AMQP shows it")
		finds(t, c, "intake", "wrong: the queue redrive.intake does not exist")
		finds(t, c, "consumers", "warning orders: it has no consumer")
		finds(t, c, "retry-exchange", "warning gone: a policy names it, and it does not exist")
		mendAll(t, c) // by AMQP
		for _, name := range []string{"dead-letter-exchange", "intake"} {
			if said := ills(gather(t, c), name); strings.Contains(said, "wrong") {
				t.Errorf("%s after it was repaired: %s", name, said)
			}
		}
		ch := v.Channel()
		must(t, ch.ExchangeDelete(wire.ExchangeDeadLetters, false, false))
		must(t, ch.ExchangeDeclare(wire.ExchangeDeadLetters, "fanout", true, false, false, false, nil))
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive is not as it must be")
		c.Broker.URL = v.URLAs(user, "s3cret")
		v.Grant(user, "^$", ".*", ".*")
		finds(t, c, "permissions", "wrong: user ", "permission denied")
	})
}
